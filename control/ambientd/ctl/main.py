"""The command line of `ambientctl`. What a command needs is imported in it, so that the others start fast. Must not
format or fetch anything itself."""

from __future__ import annotations

import asyncio
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from ambientd.ctl.snapshot import Plain, Snapshot

cli = typer.Typer(
    name="ambientctl",
    help="Looks at what ambientd serves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DEFAULT_TARGET = "127.0.0.1:15010"
DEFAULT_URL = "http://127.0.0.1:15014"
DEFAULT_READY_URL = "http://127.0.0.1:8080"


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Subject(StrEnum):
    WORKLOADS = "workloads"
    SERVICES = "services"
    POLICIES = "policies"
    PROBLEMS = "problems"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to print.")]
ConfigDirOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Answer from this folder of manifests, without a server.")
]
DebugUrlOption = Annotated[str, typer.Option(metavar="URL", help="Monitoring port of a running server.")]


@cli.command()
def watch(
    addresses: Annotated[bool, typer.Option("--addresses", help="Only workloads and services.")] = False,
    policies: Annotated[bool, typer.Option("--policies", help="Only policies.")] = False,
    target: Annotated[str, typer.Option(metavar="HOST:PORT", help="Plain gRPC port of the server.")] = DEFAULT_TARGET,
    output: OutputOption = Output.TABLE,
    node: Annotated[str, typer.Option(metavar="NAME", help="Kubernetes node to claim to run on.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Print the state, and end.")] = False,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long --once waits for the state."),
    ] = 30.0,
) -> None:
    """Connects as a ztunnel would, and prints what it receives and what changes."""
    from ambientd.ctl import connection, watching
    from ambientd.ctl.ztunnel import SimulatedZtunnel

    _check_target(target)
    kinds = {"workload", "service"} if addresses else set()
    kinds |= {"policy"} if policies else set()
    chosen = frozenset(kinds or {"workload", "service", "policy"})
    ztunnel = SimulatedZtunnel(node_name=node)

    def write(line: str) -> None:
        print(line, flush=True)

    match output:
        case Output.JSON:
            tell = watching.json_printer(ztunnel, chosen, write)
        case Output.YAML:
            tell = watching.yaml_printer(ztunnel, chosen, write)
        case Output.TABLE:
            tell = watching.table_printer(ztunnel, chosen)

    async def run() -> bool:
        is_ready = asyncio.Event()

        def tell_and_look(happened: connection.Happened) -> None:
            tell(happened)
            if ztunnel.is_ready:
                is_ready.set()

        watching_task = asyncio.create_task(connection.watch(target, ztunnel, tell_and_look))
        try:
            if not once:
                await watching_task
            waiting = asyncio.create_task(is_ready.wait())
            done, _ = await asyncio.wait(
                [watching_task, waiting], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if watching_task in done:
                watching_task.result()
            waiting.cancel()
            return is_ready.is_set()
        finally:
            watching_task.cancel()

    try:
        is_complete = asyncio.run(run())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not is_complete:
        _fail(f"{target} gave no whole state within {timeout_s:g} s; is the server running there?")


@cli.command()
def get(
    subject: Annotated[Subject, typer.Argument(help="What to print.")],
    config_dir: ConfigDirOption = None,
    debug_url: DebugUrlOption = DEFAULT_URL,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only what is in this namespace.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Prints the present state, and ends."""
    from ambientd.ctl import snapshot

    _check_url(debug_url)
    try:
        if config_dir is not None:
            state = snapshot.read_folder(config_dir, os.environ)
        else:
            state = snapshot.ask_server(debug_url, for_problems=subject is Subject.PROBLEMS)
    except snapshot.Failed as error:
        _fail(str(error))
    _print(subject, state, namespace, output)


def _print(subject: Subject, state: Snapshot, namespace: str, output: Output) -> None:
    everything: list[Plain] = getattr(state, subject.value)
    chosen = [item for item in everything if not namespace or item.get("namespace") == namespace]
    if subject is not Subject.PROBLEMS:
        chosen.sort(key=lambda item: (item.get("namespace", ""), item.get("name", "")))
    if output is Output.TABLE:
        _print_table(subject, chosen, state)
    else:
        _print_plain(chosen, output)


def _print_plain(value: Any, output: Output) -> None:
    """For machines."""
    if output is Output.JSON:
        import json

        print(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        from ambientd.ctl.watching import to_yaml

        print(to_yaml(value), end="")


def _print_table(subject: Subject, chosen: list[Plain], state: Snapshot) -> None:
    from ambientd.ctl import tables

    if not chosen:
        print(f"no {subject.value}")
        return
    match subject:
        case Subject.WORKLOADS:
            table = tables.workloads_table(chosen)
        case Subject.SERVICES:
            table = tables.services_table(chosen, state.workloads)
        case Subject.POLICIES:
            table = tables.policies_table(chosen, state.workloads)
        case Subject.PROBLEMS:
            table = tables.problems_table(chosen)
    tables.make_console().print(table)


@cli.command()
def check(
    debug_url: Annotated[str, typer.Option(metavar="URL", help="Monitoring port of the server.")] = DEFAULT_URL,
    ready_url: Annotated[str, typer.Option(metavar="URL", help="HTTP port of the server.")] = DEFAULT_READY_URL,
) -> None:
    """Says what is wrong with a running server; exit code 1 when something is."""
    from ambientd.ctl import checking, snapshot

    _check_url(debug_url)
    _check_url(ready_url, "--ready-url")
    try:
        health = checking.ask(ready_url, debug_url)
    except snapshot.Failed as error:
        _fail(str(error))
    lines = checking.complaints(health)
    for line in lines:
        print(line)
    print(checking.verdict(health, lines))
    if lines:
        raise typer.Exit(1)


@cli.command()
def describe(
    subject: Annotated[str, typer.Argument(metavar="KIND/[NAMESPACE/]NAME", help="An object: pod/shop/cart-0.")],
    config_dir: ConfigDirOption = None,
    debug_url: DebugUrlOption = DEFAULT_URL,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace of the object.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Tells what became of one object, and why. Exits with 1 where there is no such object."""
    from ambientd.ctl import describing, snapshot

    _check_url(debug_url)
    try:
        chosen = describing.subject_of(subject, namespace)
    except snapshot.Failed as error:
        _refuse(str(error))
    try:
        if config_dir is not None:
            found = describing.ask_folder(config_dir, os.environ, chosen)
        else:
            found = describing.ask_server(debug_url, chosen)
    except snapshot.Failed as error:
        _fail(str(error))
    if output is Output.TABLE:
        for line in describing.lines_of(found):
            print(line)
    else:
        _print_plain(found, output)
    if describing.is_missing(found):
        raise typer.Exit(1)


@cli.command()
def version() -> None:
    """Prints the version of this program."""
    from ambientd.debug.version import current

    print(current())


def _check_target(target: str) -> None:
    host, colon, port = target.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        _refuse(f"--target: must be HOST:PORT such as {DEFAULT_TARGET}, got {target!r}")


def _check_url(url: str, option: str = "--debug-url") -> None:
    if not url.startswith(("http://", "https://")):
        _refuse(f"{option}: must be a URL such as {DEFAULT_URL}, got {url!r}")


def _refuse(line: str) -> NoReturn:
    """What was asked for is wrong: one line, and exit code 2."""
    print(f"ambientctl: {line}", file=sys.stderr)
    raise typer.Exit(2)


def _fail(line: str) -> NoReturn:
    print(f"ambientctl: {line}", file=sys.stderr)
    raise typer.Exit(1)


def main() -> None:
    """The console script."""
    cli()

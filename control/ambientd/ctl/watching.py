"""What `ambientctl watch` prints of what its ztunnel receives: the state once it is whole, then every change. Formats
only; the connection is in `connection.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from ambientd.ctl.connection import Connected, Disconnected, Happened, Received
from ambientd.ctl.differences import differences
from ambientd.ctl.snapshot import Plain, Snapshot
from ambientd.ctl.ztunnel import Change, Held, SimulatedZtunnel
from ambientd.debug.readable import plain

_TABLE_ROWS = 200
"""A larger state is told in numbers: nobody reads so long a table."""


class Printer(Protocol):
    def __call__(self, happened: Happened) -> None: ...


def records(happened: Happened, kinds: frozenset[str]) -> Iterator[dict[str, Any]]:
    """What happened as records for machines, one per resource. `kinds`: of which resources to tell."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    match happened:
        case Connected():
            yield {"time": now, "event": "connected", "target": happened.target}
        case Disconnected():
            yield {"time": now, "event": "disconnected", "reason": happened.reason, "wait_s": happened.wait_s}
        case Received():
            for change in happened.applied.changes:
                if change.kind in kinds:
                    yield {"time": now, **_change_record(change)}
            rejection = happened.applied.answer.error_detail.message
            if rejection:
                yield {"time": now, "event": "rejected", "type": happened.type_url, "reason": rejection}


def _change_record(change: Change) -> dict[str, Any]:
    event = "added" if change.before is None else "removed" if change.after is None else "changed"
    record: dict[str, Any] = {"event": event, "kind": change.kind, "name": change.name}
    if change.before is not None and change.after is not None:
        record["differences"] = list(_differences(change.before, change.after))
    if change.after is not None:
        record[change.kind] = plain(change.after)
    return record


def json_printer(ztunnel: SimulatedZtunnel, kinds: frozenset[str], write: Callable[[str], None]) -> Printer:
    """One JSON object per line; a `ready` one when the first state is whole."""
    return _record_printer(ztunnel, kinds, lambda record: write(msgspec.json.encode(record).decode()))


def yaml_printer(ztunnel: SimulatedZtunnel, kinds: frozenset[str], write: Callable[[str], None]) -> Printer:
    """One YAML document per record."""

    def write_document(record: dict[str, Any]) -> None:
        write("---\n" + to_yaml(record).rstrip("\n"))

    return _record_printer(ztunnel, kinds, write_document)


def _record_printer(
    ztunnel: SimulatedZtunnel, kinds: frozenset[str], write: Callable[[dict[str, Any]], None]
) -> Printer:
    was_ready = False

    def tell(happened: Happened) -> None:
        nonlocal was_ready
        for record in records(happened, kinds):
            write(record)
        if ztunnel.is_ready and not was_ready:
            was_ready = True
            write({"event": "ready", **_counts(ztunnel)})

    return tell


def table_printer(ztunnel: SimulatedZtunnel, kinds: frozenset[str]) -> Printer:
    """Tables of the first state, then a line per change."""
    from ambientd.ctl import tables

    console = tables.make_console()
    was_ready = False
    told = ""

    def part(title: str, count: int, make: Callable[[], Any]) -> None:
        console.print(f"\n{count} {title}", style="bold")
        if 0 < count <= _TABLE_ROWS:
            console.print(make())

    def show(snapshot: Snapshot) -> None:
        workloads = snapshot.workloads
        if "workload" in kinds:
            part("workloads", len(workloads), lambda: tables.workloads_table(workloads))
        if "service" in kinds:
            part("services", len(snapshot.services), lambda: tables.services_table(snapshot.services, workloads))
        if "policy" in kinds:
            part("policies", len(snapshot.policies), lambda: tables.policies_table(snapshot.policies, workloads))

    def tell(happened: Happened) -> None:
        nonlocal was_ready, told
        now = datetime.now().strftime("%H:%M:%S.%f")[:-3]
        match happened:
            case Connected():
                told = ""
                console.print(f"{now} connected to {happened.target}", style="dim", markup=False)
            case Disconnected():
                # A ztunnel tries often at first; the same reason is told once.
                if happened.reason != told:
                    told = happened.reason
                    console.print(f"{now} disconnected: {told}; keeps trying", style="dim", markup=False)
            case Received():
                rejection = happened.applied.answer.error_detail.message
                if rejection:
                    console.print(f"{now} rejected: {rejection}", style="red", markup=False)
                if not ztunnel.is_ready:
                    return
                if not was_ready:
                    was_ready = True
                    show(snapshot_of(ztunnel))
                    console.print(f"\n{now} ready", style="dim")
                    return
                for change in happened.applied.changes:
                    if change.kind in kinds:
                        console.print(f"{now} ", style="dim", end="")
                        console.print(_line(change))

    def _line(change: Change) -> Any:
        if change.after is None:
            return tables.change_line("-", change.kind, change.name, "")
        if change.before is None:
            return tables.change_line("+", change.kind, change.name, tables.summary(change.kind, plain(change.after)))
        what = "; ".join(_differences(change.before, change.after))
        return tables.change_line("~", change.kind, change.name, what)

    return tell


def snapshot_of(ztunnel: SimulatedZtunnel) -> Snapshot:
    """What a ztunnel holds."""
    return Snapshot(_plains(ztunnel.workloads), _plains(ztunnel.services), _plains(ztunnel.policies))


def _differences(before: Held, after: Held) -> Iterator[str]:
    return differences(_with_enums(before), _with_enums(after))


def _with_enums(message: Held) -> Plain:
    """With the enums that have their default, so that `HEALTHY` is a word like `UNHEALTHY`."""
    defaults = {
        field.json_name: field.enum_type.values_by_number[0].name
        for field in message.DESCRIPTOR.fields
        if field.enum_type is not None and not field.is_repeated
    }
    return {**defaults, **plain(message)}


def to_yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)


def _plains(held: dict[str, Any]) -> list[Plain]:
    messages: list[tuple[str, Held]] = sorted(held.items())
    return [plain(message) for _, message in messages]


def _counts(ztunnel: SimulatedZtunnel) -> dict[str, int]:
    return {
        "workloads": len(ztunnel.workloads),
        "services": len(ztunnel.services),
        "policies": len(ztunnel.policies),
    }

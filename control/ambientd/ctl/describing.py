"""What `ambientctl describe` says about one object: asked of a server or of a folder, and told as text. Decides
nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

from msgspec import Struct

from ambientd.ctl.snapshot import Failed, Plain, ask_page, load_folder

_WIDTH = 12


class Subject(Struct, frozen=True):
    kind: str
    """As somebody wrote it."""
    namespace: str
    name: str


def subject_of(text: str, namespace: str) -> Subject:
    """What `KIND/NAME` or `KIND/NAMESPACE/NAME` means; `namespace` is that of the option, empty without it. Raises
    Failed."""
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise Failed(f"what to describe must be KIND/NAME or KIND/NAMESPACE/NAME, got {text!r}")
    named = parts[1] if len(parts) == 3 else ""
    if named and namespace and named != namespace:
        raise Failed(f"{text!r} and --namespace {namespace!r} name two namespaces")
    return Subject(parts[0], named or namespace or "default", parts[-1])


def ask_folder(folder: Path, environ: Mapping[str, str], subject: Subject) -> Plain:
    """What a server would say that had started with this folder. Raises Failed."""
    from ambientd.debug.descriptions import plain_description
    from ambientd.explain.describe import NoSuchKind, describe, ref_of

    world, cluster = load_folder(folder, environ)
    try:
        return plain_description(describe(world, ref_of(cluster, subject.kind, subject.namespace, subject.name)))
    except NoSuchKind as error:
        raise Failed(str(error)) from None


def ask_server(url: str, subject: Subject) -> Plain:
    """Raises Failed."""
    query = urlencode({"kind": subject.kind, "namespace": subject.namespace, "name": subject.name})
    found: Plain = ask_page(url, f"describe?{query}")
    return found


def is_missing(description: Plain) -> bool:
    """No version of the object is in force, and none was tried."""
    return not (description["is_read"] or description["conditions"] or description["problems"])


def lines_of(description: Plain) -> Iterator[str]:
    """For people: what became of the object, the reasons, and at the end what is served of it, as YAML."""
    from ambientd.ctl.watching import to_yaml

    yield f"{description['object']}: {description['summary']}"
    for heading in ("waypoints", "hosts", "services", "policies"):
        yield from _listed(heading, [f"{line['what']} ({line['why']})" for line in description.get(heading, ())])
    conditions = [f"{each['type']} {each['status']} {each['reason']}" for each in description["conditions"]]
    messages = [each["message"] for each in description["conditions"]]
    told = [f"{text}: {message}" if message else text for text, message in zip(conditions, messages, strict=True)]
    yield from _listed("conditions", told)
    yield from _listed("problems", description["problems"])
    for item in description["served"]:
        yield f"\n{item['type']} {item['name']}, version {item['version']}:"
        yield from (f"  {line}" for line in to_yaml(item["resource"]).splitlines())


def _listed(heading: str, items: list[str]) -> Iterator[str]:
    for number, item in enumerate(items):
        yield f"  {'' if number else heading:<{_WIDTH}}{item}"

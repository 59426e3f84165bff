"""One file of manifests as what a source emits for it: the objects, and what is wrong, each with its line. Pure: bytes
in, values out, and no exception whatever the bytes are."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from ambientd.resources.events import Invalid, Put
from ambientd.resources.faults import Fault, Undecodable, quote
from ambientd.resources.manifest import UnknownKind, decode_manifest, items_of
from ambientd.resources.ref import ClusterId
from ambientd.resources.yaml_text import Document, TextError, json_documents, yaml_documents

SUFFIXES = (".yaml", ".yml", ".json")
"""Names of files that are read end so; the others are no business of ours."""

KEPT = "the last good objects of this file stay in force; without any it is not used"


class Found(Struct, frozen=True):
    """One object of a file, and the line on which its document begins."""

    event: Put | Invalid
    line: int


class FileContent(Struct, frozen=True):
    objects: tuple[Found, ...] = ()
    faults: tuple[Fault, ...] = ()
    """What is wrong with the file, or with things in it that have no name of their own."""
    is_whole: bool = True
    """False: something in it cannot be understood that may have been an object, so what is missing is not gone."""


def read_manifests(path: str, content: bytes, cluster: ClusterId) -> FileContent:
    """The objects of a file in their order. A file that breaks off holds those before the break, and is not whole."""
    objects: list[Found] = []
    faults: list[Fault] = []
    is_whole = True
    documents = json_documents(content) if path.endswith(".json") else yaml_documents(content)
    try:
        for document in documents:
            is_whole &= _read_document(document, path, cluster, objects, faults)
    except TextError as error:
        language = "JSON" if path.endswith(".json") else "YAML"
        rule = f"cannot be read as {language}: {error.problem}"
        faults.append(Fault(f"line {error.line}", rule, "", KEPT))
        is_whole = False
    return FileContent(tuple(objects), tuple(faults), is_whole)


def _read_document(
    document: Document, path: str, cluster: ClusterId, objects: list[Found], faults: list[Fault]
) -> bool:
    """Adds what the document holds; False when it may hold an object that was not understood."""
    try:
        items = list(items_of(document.value))
    except Undecodable as error:
        faults.extend(_nameless(document, "", document.value, error, KEPT))
        return False
    is_whole = True
    for at, item in items:
        try:
            event = decode_manifest(item, cluster)
        except UnknownKind as error:
            faults.extend(_nameless(document, at, item, error))
        except Undecodable as error:
            faults.extend(_nameless(document, at, item, error, KEPT))
            is_whole = False
        else:
            objects.append(Found(_placed(event, document, at, path), document.line_of(at)))
    return is_whole


def _nameless(document: Document, at: str, item: Any, error: Undecodable, effect: str = "") -> list[Fault]:
    """The faults of something that has no ref, so that its file carries them."""
    what = describe_item(item)
    return [
        structs.replace(
            fault,
            path=f"line {document.line_of(_join(at, fault.path))}",
            rule=f"{what}: {fault.path} {fault.rule}" if fault.path else f"{what} {fault.rule}",
            effect=effect or fault.effect,
        )
        for fault in error.faults
    ]


def describe_item(item: Any) -> str:
    """How a manifest is called in a fault, whatever of its name is there."""
    if not isinstance(item, dict):
        return "a document"
    metadata = item.get("metadata")
    names = [metadata.get(part) for part in ("namespace", "name")] if isinstance(metadata, dict) else []
    name = "/".join(name for name in names if isinstance(name, str) and name)
    kind = item.get("kind")
    kind = kind if isinstance(kind, str) and kind else "an object"
    return quote(f"{kind} {name}".strip(), 120).strip("'\"")


def _placed(event: Put | Invalid, document: Document, at: str, path: str) -> Put | Invalid:
    """The event, its faults with the place where to correct them."""
    if not event.faults:
        return event
    faults = tuple(
        structs.replace(
            fault,
            remedy=f"{fault.remedy or 'correct it'} in {path}, line {document.line_of(_join(at, fault.path))}",
        )
        for fault in event.faults
    )
    return structs.replace(event, faults=faults)


def _join(at: str, path: str) -> str:
    return path if not at else at if not path else at + path if path.startswith("[") else f"{at}.{path}"

"""Reads the golden cases, keeps the objects of a cluster over their steps, and compares what is served with what a case
expects (see README.md here). It knows the form of the cases and nothing of the product."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.model import ip
from tests.model.manifests import Change, Manifest, Ref, defaulted, dig, entries, kind, ref_of
from tests.model.mesh import config_map_name, in_force, mesh_text

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
TABLES = HERE / "tables"

SYSTEM_NAMESPACE = "istio-system"
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", SYSTEM_NAMESPACE)
"""They exist before every case."""
DEFAULTS: Mapping[str, str] = {"REVISION": "default"}
"""Environment of the server in every case, under that of the case itself."""


class _TextLoader(yaml.CSafeLoader):
    """A time stays the text that it is in JSON."""


_TextLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Step:
    apply: Sequence[Manifest]
    delete: Sequence[Ref]
    expect: Mapping[str, Any]
    fields: Mapping[str, Any]
    """Everything of the step, as written."""


@dataclass(frozen=True)
class Case:
    id: str
    environment: Mapping[str, str]
    exists_at_start: bool
    steps: Sequence[Step]
    fields: Mapping[str, Any]


def case_ids() -> list[str]:
    """Ids of all cases; the file of a case is named after it."""
    return sorted(path.stem for folder in (GOLDEN, TABLES) for path in folder.glob("*/*.yaml"))


@functools.cache
def load(case_id: str) -> Case:
    within = Path(case_id.split("-")[0]) / f"{case_id}.yaml"
    fields = _read(GOLDEN / within if (GOLDEN / within).exists() else TABLES / within)
    assert fields["id"] == case_id
    steps = [
        Step(
            apply=step.get("apply") or (),
            delete=[(each["kind"], each.get("namespace") or "", each["name"]) for each in step.get("delete") or ()],
            expect=step.get("expect") or {},
            fields=step,
        )
        for step in fields["steps"]
    ]
    return Case(
        id=case_id,
        environment={**DEFAULTS, **(fields.get("env") or {})},
        exists_at_start=bool(fields.get("exists_at_start")),
        steps=steps,
        fields=fields,
    )


def expected_failures(suite: str) -> Mapping[str, str]:
    """Ids of the cases that fail in one of the suites, each with the reason."""
    return _failures().get(suite) or {}


@functools.cache
def _failures() -> Mapping[str, Any]:
    return _read(HERE / "expected_failures.yaml")


def marked_cases(suite: str) -> list[Any]:
    """All cases as parameters of a test; those that the suite cannot pass are marked as such, strictly."""
    known = expected_failures(suite)
    assert not known.keys() - set(case_ids())
    return [
        pytest.param(each, marks=pytest.mark.xfail(reason=known[each], strict=True)) if each in known else each
        for each in case_ids()
    ]


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        fields: dict[str, Any] = yaml.load(file, _TextLoader)
    return fields


class Cluster:
    """The objects of one cluster, as an API server with our kinds would hold them."""

    def __init__(self, case: Case) -> None:
        self._stored: dict[Ref, Manifest] = {}
        self._usable: dict[Ref, Manifest] = {}
        self._revision = case.environment["REVISION"]
        # Without a document at the start the defaults are what was in force before the first one.
        self._mesh: Mapping[str, Any] | None = None if case.exists_at_start else {}
        self.begun = [Change(("Namespace", "", each), self._put(_namespace(each))) for each in NAMESPACES]
        """What exists before the first step."""

    def play(self, step: Step) -> list[Change]:
        """The changes of a step, in order; every object is as an API server returns it."""
        changes = []
        for manifest in step.apply:
            changes.append(Change(ref_of(manifest), self._put(manifest)))
        for ref in step.delete:
            self._stored.pop(ref, None)
            self._usable.pop(ref, None)
            changes.append(Change(ref, None))
        document = mesh_text(list(self._stored.values()), SYSTEM_NAMESPACE, self._revision)
        self._mesh = in_force(self._mesh, document) if document else {}
        return changes

    def written(self, step: Step) -> list[Change]:
        """What controllers, which no test here runs, write into statuses after the step: the case says the result. So
        what follows from it is checked, and that it is written is not."""
        changes = []
        for key, status in (step.expect.get("status") or {}).items():
            of_kind, of_namespace, named = key.split("/")
            former = self._stored.get((of_kind, of_namespace, named))
            if (
                former is not None
                and "addresses" in status
                and dig(former, "status", "addresses") != status["addresses"]
            ):
                kept = {**(former.get("status") or {}), "addresses": status["addresses"]}
                changes.append(Change(ref_of(former), self._put({**former, "status": kept})))
        return changes

    def stored(self) -> Mapping[Ref, Manifest]:
        """All objects as they are in the API server."""
        return self._stored

    def manifests(self) -> list[Manifest]:
        """All objects in their last good version, the mesh configuration as it is in force."""
        mesh_ref = ("ConfigMap", SYSTEM_NAMESPACE, config_map_name(self._revision))
        held = [manifest for ref, manifest in self._usable.items() if ref != mesh_ref]
        if mesh_ref in self._usable:
            held.append({**self._usable[mesh_ref], "data": {"mesh": yaml.safe_dump(dict(self._mesh or {}))}})
        return held

    def _put(self, manifest: Manifest) -> Manifest:
        ref = ref_of(manifest)
        stored = defaulted(manifest)
        former = self._stored.get(ref)
        if former is not None:
            if "status" not in stored and "status" in former:
                stored["status"] = former["status"]
            for field in ("uid", "creationTimestamp"):
                if dig(former, "metadata", field) is not None:
                    stored["metadata"].setdefault(field, former["metadata"][field])
        self._stored[ref] = stored
        if is_usable(stored):
            self._usable[ref] = stored
        return stored


def _namespace(named: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": named}}


def is_usable(manifest: Manifest) -> bool:
    """Whether the object can be read as a whole. One that cannot keeps its last good version (policies.md 12)."""
    match kind(manifest):
        case "AuthorizationPolicy":
            return dig(manifest, "spec", "action") in (None, "ALLOW", "DENY", "AUDIT", "CUSTOM")
        case "PeerAuthentication":
            modes = [dig(value, "mode") for value in (dig(manifest, "spec", "portLevelMtls") or {}).values()]
            known = (None, "UNSET", "DISABLE", "PERMISSIVE", "STRICT")
            return all(mode in known for mode in [dig(manifest, "spec", "mtls", "mode"), *modes])
    return True


def comparable(golden: Any) -> Any:
    """A message in golden form with every IP in its one canonical text."""
    if isinstance(golden, Mapping):
        return {
            field: _addresses(value) if field in ("address", "addresses") else comparable(value)
            for field, value in golden.items()
        }
    if isinstance(golden, Sequence) and not isinstance(golden, str):
        return [comparable(element) for element in golden]
    return golden


def _addresses(value: Any) -> Any:
    if isinstance(value, str):
        return ip.canonical(value)
    if isinstance(value, Sequence):
        return [_addresses(element) for element in value]
    return comparable(value)


def golden(message: Any) -> dict[str, Any]:
    """A protobuf message in golden form."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {key: _single(of_value, value[key]) for key in value}
    if field.is_repeated:
        return [_single(field, element) for element in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return golden(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    # All bytes of these messages are addresses.
    return ip.from_bytes(value) if isinstance(value, bytes) else value


@dataclass(frozen=True)
class Served:
    """What a ztunnel holds at one moment: address and authorization by name, each in a form that can be compared."""

    address: Mapping[str, Any]
    authorization: Mapping[str, Any]


def differences(served: Served, expect: Mapping[str, Any]) -> list[str]:
    """Where the served set is not the expected one, one line each; empty when it is."""
    lines = []
    for field in ("address", "authorization"):
        if field not in expect:
            continue
        have = {key: comparable(value) for key, value in getattr(served, field).items()}
        want = {key: comparable(value) for key, value in expect[field].items()}
        lines += [f"{field} {key}: missing" for key in sorted(want.keys() - have.keys())]
        lines += [f"{field} {key}: not expected, {have[key]}" for key in sorted(have.keys() - want.keys())]
        for key in sorted(have.keys() & want.keys()):
            if have[key] != want[key]:
                lines += [f"{field} {key}: {line}" for line in _differing(have[key], want[key], "")]
    return lines


OWNED = frozenset(
    {
        "istio.io/WaypointBound",
        "istio.io/WaypointMissing",
        "istio.io/VisibilityApplied",
        "ZtunnelAccepted",
        "WaypointAccepted",
    }
)
"""Types of conditions that a control plane writes. Those of others stay on the object as they are."""

_LISTED_OR_BARE = ("Service", "ServiceEntry", "WorkloadEntry")
"""Kinds of which every object that a step does not list has no condition."""

Conditions = Mapping[str, Sequence[Mapping[str, Any]]]
"""By `Kind/namespace/name`: conditions with the fields that they have in an object."""


def wrong_conditions(deserved: Conditions, case: Case, number: int, cluster: Cluster) -> list[str]:
    """Where objects do not get the conditions that they must have after a step, counted from 1; one line each.
    `deserved`: those of every object that is to have any."""
    step = case.steps[number - 1]
    present = {"/".join(ref): manifest for ref, manifest in cluster.stored().items()}
    lines = [f"status {key}: there is no such object" for key in sorted(deserved.keys() - present.keys())]
    for key, expected in _expected_conditions(case, number, present).items():
        manifest = present[key]
        foreign = [each for each in entries(manifest, "status", "conditions") if each["type"] not in OWNED]
        has_generation = dig(manifest, "metadata", "generation") is not None
        have = _by_type([*foreign, *deserved.get(key, ())], has_generation)
        want = _by_type(expected, has_generation)
        if have != want:
            lines += [f"status {key}: {line}" for line in _differing(have, want, "")]
    for key, texts in (step.fields.get("message_contains") or {}).items():
        messages = [str(each["message"]) for each in deserved.get(key, ())]
        if not any(all(text in message for text in texts) for message in messages):
            lines.append(f"status {key}: no message names {texts}: {messages}")
    return lines


def _expected_conditions(case: Case, number: int, present: Mapping[str, Manifest]) -> dict[str, Sequence[Any]]:
    """What must be on the objects after a step, of those that the case has something to say about."""
    step = case.steps[number - 1]
    if "status" not in step.expect:
        return {}
    listed = step.expect["status"] or {}
    # Where policies are the subject, other kinds were not written down.
    bare = () if case.id.startswith("policies-") else _LISTED_OR_BARE
    expected: dict[str, Sequence[Any]] = {key: () for key, manifest in present.items() if kind(manifest) in bare}
    for key, status in listed.items():
        if key.split("/")[0] not in (*_LISTED_OR_BARE, "AuthorizationPolicy"):
            continue
        expected[key] = status.get("conditions") or ()
        if "conditions" not in status and "differs" in step.fields:
            # Written by hand, for its addresses.
            del expected[key]
    stale = _failures()["stale_conditions"].get(case.id) or {}
    return {**expected, **{key: () for key in stale.get(number) or ()}}


def _by_type(conditions: Sequence[Mapping[str, Any]], has_generation: bool) -> dict[str, Any]:
    fields = ("status", "reason", *(("observedGeneration",) if has_generation else ()))
    return {each["type"]: {field: each.get(field) for field in fields} for each in conditions}


def _differing(have: Any, want: Any, path: str) -> Iterator[str]:
    if isinstance(have, Mapping) and isinstance(want, Mapping):
        for field in sorted(have.keys() | want.keys()):
            if have.get(field) != want.get(field):
                yield from _differing(have.get(field), want.get(field), f"{path}.{field}" if path else str(field))
    else:
        yield f"{path} is {have!r}, expected {want!r}"


def pushed(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names that a step sends and removes, by the fields of `expect.pushed`. `before` and `after` hold, by `address`
    and `authorization`, something per name that is equal exactly if nothing has to be sent."""
    names: dict[str, list[str]] = {}
    for field in ("address", "authorization"):
        old, new = before[field], after[field]
        names[field] = sorted(key for key in new if key not in old or old[key] != new[key])
        names[f"removed_{field}"] = sorted(key for key in old if key not in new)
    return {field: changed for field, changed in names.items() if changed}


def expected_pushed(step: Step) -> dict[str, list[str]] | None:
    """What `pushed` must give for the step; None when the case does not say."""
    if "pushed" not in step.expect:
        return None
    return {field: sorted(changed) for field, changed in (step.expect["pushed"] or {}).items() if changed}

"""What sources emit, the same from every kind of source (design: Events). The state of the world is a function of the
events alone; the last good version of an invalid object is part of it. Must not hold state."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ambientd.resources.faults import Fault
from ambientd.resources.kinds import Object
from ambientd.resources.ref import ClusterId, Ref


class Put(Struct, frozen=True):
    """This object is now so."""

    object: Object
    resource_version: str = ""
    seen_s: float = 0.0
    """When the source saw it, seconds of its clock; 0 when it does not tell."""
    faults: tuple[Fault, ...] = ()
    """What was wrong with parts of it that were left out; the object itself is good."""

    @property
    def ref(self) -> Ref:
        return self.object.ref


class Delete(Struct, frozen=True):
    """This object is gone; also ends what was reported of it."""

    ref: Ref
    resource_version: str = ""
    seen_s: float = 0.0


class Invalid(Struct, frozen=True):
    """This object exists and cannot be used. Its last good version stays in force, if there is one. A ref of kind
    `File` stands for a file, and carries what is wrong with the file itself or with things in it that have no ref."""

    ref: Ref
    faults: tuple[Fault, ...]
    resource_version: str = ""
    seen_s: float = 0.0


class Replace(Struct, frozen=True):
    """All objects of one kind in one cluster, as a list gave them; what is held and not among them is gone."""

    cluster: ClusterId
    kind: str
    objects: tuple[Put | Invalid, ...]


class Synced(Struct, frozen=True):
    """Everything of this kind that existed at the start was emitted."""

    cluster: ClusterId
    kind: str


class Absent(Struct, frozen=True):
    """The kind does not exist in this cluster, and that is certain: it counts as listed and empty."""

    cluster: ClusterId
    kind: str


Event = Put | Delete | Invalid | Replace | Synced | Absent

Emit = Callable[[list[Event]], None]
"""Takes one batch of events, which belong together."""

"""What is wrong with an object, in words that name the field, the rule, what came and what follows (operations.md 14;
policies.md 12). Must not decide what follows: whoever finds the fault says it."""

from __future__ import annotations

from msgspec import Struct


class Fault(Struct, frozen=True, order=True, gc=False):
    """One thing that is wrong with one object or file."""

    path: str
    """Field path such as `spec.rules[0].to[1].operation.ports[0]`; for a file `line 12`; empty: the object itself."""
    rule: str
    """What the field must be: `must be an IP address or a CIDR`."""
    got: str
    """What came, quoted and shortened; empty when nothing did."""
    effect: str
    """What follows: `this value is left out`."""
    remedy: str = ""
    """What to do, where it is not plain from the rule."""

    def __str__(self) -> str:
        text = f"{self.path} {self.rule}" if self.path else self.rule
        if self.got:
            text += f", got {self.got}"
        if self.effect:
            text += f"; {self.effect}"
        if self.remedy:
            text += f"; {self.remedy}"
        return text


class Undecodable(Exception):
    """An object that cannot be used at all; carries its faults."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults


def quote(value: object, limit: int = 60) -> str:
    """A value as it may stand in a fault: quoted, and cut at `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"

"""When an address may change relative to the policies of the same round, so that after every single message nothing is
allowed that neither the state before nor the state after allows (policies.md 13; design, Order of a round). Pure.

A client applies one message at once. All policies whose change could be felt by anybody (they are in force by scope, or
listed) therefore change in one message, the *main* one; new selector policies go before it and removed ones after the
addresses, where nobody feels them. What is left is to choose, for each workload whose list changes, whether it changes
before the main message or after it. Where neither is safe it changes twice: before the main message to a form that
lists its old and its new policies, or, where that is not safe either, to one that lists the *hold*, a policy that
denies everything; after the main message to its final form.

The judge is a sufficient condition on sets of policy contents, so a safe choice is never a guess: a state is no more
permissive than a reference when it has all the reference's denials and, where the reference has allowances, some of
those and no others."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from msgspec import Struct

from ambientd.push.views import PolicyState
from ambientd_api.security_pb2 import DENY, GLOBAL, NAMESPACE, WORKLOAD_SELECTOR


class Unknown(Enum):
    """A client holds something of this name, and what it says is not known here."""

    UNKNOWN = auto()


UNKNOWN = Unknown.UNKNOWN

Listed = tuple[str, ...] | None | Unknown
"""The policies that a workload lists; None: the workload does not exist."""
Content = PolicyState | None | Unknown


class When(Enum):
    """When a workload changes, relative to the main message."""

    BEFORE = auto()
    AFTER = auto()
    BOTH = auto()
    """Twice: before it to a form that lists what it listed and what it will list, after it to its final form."""
    HELD = auto()
    """Twice: before it to a form that admits nobody, after it to its final form."""


class PolicyChange(Struct, frozen=True):
    """A policy that differs between the client's state and the new one."""

    name: str
    namespace: str
    old: Content
    new: PolicyState | None


class Plan(Struct, frozen=True):
    """The policies of a round by their messages: what nobody feels before, the main message, what nobody feels
    after."""

    first: tuple[PolicyChange, ...]
    main: tuple[PolicyChange, ...]
    last: tuple[PolicyChange, ...]


def plan_policies(changes: list[PolicyChange]) -> Plan:
    """Sorts policy changes into the three messages."""
    first: list[PolicyChange] = []
    main: list[PolicyChange] = []
    last: list[PolicyChange] = []
    for change in changes:
        if change.old is None and change.new is not None and change.new.scope == WORKLOAD_SELECTOR:
            first.append(change)
        elif change.new is None and (change.old is UNKNOWN or _is_selector(change.old)):
            # Of an unknown policy that is gone: whoever lists it still does until its address was sent.
            last.append(change)
        else:
            main.append(change)
    return Plan(tuple(first), tuple(main), tuple(last))


def _is_selector(content: Content) -> bool:
    return isinstance(content, PolicyState) and content.scope == WORKLOAD_SELECTOR


class _Moment(Enum):
    """Before a round; after its first message; after the main one; after the last one."""

    OLD = auto()
    BEFORE = auto()
    AFTER = auto()
    NEW = auto()


class _Force(Struct, frozen=True):
    """The policies that are in force for a workload, by what they say."""

    denies: frozenset[tuple[str, str]]
    allows: frozenset[tuple[str, str]]


_NOBODY = "nobody"
_Effect = _Force | str | None
"""What a workload is under: policies; `_NOBODY`: it does not exist, so nothing reaches it; None: not known."""


class Judge:
    """Decides for the workloads of one round. `unchanged` gives a policy that does not change in it, by name; `scoped`
    those of them that are in force by scope in a namespace, the global ones included."""

    def __init__(
        self,
        plan: Plan,
        unchanged: Callable[[str], PolicyState | None],
        scoped: Callable[[str], list[tuple[str, PolicyState]]],
    ) -> None:
        self._unchanged = unchanged
        self._scoped = scoped
        is_unknown_until_main = any(change.old is UNKNOWN for change in plan.main)
        # Of a policy that is gone and unknown, nobody can say what it did in the old state. Its removal comes last, and
        # until then it has its say, whatever it is: nothing that is known here is safe from that.
        is_unknown_at_first = is_unknown_until_main or any(change.old is UNKNOWN for change in plan.last)
        self._unknown_moments = {
            moment
            for moment, is_unknown in ((_Moment.OLD, is_unknown_at_first), (_Moment.BEFORE, is_unknown_until_main))
            if is_unknown
        }
        changes = {change.name: change for part in (plan.first, plan.main, plan.last) for change in part}
        self._changes = changes
        self._changed_in_place = {c.name for c in plan.main if c.old is not None and c.new is not None}
        mains, lasts = {change.name for change in plan.main}, {change.name for change in plan.last}
        # What a changed policy says at each moment of a round.
        self._contents: dict[_Moment, dict[str, Content]] = {
            _Moment.OLD: {n: c.old for n, c in changes.items()},
            _Moment.BEFORE: {n: c.old if n in mains or n in lasts else c.new for n, c in changes.items()},
            _Moment.AFTER: {n: c.old if n in lasts else c.new for n, c in changes.items()},
            _Moment.NEW: {n: c.new for n, c in changes.items()},
        }
        self._memory: dict[tuple[object, object, str], When] = {}

    @property
    def prefers_before(self) -> bool:
        """Where both are safe: policies that change go after addresses, policies that are new go before them."""
        return bool(self._changed_in_place)

    def when(self, namespace: str, old: Listed, new: tuple[str, ...]) -> When:
        """When a workload whose list goes from `old` to `new` changes. Equal questions are answered once."""
        key = (old, new, namespace)
        answer = self._memory.get(key)
        if answer is None:
            answer = self._memory[key] = self._decide(namespace, old, new)
        return answer

    def _decide(self, namespace: str, old: Listed, new: tuple[str, ...]) -> When:
        from_state = self._effect(namespace, old, _Moment.OLD)
        to_state = self._effect(namespace, new, _Moment.NEW)
        ways: dict[When, tuple[tuple[Listed, _Moment], ...]] = {
            When.BEFORE: ((new, _Moment.BEFORE), (new, _Moment.AFTER)),
            When.AFTER: ((old, _Moment.AFTER), (new, _Moment.AFTER)),
        }
        if isinstance(old, tuple):
            both = (*new, *extra_listing(old, new))
            ways[When.BOTH] = ((both, _Moment.BEFORE), (both, _Moment.AFTER), (new, _Moment.AFTER))
        newly = set(new) - set(old if isinstance(old, tuple) else ())
        is_before_first = self.prefers_before and not newly & self._changed_in_place
        once = (When.BEFORE, When.AFTER) if is_before_first else (When.AFTER, When.BEFORE)
        for when in (*once, When.BOTH) if When.BOTH in ways else once:
            states = (self._effect(namespace, listed, moment) for listed, moment in ways[when])
            if all(_is_safe(state, from_state, to_state) for state in states):
                return when
        return When.HELD

    def _effect(self, namespace: str, listed: Listed, moment: _Moment) -> _Effect:
        if listed is None:
            return _NOBODY
        if listed is UNKNOWN or moment in self._unknown_moments:
            return None
        assert isinstance(listed, tuple)
        contents = self._contents[moment]
        in_force: dict[str, Content] = dict(self._scoped(namespace))
        for name, content in contents.items():
            if isinstance(content, PolicyState) and _reaches(content, self._changes[name].namespace, namespace):
                in_force[name] = content
        for name in listed:
            in_force[name] = contents[name] if name in contents else self._unchanged(name)
        denies: set[tuple[str, str]] = set()
        allows: set[tuple[str, str]] = set()
        for name, content in in_force.items():
            if isinstance(content, PolicyState) and not content.is_dry_run:
                (denies if content.action == DENY else allows).add((name, content.rules))
            elif content is UNKNOWN:
                return None
        return _Force(frozenset(denies), frozenset(allows))


def extra_listing(old: Listed, new: tuple[str, ...]) -> tuple[str, ...]:
    """What a form that lists both lists more than the new one."""
    return tuple(name for name in old if name not in new) if isinstance(old, tuple) else ()


def _reaches(content: PolicyState, policy_namespace: str, namespace: str) -> bool:
    return content.scope == GLOBAL or (content.scope == NAMESPACE and policy_namespace == namespace)


def _is_safe(state: _Effect, old: _Effect, new: _Effect) -> bool:
    """Whether `state` admits nothing that neither `old` nor `new` admits."""
    if state == _NOBODY:
        return True
    if not isinstance(state, _Force):
        return False
    if isinstance(old, _Force) and _is_stricter(state, old):
        return True
    if isinstance(new, _Force) and _is_stricter(state, new):
        return True
    if not isinstance(old, _Force) or not isinstance(new, _Force):
        return False
    if not state.denies >= old.denies | new.denies:
        return False
    return not old.allows or not new.allows or (bool(state.allows) and state.allows <= old.allows | new.allows)


def _is_stricter(state: _Force, than: _Force) -> bool:
    if not state.denies >= than.denies:
        return False
    return not than.allows or (bool(state.allows) and state.allows <= than.allows)

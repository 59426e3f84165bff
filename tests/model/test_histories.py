"""That the random histories are what the oracle needs: repeatable, and full of meetings."""

from __future__ import annotations

from tests.model.histories import KINDS, Histories
from tests.model.manifests import Manifest, Ref
from tests.model.model import expected

SOURCES = ("//Pod/", "/WorkloadEntry/", "/ServiceEntry/", "/EndpointSlice/", "NetworkGateway/")
WANTED = {
    *KINDS, *SOURCES, "services", "waypoint", "weighted_waypoints", "application_tunnel", "authorization_policies",
    "locality", "network_gateway", "native_tunnel", "hostname", "capacity", "network_mode", "status", "load_balancing",
    "canonical", "visibility", "subject_alt_names", "ingress_use_waypoint", "GLOBAL", "NAMESPACE", "WORKLOAD_SELECTOR",
    "dry_run", "istio", "converted",
}  # fmt: skip


def test_the_same_seed_gives_the_same_history() -> None:
    one, other = Histories(7), Histories(7)
    assert [one.batch() for _ in range(30)] == [other.batch() for _ in range(30)]
    assert one.environment == other.environment


def test_the_state_is_what_the_changes_leave() -> None:
    histories = Histories(11)
    held: dict[Ref, Manifest] = {}
    for _ in range(200):
        for change in histories.batch():
            if change.manifest is None:
                del held[change.ref]
            else:
                held[change.ref] = change.manifest
        assert held == histories.state


def test_fewer_kinds_give_only_these() -> None:
    histories = Histories(3, kinds=("Pod", "Service"))
    kinds = {change.ref[0] for _ in range(60) for change in histories.batch()}
    assert kinds == {"Pod", "Service"}


def test_histories_reach_the_rules_that_need_several_objects() -> None:
    seen: set[str] = set()
    for seed in range(8):
        histories = Histories(seed)
        for number in range(120):
            seen |= {change.ref[0] for change in histories.batch()}
            if number % 8:
                continue
            world = expected(list(histories.state.values()), histories.environment)
            for primary, address in world.addresses.items():
                seen |= (address.get("workload") or address["service"]).keys()
                seen |= {source for source in SOURCES if source in primary}
            for primary, authorization in world.authorizations.items():
                seen |= {authorization.get("scope", "GLOBAL"), primary.partition("/")[2].partition("_")[0]}
                seen |= {"dry_run"} & authorization.keys()
    assert not WANTED - seen

"""The roots in every namespace: which are written, which are left, and what a refusal means (ca.md 13.3 to 13.5; table
21.6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from ambientd.ca.distribution import CRL_KEY, LEFT_OUT, ROOT_KEY, Distributor, Wanted
from ambientd.kube.api import Api
from ambientd.kube.errors import ApiError, Forbidden, NotFound, Refused, Unreachable
from ambientd.resources.core import Namespace
from ambientd.resources.events import Delete, Put, Replace
from ambientd.resources.mesh import LabelSelector
from ambientd.resources.ref import Ref
from tests.unit.config_maps import DEEP, ConfigMaps
from tests.unit.patience import until

ROOTS, CRL = "istio-ca-root-cert", "istio-ca-crl"
ONE, OTHER = "one root\n", "another root\n"


def found(name: str, **labels: str) -> Put:
    return Put(Namespace(Ref("Kubernetes", "Namespace", "", name), tuple(sorted(labels.items())), ()))


def gone(name: str) -> Delete:
    return Delete(Ref("Kubernetes", "Namespace", "", name))


class Distributing:
    """A distributor at work."""

    def __init__(self) -> None:
        self.cluster = ConfigMaps()
        self.selectors: tuple[LabelSelector, ...] = ()
        self.distributor = Distributor(
            cast("Api", self.cluster), selectors=lambda: self.selectors, dice=random.Random(1)
        )
        self.task = asyncio.create_task(self.distributor.run([ROOTS, CRL]))

    def want(self, roots: str) -> None:
        self.distributor.want(ROOTS, Wanted(ROOT_KEY, roots))

    async def until_held(self, roots: str, *namespaces: str) -> None:
        await until(lambda: all(self.cluster.data(ROOTS).get(each, {}).get(ROOT_KEY) == roots for each in namespaces))

    async def rest(self) -> None:
        """Long enough for what is at once."""
        await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def at_work() -> AsyncIterator[Distributing]:
    made = Distributing()
    yield made
    made.task.cancel()
    await asyncio.wait([made.task])


async def test_every_namespace_has_the_roots_but_three(at_work: Distributing) -> None:
    at_work.distributor.apply([found(each) for each in ("shop", "kube-system", *LEFT_OUT)])
    at_work.want(ONE)
    await at_work.until_held(ONE, "shop", "kube-system")
    await at_work.rest()
    assert at_work.cluster.data(ROOTS) == {"shop": {ROOT_KEY: ONE}, "kube-system": {ROOT_KEY: ONE}}
    assert at_work.cluster.held["shop", ROOTS]["metadata"]["labels"] == {"istio.io/config": "true"}
    assert {"kube-public", "kube-node-lease", "local-path-storage"} == LEFT_OUT
    assert at_work.distributor.missing() == 0


async def test_an_empty_bundle_is_never_written(at_work: Distributing) -> None:
    at_work.distributor.apply([found("shop")])
    with pytest.raises(ValueError, match="empty"):
        at_work.want("")
    await at_work.rest()
    assert at_work.cluster.writes == []


async def test_a_list_of_nothing_is_written_and_then_the_list(at_work: Distributing) -> None:
    at_work.distributor.apply([found("shop")])
    for value in ("", "a list\n"):
        at_work.distributor.want(CRL, Wanted(CRL_KEY, value))
        await until(lambda value=value: at_work.cluster.data(CRL) == {"shop": {CRL_KEY: value}})  # type: ignore[misc]
    assert at_work.cluster.data(ROOTS) == {}


async def test_what_is_too_large_for_a_config_map_is_said_and_the_former_stays(at_work: Distributing) -> None:
    at_work.distributor.apply([found("shop")])
    at_work.distributor.want(CRL, Wanted(CRL_KEY, "a list\n"))
    await until(lambda: at_work.cluster.data(CRL) != {})
    with capture_logs() as logs:
        at_work.distributor.want(CRL, Wanted(CRL_KEY, "x" * ((1 << 20) + 1)))
    await at_work.rest()
    assert at_work.cluster.data(CRL) == {"shop": {CRL_KEY: "a list\n"}}
    assert [entry["log_level"] for entry in logs] == ["error"]


async def test_only_what_differs_is_written_and_the_rest_of_a_config_map_stays(at_work: Distributing) -> None:
    at_work.cluster.put("right", ROOTS, {ROOT_KEY: ONE, "other": "x"})
    at_work.cluster.put("wrong", ROOTS, {ROOT_KEY: OTHER, "other": "x"}, labels={"owner": "somebody"})
    at_work.distributor.apply([found("right"), found("wrong")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "wrong")
    at_work.cluster.put("right", ROOTS, {ROOT_KEY: ONE, "other": "y"})
    at_work.cluster.put("right", "another", {ROOT_KEY: OTHER})
    await at_work.rest()
    assert at_work.cluster.writes == [("PUT", "wrong")]
    assert at_work.cluster.data(ROOTS)["wrong"] == {ROOT_KEY: ONE, "other": "x"}
    assert at_work.cluster.held["wrong", ROOTS]["metadata"]["labels"] == {"owner": "somebody"}


async def test_nothing_is_written_before_it_is_known_what_is_there(at_work: Distributing) -> None:
    at_work.cluster.trouble_with_lists = Unreachable("nobody answered")
    at_work.cluster.put("right", ROOTS, {ROOT_KEY: ONE})
    at_work.distributor.apply([found("right"), found("new")])
    at_work.want(ONE)
    await at_work.rest()
    assert at_work.cluster.writes == []
    at_work.cluster.trouble_with_lists = None
    await at_work.until_held(ONE, "new")
    assert at_work.cluster.writes == [("POST", "new")]


async def test_who_writes_other_roots_again_and_again_meets_ever_fewer_of_ours(at_work: Distributing) -> None:
    at_work.distributor.apply([found("shop")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "shop")
    for _ in range(100):
        if at_work.cluster.data(ROOTS)["shop"][ROOT_KEY] == ONE:
            at_work.cluster.put("shop", ROOTS, {ROOT_KEY: OTHER})
        await asyncio.sleep(0.02)
    assert 1 <= at_work.cluster.writes.count(("PUT", "shop")) <= 2


async def test_an_edit_and_a_deletion_are_put_right_also_after_a_gap_in_the_watch(at_work: Distributing) -> None:
    at_work.distributor.apply([found("shop")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "shop")
    at_work.cluster.delete("shop", ROOTS)
    await at_work.until_held(ONE, "shop")
    at_work.cluster.end_watches(ROOTS)
    del at_work.cluster.held["shop", ROOTS]
    await at_work.until_held(ONE, "shop")


async def test_an_update_that_is_forbidden_is_tried_again(at_work: Distributing) -> None:
    at_work.cluster.put("shop", ROOTS, {ROOT_KEY: OTHER})
    at_work.cluster.refusals["shop"] = [Forbidden("PUT: we may not")]
    at_work.distributor.apply([found("shop")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "shop")
    assert at_work.cluster.writes == [("PUT", "shop")] * 2


async def test_a_value_that_stands_as_binary_data_is_replaced(at_work: Distributing) -> None:
    at_work.cluster.put("shop", ROOTS, {"other": "x"})
    at_work.cluster.held["shop", ROOTS]["binaryData"] = {ROOT_KEY: "eA==", "more": "eA=="}
    at_work.distributor.apply([found("shop")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "shop")
    assert at_work.cluster.binary == {"more": "eA=="}


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_what_happens_while_a_write_is_being_answered_is_put_right(
    at_work: Distributing, is_deleted: bool
) -> None:
    at_work.cluster.answers_after_s = 0.2
    at_work.distributor.apply([found("shop")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "shop")
    if is_deleted:
        at_work.cluster.delete("shop", ROOTS)
    else:
        at_work.cluster.put("shop", ROOTS, {ROOT_KEY: OTHER})
    await at_work.until_held(ONE, "shop")
    await until(lambda: at_work.distributor.missing() == 0)


async def test_a_config_map_that_is_nested_very_deeply_is_one_like_others(at_work: Distributing) -> None:
    """Whoever may write one in any namespace can have an API server keep such fields with it."""
    for namespace in ("deep", "shop"):
        fields = DEEP if namespace == "deep" else {}
        at_work.cluster.put(namespace, ROOTS, {"other": "x"}, managedFields=[{"manager": "m", "fieldsV1": fields}])
        at_work.distributor.apply([found(namespace)])
    at_work.want(ONE)
    await at_work.until_held(ONE, "deep", "shop")
    assert at_work.cluster.data(ROOTS)["deep"] == {"other": "x", ROOT_KEY: ONE}


@pytest.mark.parametrize(
    "refusal",
    [
        Forbidden("POST: we may not"),
        Forbidden("POST: unable to create new content in namespace bad because it is being terminated"),
        NotFound("POST: there is no namespace"),
    ],
)
async def test_a_namespace_that_refuses_is_left_until_something_changes(
    at_work: Distributing, refusal: ApiError
) -> None:
    at_work.cluster.refusals["bad"] = [refusal]
    at_work.distributor.apply([found("bad"), found("good")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "good")
    await asyncio.sleep(0.7)
    assert at_work.cluster.writes.count(("POST", "bad")) == 1
    assert (at_work.distributor.failures, at_work.distributor.missing()) == (0, 1)
    at_work.distributor.apply([found("bad", new="label")])
    await at_work.until_held(ONE, "bad")


@pytest.mark.parametrize("refusal", [Unreachable("nobody answered"), Refused("internal error", status=500)])
async def test_what_fails_is_tried_again_by_itself(at_work: Distributing, refusal: ApiError) -> None:
    at_work.cluster.refusals["bad"] = [refusal, refusal]
    at_work.distributor.apply([found("bad"), found("good")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "bad", "good")
    assert at_work.cluster.writes.count(("POST", "bad")) == 3
    assert at_work.distributor.failures == 2


@pytest.mark.parametrize(("theirs", "writes"), [(ONE, ["POST"]), (OTHER, ["POST", "PUT"])])
async def test_somebody_who_is_faster_has_written_what_we_would_or_is_put_right(
    at_work: Distributing, theirs: str, writes: list[str]
) -> None:
    create = at_work.cluster.send

    async def send_too_late(method: str, *arguments: str, **others: object) -> bytes:
        if method == "POST":
            at_work.cluster.put("shop", ROOTS, {ROOT_KEY: theirs})
        return await create(method, *arguments, **others)  # type: ignore[arg-type]

    at_work.cluster.send = send_too_late  # type: ignore[method-assign]
    at_work.want(ONE)
    at_work.distributor.apply([found("shop")])
    await until(lambda: bool(at_work.cluster.writes))
    await at_work.until_held(ONE, "shop")
    await at_work.rest()
    assert [method for method, _ in at_work.cluster.writes] == writes


async def test_a_namespace_that_goes_and_comes_back_has_the_roots_again_and_leaves_nothing(
    at_work: Distributing,
) -> None:
    at_work.distributor.apply([found("shop"), found("till")])
    at_work.want(ONE)
    for _ in range(2):
        await at_work.until_held(ONE, "shop")
        at_work.cluster.delete("shop", ROOTS)
        at_work.distributor.apply([gone("shop")])
        await at_work.rest()
        assert "shop" not in at_work.cluster.data(ROOTS)
        assert "shop" not in repr(vars(at_work.distributor))
        at_work.distributor.apply([found("shop")])
    await at_work.until_held(ONE, "shop")
    at_work.distributor.apply([Replace("Kubernetes", "Namespace", (found("till"),))])
    at_work.cluster.delete("shop", ROOTS)
    await at_work.rest()
    assert "shop" not in repr(vars(at_work.distributor))


async def test_a_namespace_that_is_discovered_no_longer_keeps_what_it_has(at_work: Distributing) -> None:
    at_work.selectors = (LabelSelector((("mesh", "yes"),)),)
    at_work.distributor.apply([found("in", mesh="yes"), found("out")])
    at_work.want(ONE)
    await at_work.until_held(ONE, "in")
    at_work.distributor.apply([found("in"), found("out", mesh="yes")])
    await at_work.until_held(ONE, "out")
    at_work.want(OTHER)
    await at_work.until_held(OTHER, "out")
    assert at_work.cluster.data(ROOTS)["in"] == {ROOT_KEY: ONE}

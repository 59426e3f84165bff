"""The instrument itself: that a difference is seen, and that objects are kept as an API server keeps them."""

from __future__ import annotations

from typing import Any

from ambientd_api.security_pb2 import DENY, Authorization
from ambientd_api.workload_pb2 import Address
from tests.cases.loader import Case, Cluster, Served, Step, case_ids, differences, golden, load, pushed

SERVED = Served(
    address={"shop/a.test": {"service": {"addresses": [{"network": "n", "address": "fd00::1"}], "ports": [1, 2]}}},
    authorization={},
)


def expecting(service: dict[str, Any]) -> dict[str, Any]:
    return {"address": {"shop/a.test": {"service": service}}, "authorization": {}}


def test_spellings_of_one_address_are_equal() -> None:
    wanted = {"addresses": [{"network": "n", "address": "FD00:0::0:1"}], "ports": [1, 2]}
    assert differences(SERVED, expecting(wanted)) == []


def test_order_and_extra_fields_are_differences() -> None:
    wanted = {"addresses": [{"network": "n", "address": "fd00::1"}], "ports": [2, 1], "canonical": True}
    assert differences(SERVED, expecting(wanted)) == [
        "address shop/a.test: service.canonical is None, expected True",
        "address shop/a.test: service.ports is [1, 2], expected [2, 1]",
    ]


def test_what_is_missing_and_what_is_too_much_are_differences() -> None:
    found = differences(Served({}, {"shop/p": {"name": "p"}}), {"address": {"x": {}}, "authorization": {}})
    assert found == ["address x: missing", "authorization shop/p: not expected, {'name': 'p'}"]


def test_what_a_step_sends_and_removes() -> None:
    before = {"address": {"a": "1", "b": "1", "c": "1"}, "authorization": {"p": "1"}}
    after = {"address": {"a": "1", "b": "2", "d": "1"}, "authorization": {"p": "1"}}
    assert pushed(before, after) == {"address": ["b", "d"], "removed_address": ["c"]}


def test_a_message_in_golden_form_keeps_what_has_presence() -> None:
    address = Address()
    address.workload.uid = "u"
    address.workload.addresses.append(bytes([10, 0, 0, 1]))
    address.workload.services["shop/a.test"].SetInParent()
    address.workload.application_tunnel.SetInParent()
    address.workload.capacity.value = 3
    policy = Authorization(action=DENY)
    policy.groups.add().rules.add().matches.add().not_principals.add().presence.SetInParent()
    assert golden(address) == {
        "workload": {
            "uid": "u",
            "addresses": ["10.0.0.1"],
            "services": {"shop/a.test": {}},
            "application_tunnel": {},
            "capacity": {"value": 3},
        }
    }
    assert golden(policy) == {
        "action": "DENY",
        "groups": [{"rules": [{"matches": [{"not_principals": [{"presence": {}}]}]}]}],
    }


def pod(labels: dict[str, str], **status: Any) -> dict[str, Any]:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "shop", "labels": labels}}
    return {**manifest, "status": status} if status else manifest


def test_a_status_stays_until_another_comes() -> None:
    cluster = Cluster(Case("x", {"REVISION": "default"}, exists_at_start=False, steps=(), fields={}))
    held = []
    for manifest in (pod({"app": "x"}, podIP="10.0.0.1"), pod({"app": "y"}), pod({"app": "y"}, podIP="10.0.0.2")):
        cluster.play(Step(apply=[manifest], delete=(), expect={}, fields={}))
        held += [each for each in cluster.manifests() if each["kind"] == "Pod"]
    assert [each["metadata"]["labels"]["app"] for each in held] == ["x", "y", "y"]
    assert [each["status"]["podIP"] for each in held] == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]


def test_every_case_is_named_after_its_file_and_says_what_it_expects() -> None:
    silent = [each for each in case_ids() if not any(step.expect for step in load(each).steps)]
    assert silent == []

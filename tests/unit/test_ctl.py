"""What `ambientctl` prints: tables that are readable at a glance, changes in words, records for machines."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse, Resource
from google.protobuf.any_pb2 import Any as AnyMessage
from typer.testing import CliRunner

from ambientd.ctl import snapshot, tables, watching
from ambientd.ctl.connection import Connected, Disconnected, Happened, Received
from ambientd.ctl.differences import differences
from ambientd.ctl.main import cli
from ambientd.ctl.ztunnel import ADDRESS, AUTHORIZATION, SimulatedZtunnel
from ambientd_api.security_pb2 import Authorization, Scope
from ambientd_api.workload_pb2 import Address, Service, Workload

SHOP = Path(__file__).parents[2] / "examples" / "shop"
EVERYTHING = frozenset({"workload", "service", "policy"})
POD = "Kubernetes//Pod/shop/cart-0"


def run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(cli, arguments, env={"COLUMNS": "240"})
    assert result.exit_code == exit_code, result.output
    return result.stdout if exit_code == 0 else result.stderr


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {}, []),
        ({"status": "HEALTHY"}, {"status": "UNHEALTHY"}, ["status HEALTHY → UNHEALTHY"]),
        ({}, {"node": "a"}, ["node - → a"]),
        ({"policies": ["a", "b"]}, {"policies": ["b", "c"]}, ["policies -a +c"]),
        ({"policies": ["a", "b"]}, {"policies": ["b", "a"]}, ["policies reordered"]),
        ({"services": {}}, {"services": {"shop/cart": {}}}, ["services[shop/cart] added"]),
        ({"services": {"shop/cart": {}}}, {}, ["services[shop/cart] removed"]),
        (
            {"services": {"shop/cart": {"ports": [{"servicePort": 80}]}}},
            {"services": {"shop/cart": {"ports": [{"servicePort": 81}]}}},
            ["services[shop/cart].ports -{servicePort: 80} +{servicePort: 81}"],
        ),
        (
            {},
            {"waypoint": {"hostname": {"namespace": "shop", "hostname": "w"}}},
            ["waypoint.hostname.namespace - → shop", "waypoint.hostname.hostname - → w"],
        ),
    ],
)
def test_differences_are_told_in_words(before: Any, after: Any, told: list[str]) -> None:
    assert list(differences(before, after)) == told


def test_a_folder_is_answered_without_a_server() -> None:
    workloads = run("get", "workloads", "--config-dir", str(SHOP))
    (cart,) = [line for line in workloads.splitlines() if " cart-1 " in line]
    assert cart.split()[:7] == ["shop", "cart-1", "Pod", "10.244.2.11", "node-b", "UNHEALTHY", "HBONE"]
    services = run("get", "services", "--config-dir", str(SHOP))
    assert "1 of 2 healthy" in services
    assert "headless" in services
    policies = run("get", "policies", "--config-dir", str(SHOP))
    assert "{notPrincipals shop.example/ns/shop/sa/cart}" in policies


def test_the_example_mesh_has_no_problems() -> None:
    assert run("get", "problems", "--config-dir", str(SHOP)) == "no problems\n"


def test_json_and_yaml_say_the_same_and_a_namespace_narrows() -> None:
    arguments = ("get", "workloads", "--config-dir", str(SHOP), "-n", "legacy")
    as_json = json.loads(run(*arguments, "-o", "json"))
    assert [item["name"] for item in as_json] == ["bank-1", "report-0"]
    assert as_json[0]["addresses"] == ["192.0.2.10"]
    assert yaml.safe_load(run(*arguments, "-o", "yaml")) == as_json


def test_problems_name_file_and_line_and_the_rest_is_served(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
    (tmp_path / "b.yaml").write_text("kind: [\n")
    (problem,) = json.loads(run("get", "problems", "--config-dir", str(tmp_path), "-o", "json"))
    assert problem["object"] == "File b.yaml"
    assert problem["faults"][0].startswith("line 2 cannot be read as YAML")


def test_a_folder_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    error = run("get", "workloads", "--config-dir", str(folder), exit_code=1)
    reason = "no such file or directory; give a folder of manifests"
    assert error == f"ambientctl: --config-dir: cannot read {folder}: {reason}\n"


def test_a_server_that_does_not_answer_is_one_line() -> None:
    error = run("get", "workloads", "--debug-url", "http://127.0.0.1:1", exit_code=1)
    assert error == (
        "ambientctl: http://127.0.0.1:1/debug/ambientz does not answer: Connection refused; "
        "start a server, or give --debug-url or --config-dir\n"
    )


@pytest.mark.parametrize("target", ["127.0.0.1", ":15010", "host:port", "host:0", "host:70000"])
def test_a_bad_target_is_one_line_and_exit_code_two(target: str) -> None:
    error = run("watch", "--target", target, exit_code=2)
    assert error == f"ambientctl: --target: must be HOST:PORT such as 127.0.0.1:15010, got {target!r}\n"


def test_watch_once_says_when_nobody_answers() -> None:
    error = run("watch", "--once", "--timeout", "0.2", "--target", "127.0.0.1:1", "-o", "json", exit_code=1)
    assert error == "ambientctl: 127.0.0.1:1 gave no whole state within 0.2 s; is the server running there?\n"


@pytest.fixture
def pages() -> Iterator[tuple[str, dict[str, Any]]]:
    """A debug server with canned pages: its URL, and the pages by path."""
    served: dict[str, Any] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in served else 401)
            self.end_headers()
            self.wfile.write(json.dumps(served.get(self.path)).encode())

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", served
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_running_server_is_asked_and_its_addresses_become_readable(pages: tuple[str, dict[str, Any]]) -> None:
    url, served = pages
    served["/debug/ambientz"] = {
        "workloads": [{"uid": POD, "name": "cart-0", "namespace": "shop", "addresses": ["MTAuMC4wLjE="]}],
        "services": [{"namespace": "shop", "hostname": "cart", "addresses": [{"address": "MTAuOTYuMC4x"}]}],
        "policies": None,
    }
    found = snapshot.ask_server(url, for_problems=False)
    assert found.workloads[0]["addresses"] == ["10.0.0.1"]
    assert found.services[0]["addresses"] == [{"address": "10.96.0.1"}]
    assert found.policies == []
    assert "10.0.0.1" in run("get", "workloads", "--debug-url", url)
    assert run("get", "policies", "--debug-url", url) == "no policies\n"


def test_a_refused_page_is_explained(pages: tuple[str, dict[str, Any]]) -> None:
    url, _ = pages
    error = run("get", "problems", "--debug-url", url, exit_code=1)
    assert error == (
        f"ambientctl: {url}debug/problems answered 401 Unauthorized; pages are answered to loopback only\n"
    )


# What is printed of a stream.


def received(ztunnel: SimulatedZtunnel, *messages: Address | Authorization, removed: tuple[str, ...] = ()) -> Received:
    """What a response with these did; their type decides the type of the response, Address when there are none."""
    is_policy = bool(messages) and isinstance(messages[0], Authorization)
    response = DeltaDiscoveryResponse(
        type_url=AUTHORIZATION if is_policy else ADDRESS,
        nonce="n",
        removed_resources=removed,
        resources=[Resource(name="r", resource=AnyMessage(value=message.SerializeToString())) for message in messages],
    )
    return Received(response.type_url, ztunnel.apply(response), 10)


def workload(**fields: Any) -> Address:
    return Address(workload=Workload(uid=POD, name="cart-0", namespace="shop", addresses=[b"\x0a\0\0\1"], **fields))


def story(ztunnel: SimulatedZtunnel) -> Iterator[Happened]:
    """A first state, then a change, a removal and the end; each is applied when the one before was told."""
    cart = Address(service=Service(name="cart", namespace="shop", hostname="cart.shop"))
    yield Connected("127.0.0.1:15010")
    yield received(ztunnel, workload(services={"shop/cart.shop": {}}), cart)
    yield received(ztunnel, Authorization(name="till", namespace="shop", scope=Scope.NAMESPACE))
    yield received(ztunnel, workload(services={"shop/cart.shop": {}}, status=1))
    yield received(ztunnel, removed=(POD,))
    yield Disconnected("UNAVAILABLE: gone", 0.01)


def test_the_first_state_is_shown_whole_and_then_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    ztunnel = SimulatedZtunnel()
    tell = watching.table_printer(ztunnel, EVERYTHING)
    for happened in story(ztunnel):
        tell(happened)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line for line in lines if line[0].isdigit() and line[1] == " "] == [
        "1 workloads",
        "1 services",
        "1 policies",
    ]
    # Times vary; what is told does not.
    assert [line[13:] for line in lines if line[2] == ":"] == [
        "connected to 127.0.0.1:15010",
        "ready",
        f"~ workload  {POD}  status HEALTHY → UNHEALTHY",
        f"- workload  {POD}",
        "disconnected: UNAVAILABLE: gone; keeps trying",
    ]


def test_only_what_was_asked_for_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    ztunnel = SimulatedZtunnel()
    tell = watching.table_printer(ztunnel, frozenset({"policy"}))
    for happened in story(ztunnel):
        tell(happened)
    printed = capsys.readouterr().out
    assert "1 policies" in printed
    assert "cart" not in printed


def test_records_are_one_json_object_per_line() -> None:
    ztunnel = SimulatedZtunnel()
    lines: list[str] = []
    tell = watching.json_printer(ztunnel, EVERYTHING, lines.append)
    for happened in story(ztunnel):
        tell(happened)
    found = [json.loads(line) for line in lines]
    assert [record["event"] for record in found] == [
        "connected",
        "added",
        "added",
        "added",
        "ready",
        "changed",
        "removed",
        "disconnected",
    ]
    assert found[4] == {"event": "ready", "workloads": 1, "services": 1, "policies": 1}
    assert found[5]["differences"] == ["status HEALTHY → UNHEALTHY"]
    assert found[5]["workload"]["addresses"] == ["10.0.0.1"]
    assert found[6]["name"] == POD


def test_records_are_yaml_documents_too() -> None:
    ztunnel = SimulatedZtunnel()
    documents: list[str] = []
    tell = watching.yaml_printer(ztunnel, EVERYTHING, documents.append)
    for happened in story(ztunnel):
        tell(happened)
    assert [record["event"] for record in yaml.safe_load_all("\n".join(documents))][:2] == ["connected", "added"]


def test_a_rejection_is_told() -> None:
    ztunnel = SimulatedZtunnel()
    happened = received(ztunnel, Address())
    (record,) = watching.records(happened, EVERYTHING)
    assert (record["event"], record["reason"]) == ("rejected", "r: an address must be a workload or a service")


def test_conditions_of_a_policy_fit_on_a_line() -> None:
    policy = {
        "groups": [
            {
                "rules": [
                    {
                        "matches": [
                            {"namespaces": [{"exact": "shop"}, {"prefix": "bank-"}]},
                            {"serviceAccounts": [{"namespace": "shop", "serviceAccount": "cart"}]},
                        ]
                    },
                    {"matches": [{"destinationPorts": [80], "notSourceIps": [{"address": "10.0.0.0", "length": 8}]}]},
                ]
            },
            {},
        ]
    }
    assert tables.policy_text(policy) == (
        "{namespaces shop, bank-* or serviceAccounts shop/cart and "
        "destinationPorts 80 and notSourceIps 10.0.0.0/8} or {anything}"
    )
    assert tables.policy_text({}) == "nothing"


@pytest.mark.parametrize(
    ("gateway", "text"),
    [
        (None, ""),
        ({"hostname": {"namespace": "shop", "hostname": "w.shop"}}, "shop/w.shop"),
        ({"address": {"network": "net", "address": "10.0.0.1"}}, "net/10.0.0.1"),
    ],
)
def test_waypoints_are_shown_by_their_destination(gateway: Any, text: str) -> None:
    assert tables.gateway_text(gateway) == text

"""A real ztunnel as a process, and what it says that it holds, in a form that can be compared with what a simulated one
holds."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ambientd.ctl.ztunnel import SimulatedZtunnel
from ambientd.index.ips import ip_text
from ambientd_api import security_pb2, workload_pb2
from tests.kube.processes import Program, free_port

_NO_DATA_PATH: Mapping[str, str] = {"ENABLE_PROXY": "false"}
_PROTOCOLS = {workload_pb2.NONE: "TCP", workload_pb2.HBONE: "HBONE"}


class Ztunnel:
    """`ztunnel proxy` as a process, in the network namespace of the calling thread."""

    def __init__(
        self,
        binary: Path,
        xds: str,
        root: Path,
        folder: Path,
        node: str,
        *,
        token: str = "",
        pod: str = "ztunnel-test",
        environment: Mapping[str, str] = _NO_DATA_PATH,
    ) -> None:
        """`xds`: address and port of the control plane, certificates too; `token`: what it says to it, empty: nothing;
        `environment`: beside what it always needs. Without that it is one without its data path."""
        # Not the defaults: several may share a namespace.
        self._admin_port = free_port()
        proxy_config = {
            "proxyAdminPort": self._admin_port,
            "statusPort": free_port(),
            "proxyMetadata": {},
        }
        environment = {
            **{key: value for key, value in os.environ.items() if key in ("PATH", "HOME")},
            "XDS_ADDRESS": f"https://{xds}",
            "XDS_ROOT_CA": str(root),
            "CA_ADDRESS": f"https://{xds}",
            "CA_ROOT_CA": str(root),
            "CLUSTER_ID": "Kubernetes",
            "NODE_NAME": node,
            "INSTANCE_IP": "127.0.0.1",
            "POD_NAME": pod,
            "POD_NAMESPACE": "istio-system",
            "PROXY_CONFIG": json.dumps(proxy_config),
            **environment,
        }
        if token:
            (folder / "istio-token").write_text(token)
            environment["AUTH_TOKEN"] = str(folder / "istio-token")
        self.log = folder / "ztunnel.log"
        self._program = Program(binary, ["proxy", "ztunnel"], self.log, folder=folder, environment=environment)

    def dump(self) -> dict[str, Any]:
        """What it holds; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://localhost:{self._admin_port}/config_dump", timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}

    def check(self) -> None:
        """Raises AssertionError when it has ended by itself."""
        self._program.check()

    def stop(self) -> None:
        self._program.kill()


def held_by_ztunnel(dump: dict[str, Any]) -> dict[str, Any]:
    """Workloads, services and policies of a ztunnel's dump, each by name and with the fields that it keeps."""
    workloads = {
        workload["uid"]: {
            "name": workload["name"],
            "namespace": workload["namespace"],
            "addresses": workload["workloadIps"],
            "node": workload.get("node", ""),
            "account": workload.get("serviceAccount", ""),
            "protocol": workload["protocol"],
            "policies": workload.get("authorizationPolicies", []),
            "services": sorted(workload.get("services", [])),
            "canonical": (workload.get("canonicalName", ""), workload.get("canonicalRevision", "")),
            "healthy": workload["status"] == "Healthy",
            "trust domain": workload.get("trustDomain", ""),
            "zone": workload.get("locality", {}).get("zone", ""),
        }
        for workload in dump.get("workloads", ())
    }
    services = {
        f"{service['namespace']}/{service['hostname']}": {
            "vips": service["vips"],
            "ports": {int(port): target for port, target in service["ports"].items()},
            "endpoints": {
                uid: {int(port): target for port, target in endpoint["port"].items()}
                for uid, endpoint in service["endpoints"].items()
            },
        }
        for service in dump.get("services", ())
    }
    policies = {
        f"{policy['namespace']}/{policy['name']}": {
            "scope": policy["scope"],
            "action": policy["action"],
            "rules": [[len(entry) for entry in rule] for rule in policy["rules"]],
        }
        for policy in dump.get("policies", ())
    }
    return {"workloads": workloads, "services": services, "policies": policies}


def _is_kept(workload: workload_pb2.Workload, service: workload_pb2.Service) -> bool:
    """A ztunnel forgets endpoints that are unhealthy, unless the service wants all (workload's health policy)."""
    return (
        workload.status == workload_pb2.HEALTHY
        or service.load_balancing.health_policy == workload_pb2.LoadBalancing.ALLOW_ALL
    )


def held_by_simulation(ztunnel: SimulatedZtunnel) -> dict[str, Any]:
    """The same of a simulated ztunnel."""
    workloads = {
        uid: {
            "name": workload.name,
            "namespace": workload.namespace,
            "addresses": [ip_text(raw) for raw in workload.addresses],
            "node": workload.node,
            "account": workload.service_account or "default",
            "protocol": _PROTOCOLS[workload.tunnel_protocol],
            "policies": list(workload.authorization_policies),
            "services": sorted(workload.services),
            "canonical": (workload.canonical_name, workload.canonical_revision),
            "healthy": workload.status == workload_pb2.HEALTHY,
            "trust domain": workload.trust_domain or "cluster.local",
            "zone": workload.locality.zone,
        }
        for uid, workload in ztunnel.workloads.items()
    }
    services = {
        name: {
            "vips": [f"{vip.network}/{ip_text(vip.address)}" for vip in service.addresses],
            "ports": {port.service_port: port.target_port for port in service.ports},
            "endpoints": {
                uid: {port.service_port: port.target_port for port in workload.services[name].ports}
                for uid, workload in ztunnel.workloads.items()
                if name in workload.services and _is_kept(workload, service)
            },
        }
        for name, service in ztunnel.services.items()
    }
    scopes = {security_pb2.GLOBAL: "Global", security_pb2.NAMESPACE: "Namespace"}
    policies = {
        name: {
            "scope": scopes.get(policy.scope, "WorkloadSelector"),
            "action": "Deny" if policy.action == security_pb2.DENY else "Allow",
            "rules": [[len(rules.matches) for rules in group.rules] for group in policy.groups],
        }
        for name, policy in ztunnel.policies.items()
    }
    return {"workloads": workloads, "services": services, "policies": policies}

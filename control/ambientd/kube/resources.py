"""Where the API server keeps each kind that we read, and so which permissions we need. `deploy/` grants these and no
more. Must not ask anybody."""

from __future__ import annotations

from msgspec import Struct

from ambientd.resources.kinds import KINDS

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

READ_VERBS = ("list", "watch")
"""What reading a kind takes."""

DEFINITION_VERBS = ("get", "watch")
"""What it takes to know in which versions a custom kind is there, and when it comes."""

_PLURALS = {
    "Pod": "pods",
    "Namespace": "namespaces",
    "Node": "nodes",
    "Service": "services",
    "ConfigMap": "configmaps",
    "EndpointSlice": "endpointslices",
    "ServiceEntry": "serviceentries",
    "WorkloadEntry": "workloadentries",
    "AuthorizationPolicy": "authorizationpolicies",
    "PeerAuthentication": "peerauthentications",
    "Gateway": "gateways",
    "GatewayClass": "gatewayclasses",
}
_BUILT_IN_GROUPS = frozenset({"", "discovery.k8s.io"})
_FIELD_SELECTORS = {
    # The address of a failed pod belongs to nobody, and it never comes back to life (operations.md 4).
    "Pod": "status.phase!=Failed",
}


class Resource(Struct, frozen=True):
    """One kind, as it is asked for."""

    kind: str
    plural: str
    versions: tuple[str, ...]
    """API versions in which we read it, the preferred one first."""
    namespace: str = ""
    """Read only in this one; empty: everywhere."""
    field_selector: str = ""

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.versions[0].rpartition("/")[0]

    @property
    def is_custom(self) -> bool:
        """It exists only while its definition does."""
        return self.group not in _BUILT_IN_GROUPS

    @property
    def definition(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"

    def path(self, version: str) -> str:
        """Of the list of its objects."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{root}/namespaces/{self.namespace}/{self.plural}" if self.namespace else f"{root}/{self.plural}"


def resources(namespace: str, mesh_config_map: str) -> tuple[Resource, ...]:
    """All that we read. Of ConfigMaps only the one with the mesh configuration, in the server's namespace."""
    return tuple(
        Resource(kind, _PLURALS[kind], versions, namespace, f"metadata.name={mesh_config_map}")
        if kind == "ConfigMap"
        else Resource(kind, _PLURALS[kind], versions, field_selector=_FIELD_SELECTORS.get(kind, ""))
        for kind, versions in KINDS.items()
    )


class Permission(Struct, frozen=True, order=True):
    """One thing that we ask of the API server."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    """Empty: in the whole cluster."""
    name: str = ""
    """Only for this object; empty: for all."""


def permissions(wanted: tuple[Resource, ...]) -> frozenset[Permission]:
    """What reading these resources takes."""
    found: set[Permission] = set()
    for resource in wanted:
        name = resource.field_selector.removeprefix("metadata.name=") if resource.namespace else ""
        for verb in READ_VERBS:
            found.add(Permission(resource.group, resource.plural, verb, resource.namespace, name))
        if resource.is_custom:
            for verb in DEFINITION_VERBS:
                found.add(
                    Permission("apiextensions.k8s.io", "customresourcedefinitions", verb, name=resource.definition)
                )
    return frozenset(found)

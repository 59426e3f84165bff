"""Decoding of a MeshConfig: YAML text in proto-JSON naming, either spelling of a name, unknown fields tolerated
(operations.md 6). It is valid or invalid as a whole, so that the last good one stays in force as a whole; only what is
made of selectors stands and falls by itself (operations.md 8, services.md 7). Must not merge what belongs to several
sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from ambientd.resources.decode_common import describe, key_path
from ambientd.resources.faults import Fault, Undecodable, quote
from ambientd.resources.mesh import (
    LabelSelector,
    MeshConfig,
    Requirement,
    ServiceEntryVisibility,
    VisibilityPolicy,
)
from ambientd.resources.ref import intern_labels
from ambientd.resources.yaml_text import TextError, yaml_documents

T = TypeVar("T")

EFFECT = "the whole mesh configuration is left out, and the last good one stays in force"
SELECTOR_EFFECT = "what is made of these selectors stays as it was; the rest of the configuration applies"
_DNS_LABEL = re.compile(r"[a-z0-9A-Z](?:[-a-z0-9A-Z]{0,61}[a-z0-9A-Z])?\Z")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_LABEL_PREFIX = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?\Z")
_VISIBILITIES = ("VISIBILITY_UNSPECIFIED", "NONE", "NAMESPACE", "PUBLIC")


def decode_mesh(text: str, prefix: str = "") -> tuple[MeshConfig, tuple[Fault, ...]]:
    """The mesh configuration of a text, and what is wrong with its selectors. Fields that are absent or null have their
    defaults; an empty `rootNamespace` is unset. Raises Undecodable with every other fault found; paths of faults after
    `prefix`."""
    reader = _Reader(prefix)
    return reader.mesh(text), tuple(reader.selector_faults)


class _Reader:
    """Collects faults, so that one attempt shows all of them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._malformed: set[str] = set()
        self._faults: list[Fault] = []
        self.selector_faults: list[Fault] = []

    def mesh(self, text: str) -> MeshConfig:
        try:
            documents = list(yaml_documents(text.encode("utf-8", "surrogatepass")))
        except TextError as error:
            self._refuse(f"line {error.line}", f"cannot be read as YAML: {error.problem}")
            raise Undecodable(tuple(self._faults)) from None
        if len(documents) > 1:
            self._refuse(f"line {documents[1].line}", "must be one YAML document", "a second one")
        values = self._object(documents[0].value if documents else {}, "")
        default = MeshConfig()
        trust_domain = values.get("trustDomain")
        mesh = MeshConfig(
            trust_domain=default.trust_domain if trust_domain is None else self._domain(trust_domain, "trustDomain"),
            trust_domain_aliases=tuple(sorted(set(self._list(values, "trustDomainAliases", "", self._domain)))),
            root_namespace=self._text(values.get("rootNamespace"), "rootNamespace") or default.root_namespace,
            discovery_selectors=self._discovery(values),
            service_entry_visibility=self._visibility(values.get("serviceEntryVisibility")),
            discovery_host=self._discovery_host(values.get("defaultConfig")) or default.discovery_host,
            malformed=frozenset(self._malformed),
        )
        if self._faults:
            raise Undecodable(tuple(self._faults))
        return mesh

    def _discovery(self, values: dict[str, Any]) -> tuple[LabelSelector, ...]:
        selectors = self._list(values, "discoverySelectors", "", self._selector_or_none)
        if None in selectors:
            self._malformed.add("discovery_selectors")
            return ()
        return tuple(selector for selector in selectors if selector is not None)

    def _discovery_host(self, value: Any) -> str:
        """Empty when there is none. Proxies read the address themselves, so one without a port is left to them."""
        members = self._object(value, "defaultConfig") if isinstance(value, dict) else {}
        address = members.get("discoveryAddress")
        host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        is_name = all(_DNS_LABEL.match(label) for label in host.split("."))
        return host if colon and port.isascii() and port.isdigit() and is_name else ""

    def _selector_or_none(self, value: Any, path: str) -> LabelSelector | None:
        """None for a selector that is malformed, which does not make the whole configuration invalid."""
        before = len(self.selector_faults)
        selector = self._selector(value, path)
        return selector if len(self.selector_faults) == before else None

    def _malform(self, path: str, rule: str, got: str = "") -> None:
        self.selector_faults.append(Fault(self._prefix + path, rule, got, SELECTOR_EFFECT))

    def _refuse(self, path: str, rule: str, got: str = "") -> None:
        self._faults.append(Fault(self._prefix + path, rule, got, EFFECT))

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        """The members by their camelCase names; null is an empty object. A name given in both spellings is refused."""
        if not isinstance(value, dict):
            if value is not None:
                self._refuse(path, "must be an object", describe(value))
            return {}
        members: dict[str, Any] = {}
        for name, member in value.items():
            camel = re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)
            if camel in members:
                self._refuse(f"{path}{key_path(name)}".removeprefix("."), "must be given once, in one spelling")
            members[camel] = member
        return members

    def _list(self, values: dict[str, Any], name: str, path: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        path = f"{path}.{name}".removeprefix(".")
        value = values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self._refuse(path, "must be a list", describe(value))
            return ()
        return tuple(read(element, f"{path}[{index}]") for index, element in enumerate(value))

    def _text(self, value: Any, path: str) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        self._refuse(path, "must be a string", describe(value))
        return ""

    def _domain(self, value: Any, path: str) -> str:
        """A trust domain (6.4): DNS labels, a trailing dot allowed; an explicit empty one is invalid."""
        if not isinstance(value, str):
            self._refuse(path, "must be a string", describe(value))
            return ""
        if len(value) > 255 or not all(_DNS_LABEL.match(label) for label in value.removesuffix(".").split(".")):
            rule = "must be a domain name, each of whose labels has 1 to 63 letters, digits or inner hyphens"
            self._refuse(path, rule, quote(value))
        return value

    def _selector(self, value: Any, path: str) -> LabelSelector:
        members = self._object(value, path)
        labels: dict[str, str] = {}
        for key, label in self._object_as_is(members.get("matchLabels"), f"{path}.matchLabels").items():
            labels[key] = self._label(label, f'{path}.matchLabels["{key}"]')
            self._key(key, f'{path}.matchLabels["{key}"]')
        requirements = self._list(members, "matchExpressions", path, self._requirement)
        return LabelSelector(intern_labels(labels), requirements)

    def _object_as_is(self, value: Any, path: str) -> dict[str, Any]:
        if value is None or isinstance(value, dict):
            return value or {}
        self._refuse(path, "must be an object", describe(value))
        return {}

    def _requirement(self, value: Any, path: str) -> Requirement:
        members = self._object(value, path)
        key = self._text(members.get("key"), f"{path}.key")
        self._key(key, f"{path}.key")
        operator = self._text(members.get("operator"), f"{path}.operator")
        values = self._list(members, "values", path, self._label)
        if operator in ("In", "NotIn"):
            if not values:
                self._malform(f"{path}.values", f"must not be empty with the operator {operator}")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                self._malform(f"{path}.values", f"must be empty with the operator {operator}", "a list")
        else:
            self._malform(f"{path}.operator", "must be In, NotIn, Exists or DoesNotExist", quote(operator))
        return Requirement(key, operator, values)

    def _key(self, key: str, path: str) -> None:
        prefix, slash, name = key.rpartition("/")
        if not name or not _LABEL_VALUE.match(name) or (slash and not _LABEL_PREFIX.match(prefix)):
            self._malform(path, "must be the key of a label", quote(key))

    def _label(self, value: Any, path: str) -> str:
        text = self._text(value, path)
        if not _LABEL_VALUE.match(text):
            self._malform(path, "must be the value of a label", quote(text))
        return text

    def _visibility(self, value: Any) -> ServiceEntryVisibility | None:
        if value is None:
            return None
        path = "serviceEntryVisibility"
        members = self._object(value, path)
        default = self._visibility_name(members.get("defaultVisibility"), f"{path}.defaultVisibility")
        return ServiceEntryVisibility(default, self._list(members, "policies", path, self._visibility_policy))

    def _visibility_name(self, value: Any, path: str) -> str:
        name = self._text(value, path) or _VISIBILITIES[0]
        if name not in _VISIBILITIES:
            self._refuse(path, f"must be one of {', '.join(_VISIBILITIES)}", quote(name))
        return name

    def _visibility_policy(self, value: Any, path: str) -> VisibilityPolicy:
        members = self._object(value, path)
        visibility = self._visibility_name(members.get("visibility"), f"{path}.visibility")
        return VisibilityPolicy(visibility, self._list(members, "matchingRules", path, self._visibility_rule))

    def _visibility_rule(self, value: Any, path: str) -> LabelSelector | None:
        """None for a rule without a matcher that we know: it matches nothing (services.md 7)."""
        value = self._object(value, path).get("namespaceSelector")
        if value is None:
            return None
        selector = self._selector_or_none(value, f"{path}.namespaceSelector")
        if selector is None:
            self._malformed.add("service_entry_visibility")
        return selector

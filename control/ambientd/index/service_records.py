"""What services are to others: candidates from Services and ServiceEntries, one winner per namespace and hostname, and
the record by which workloads join (services.md 1, 6, 7, 10; workloads.md 9.2). Must not render anything."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ambientd.index.declarations import Derived, Index, Reader, derive, derive_over_index, expand, on_demand
from ambientd.index.inputs import SERVICE_ENTRIES, SERVICES
from ambientd.index.ips import masked, parse_cidr, parse_ip
from ambientd.index.mesh import in_revision, mesh_of
from ambientd.index.namespaces import is_discovered, namespace_of
from ambientd.index.selectors import Pair, by_first_pair
from ambientd.index.waypoints import ServiceBinding, bind_service
from ambientd.resources.core import Service
from ambientd.resources.mesh import ServiceEntryVisibility
from ambientd.resources.networking import ServiceEntry
from ambientd.resources.ref import Labels, Ref

IpRange = tuple[bytes, int | None]
"""An address, and its prefix length where it is a real range."""


class RecordPort(Struct, frozen=True, gc=False):
    number: int
    target_number: int
    """0 when the target port is a name."""
    name: str
    target_name: str
    """Name of the target port; empty when it is a number. Both names are those of the last port with this number
    (services.md 1)."""


class ServiceRecord(Struct, frozen=True, gc=False):
    """A service as workloads see it: the part that they depend on, nothing else (workloads.md 9.2)."""

    key: str
    """`<namespace>/<hostname>`."""
    namespace: str
    hostname: str
    is_entry: bool
    selector: Labels
    ports: tuple[RecordPort, ...]
    waypoint_keys: tuple[str, ...] = ()
    """Of the waypoints that it is bound to; only with the setting `auto_allow_waypoints`."""


def hostname_of(service: Ref, domain: str) -> str:
    return f"{service.name}.{service.namespace}.svc.{domain}"


def cluster_ips(service: Service) -> tuple[tuple[bytes, ...], str | None]:
    """The addresses, and the first text that does not parse: then the Service is dropped (services.md 3)."""
    addresses = []
    for text in service.cluster_ips:
        if text in ("", "None"):
            continue
        raw = parse_ip(text)
        if raw is None:
            return (), text
        addresses.append(raw)
    return tuple(addresses), None


def entry_addresses(entry: ServiceEntry) -> tuple[tuple[IpRange, ...], str | None]:
    """The explicit addresses, and the first text that does not parse: then the entry yields no service at all
    (services.md 6)."""
    ranges: list[IpRange] = []
    for text in entry.addresses:
        if "/" in text:
            prefix = parse_cidr(text)
            if prefix is None:
                return (), text
            raw, length = prefix
            ranges.append((masked(raw, length), length if length < len(raw) * 8 else None))
        else:
            address = parse_ip(text)
            if address is None:
                return (), text
            ranges.append((address, None))
    return tuple(ranges), None


def _is_service_usable(service: Service, read: Reader) -> bool:
    if service.type == "ExternalName" or cluster_ips(service)[1] is not None:
        return False
    return is_discovered(service.ref.namespace, read)


def _gather_service_binding(service: Service, read: Reader) -> ServiceBinding | None:
    if not _is_service_usable(service, read):
        return None
    return bind_service(service.ref.namespace, service.labels, service.annotations, False, read)


SERVICE_BINDINGS: Derived[Ref, ServiceBinding] = derive("service bindings", SERVICES, _gather_service_binding)
"""By Ref of the Service: its waypoint, or why it has none; None when it asks for none."""


def _gather_service_record(service: Service, read: Reader) -> ServiceRecord | None:
    if not _is_service_usable(service, read):
        return None
    ref, rules = service.ref, mesh_of(read).rules
    names = {port.number: (port.name, port.target_name) for port in service.ports}
    ports = tuple(RecordPort(port.number, port.target_number, *names[port.number]) for port in service.ports)
    binding = read.get(SERVICE_BINDINGS, ref) if rules.auto_allow_waypoints else None
    hostname = hostname_of(ref, rules.domain)
    return ServiceRecord(
        key=f"{ref.namespace}/{hostname}",
        namespace=ref.namespace,
        hostname=hostname,
        is_entry=False,
        selector=service.selector,
        ports=ports,
        waypoint_keys=binding.waypoint_keys if binding is not None else (),
    )


SERVICE_RECORDS: Derived[Ref, ServiceRecord] = derive("service records", SERVICES, _gather_service_record)
"""By Ref of the Service. A Service always wins its hostname in its namespace, so there is no candidate before it."""


def visibility_in(namespace: str, read: Reader) -> str:
    """`PUBLIC`, `NAMESPACE` or `NONE` for the ServiceEntries of a namespace (services.md 7)."""
    return read.get(_VISIBILITIES, namespace) or "PUBLIC"


def _gather_visibility(namespace: str, read: Reader) -> str:
    config = mesh_of(read).visibility
    return "PUBLIC" if config is None else resolve_visibility(config, namespace_of(namespace, read).labels)


def resolve_visibility(config: ServiceEntryVisibility, labels: Labels) -> str:
    """The first policy all of whose rules match decides, else the default (services.md 7)."""
    value = config.default
    for policy in config.policies:
        if all(rule is not None and rule.matches(labels) for rule in policy.rules):
            value = policy.visibility
            break
    return value if value in ("NAMESPACE", "NONE") else "PUBLIC"


_VISIBILITIES = on_demand("service entry visibilities", _gather_visibility)


class Candidate(Struct, frozen=True, gc=False):
    """One host of a ServiceEntry, before it is known who wins the hostname."""

    entry: Ref
    host: str
    created: str
    is_public: bool


def _is_entry_usable(entry: ServiceEntry, read: Reader) -> bool:
    if entry_addresses(entry)[1] is not None or not is_discovered(entry.ref.namespace, read):
        return False
    return in_revision(entry.labels, mesh_of(read).rules)


def _gather_candidates(entry: ServiceEntry, read: Reader) -> dict[tuple[Ref, str], Candidate]:
    if not _is_entry_usable(entry, read):
        return {}
    ref = entry.ref
    visibility = visibility_in(ref.namespace, read)
    if visibility == "NONE":
        return {}
    is_public = visibility == "PUBLIC"
    return {(ref, host): Candidate(ref, host, entry.created, is_public) for host in entry.hosts}


CANDIDATES: Derived[tuple[Ref, str], Candidate] = expand("service entry hosts", SERVICE_ENTRIES, _gather_candidates)
"""By Ref of the ServiceEntry, and host."""

_CANDIDATES_BY_HOST: Index[str, Candidate] = Index(
    "service entry hosts by hostname", CANDIDATES, lambda candidate: (candidate.host,)
)
_SERVICES_BY_HOST: Index[str, ServiceRecord] = Index(
    "services by hostname", SERVICE_RECORDS, lambda record: (record.hostname,)
)


class Ruling(Struct, frozen=True, gc=False):
    """Who gets a hostname (services.md 10)."""

    winners: tuple[tuple[str, Ref], ...]
    """Namespace and ServiceEntry, in order of the namespaces. A namespace with a Service of that hostname has none."""
    canonical: Ref | None
    """The ServiceEntry that is preferred everywhere; None when a Service is, or nobody."""
    service_namespaces: tuple[str, ...]
    """Where a Service has the hostname."""

    def is_winner(self, entry: Ref) -> bool:
        return (entry.namespace, entry) in self.winners


def _age(candidate: Candidate) -> tuple[str, str, str]:
    # Text order is time order; an unknown time comes first, as the zero time does.
    return candidate.created, candidate.entry.namespace, candidate.entry.name


def _gather_ruling(host: str, read: Reader) -> Ruling:
    taken = tuple(sorted({record.namespace for record in read.under(_SERVICES_BY_HOST, host)}))
    oldest: dict[str, Candidate] = {}
    for candidate in sorted(read.under(_CANDIDATES_BY_HOST, host), key=_age):
        if candidate.entry.namespace not in taken:
            oldest.setdefault(candidate.entry.namespace, candidate)
    canonical = None
    if not taken:
        canonical = next((item.entry for item in sorted(oldest.values(), key=_age) if item.is_public), None)
    winners = tuple(sorted((namespace, item.entry) for namespace, item in oldest.items()))
    return Ruling(winners, canonical, taken)


RULINGS = on_demand("hostname rulings", _gather_ruling)
"""By hostname, as far as a ServiceEntry has it."""

_NOBODY = Ruling((), None, ())


def ruling_on(host: str, read: Reader) -> Ruling:
    return read.get(RULINGS, host) or _NOBODY


def _gather_entry_binding(entry: ServiceEntry, read: Reader) -> ServiceBinding | None:
    if not _is_entry_usable(entry, read):
        return None
    ref = entry.ref
    is_local = visibility_in(ref.namespace, read) == "NAMESPACE"
    return bind_service(ref.namespace, entry.labels, entry.annotations, is_local, read)


ENTRY_BINDINGS: Derived[Ref, ServiceBinding] = derive("service entry bindings", SERVICE_ENTRIES, _gather_entry_binding)
"""By Ref of the ServiceEntry; one for all its hosts."""


class _EntryShape(Struct, frozen=True, gc=False):
    """The part of an entry that its hosts share and workloads depend on."""

    selector: Labels
    ports: tuple[RecordPort, ...]
    waypoint_keys: tuple[str, ...]


def _gather_entry_shape(entry: ServiceEntry, read: Reader) -> _EntryShape:
    names = {port.number: port.name for port in entry.ports}
    ports = tuple(
        RecordPort(port.number, port.target_number or port.number, names[port.number], "") for port in entry.ports
    )
    binding = read.get(ENTRY_BINDINGS, entry.ref) if mesh_of(read).rules.auto_allow_waypoints else None
    return _EntryShape(
        selector=entry.workload_selector or (),
        ports=ports,
        waypoint_keys=binding.waypoint_keys if binding is not None else (),
    )


_ENTRY_SHAPES: Derived[Ref, _EntryShape] = derive("service entry shapes", SERVICE_ENTRIES, _gather_entry_shape)


def _gather_entry_record(candidate: Candidate, read: Reader) -> ServiceRecord | None:
    shape = read.get(_ENTRY_SHAPES, candidate.entry)
    if shape is None or not ruling_on(candidate.host, read).is_winner(candidate.entry):
        return None
    namespace = candidate.entry.namespace
    return ServiceRecord(
        key=f"{namespace}/{candidate.host}",
        namespace=namespace,
        hostname=candidate.host,
        is_entry=True,
        selector=shape.selector,
        ports=shape.ports,
        waypoint_keys=shape.waypoint_keys,
    )


ENTRY_RECORDS: Derived[tuple[Ref, str], ServiceRecord] = derive(
    "service entry records", CANDIDATES, _gather_entry_record
)
"""By Ref of the ServiceEntry, and host: those that won."""


def _pairs(record: ServiceRecord) -> Iterable[tuple[str, Pair]]:
    return ((record.namespace, pair) for pair in record.selector)


SERVICES_BY_FIRST_PAIR: Index[tuple[str, Pair], ServiceRecord] = Index(
    "services by first selector pair", SERVICE_RECORDS, by_first_pair
)
ENTRIES_BY_FIRST_PAIR: Index[tuple[str, Pair], ServiceRecord] = Index(
    "service entries by first selector pair", ENTRY_RECORDS, by_first_pair
)
_SERVICES_BY_PAIR: Index[tuple[str, Pair], ServiceRecord] = Index("services by selector pair", SERVICE_RECORDS, _pairs)
_ENTRIES_BY_PAIR: Index[tuple[str, Pair], ServiceRecord] = Index(
    "service entries by selector pair", ENTRY_RECORDS, _pairs
)


def _gather_pair(pair: tuple[str, Pair], _: tuple[ServiceRecord, ...], __: Reader) -> tuple[str, Pair]:
    return pair


# One value per pair in use, whoever uses it: a Service that comes, goes or changes its ports moves no pod.
_SERVICE_PAIRS: Derived[tuple[str, Pair], tuple[str, Pair]] = derive_over_index(
    "service selector pairs", _SERVICES_BY_PAIR, _gather_pair
)
_ENTRY_PAIRS: Derived[tuple[str, Pair], tuple[str, Pair]] = derive_over_index(
    "service entry selector pairs", _ENTRIES_BY_PAIR, _gather_pair
)


def _namespace_of_pair(value: tuple[str, Pair]) -> Iterable[str]:
    return (value[0],)


SERVICE_PAIRS_BY_NAMESPACE: Index[str, tuple[str, Pair]] = Index(
    "service selector pairs by namespace", _SERVICE_PAIRS, _namespace_of_pair
)
"""The label pairs that selectors of Services use, as `(namespace, pair)`."""
ENTRY_PAIRS_BY_NAMESPACE: Index[str, tuple[str, Pair]] = Index(
    "service entry selector pairs by namespace", _ENTRY_PAIRS, _namespace_of_pair
)

DECLARATIONS = (
    SERVICES,
    SERVICE_BINDINGS,
    SERVICE_RECORDS,
    _SERVICES_BY_HOST,
    SERVICE_ENTRIES,
    _VISIBILITIES,
    CANDIDATES,
    _CANDIDATES_BY_HOST,
    RULINGS,
    ENTRY_BINDINGS,
    _ENTRY_SHAPES,
    ENTRY_RECORDS,
    SERVICES_BY_FIRST_PAIR,
    ENTRIES_BY_FIRST_PAIR,
    _SERVICES_BY_PAIR,
    _ENTRIES_BY_PAIR,
    _SERVICE_PAIRS,
    _ENTRY_PAIRS,
    SERVICE_PAIRS_BY_NAMESPACE,
    ENTRY_PAIRS_BY_NAMESPACE,
)

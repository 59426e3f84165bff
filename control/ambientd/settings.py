"""Every flag and environment variable, validated once into one frozen value (operations.md 1.2, 1.3). A setting that we
cannot honour and that somebody relies on is refused, never weakened in silence. Must not read files, or anything but
the mappings it is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import Struct

from ambientd.arguments import (
    DNS_LABEL,
    DNS_NAME,
    FLAGS,
    Flag,
    Notice,
    SettingsError,
    UsageError,
    check_duration,
    parse_arguments,
    parse_bool,
    parse_duration,
)
from ambientd.index.rules import Rules
from ambientd.security import Security, read_security

__all__ = [
    "FLAGS",
    "Address",
    "Flag",
    "Notice",
    "Settings",
    "SettingsError",
    "UsageError",
    "load",
    "parse_arguments",
    "parse_bool",
    "parse_duration",
]

T = TypeVar("T")
MIB = 1 << 20


class Address(Struct, frozen=True):
    """Where to listen."""

    host: str
    """Empty: all interfaces."""
    port: int
    """0: any free one."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(Struct, frozen=True, kw_only=True):
    config_dir: str = ""
    """Folder of manifests that takes the place of an API server; empty: there is none."""
    namespace: str = "istio-system"
    """Of the server itself: its label gives the network, its ConfigMap the mesh configuration."""
    cluster_id: str = "Kubernetes"
    """Part of the uid of every workload; the default is what ztunnel's chart says too."""
    cluster_aliases: tuple[tuple[str, str], ...] = ()
    """Alias and cluster id; a client that names an alias means the cluster. Sorted."""
    domain: str = "cluster.local"
    """DNS suffix of Kubernetes Services, as kubelets have it by default."""
    revision: str = ""
    """Empty: every object is read, whatever its revision."""
    mesh_config_file: str = "./etc/istio/config/mesh"
    """Used if it exists at start, instead of the ConfigMap; the default is where istiod's chart mounts it."""
    kubeconfig: str = ""
    """Empty: $KUBECONFIG, credentials in the cluster, or ~/.kube/config."""
    pod_name: str = ""
    """Of this replica, as tools show it."""

    http_addr: Address = Address("", 8080)
    """Readiness and debug, plain HTTP."""
    https_addr: Address | None = Address("", 15017)
    """Webhooks; None: on the plain HTTP port."""
    grpc_addr: Address = Address("", 15010)
    """Plain gRPC."""
    secure_grpc_addr: Address | None = Address("", 15012)
    """gRPC over TLS; None: disabled."""
    monitoring_addr: Address | None = Address("", 15014)
    """Metrics and debug, plain HTTP; None: on the plain HTTP port."""
    ca_cert_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    """Serving certificate from files, if all three are set (operations.md 2.4)."""

    keepalive_interval_s: float = 30.0
    """Seconds without traffic after which a client is pinged; below the idle limits of common load balancers."""
    keepalive_timeout_s: float = 10.0
    """Seconds that a client has to answer a ping."""
    max_connection_age_s: float | None = None
    """Seconds after which a client is asked to connect again, jittered; None: never. The chart sets 30 minutes, so that
    clients spread over new replicas."""
    audit_interval_s: float | None = 1.0
    """Seconds between two slices of the self-audit, of at most 4 ms each; None: there is none."""
    shutdown_s: float = 10.0
    """Seconds that streams, and again requests, have to end; below the 30 s that a kubelet waits."""
    max_streams: int = 100_000
    """Streams in one connection (`ISTIO_GPRC_MAXSTREAMS`): a proxy in front may join many clients in one."""
    receive_limit_bytes: int = 64 * MIB
    """Largest message on plain gRPC. A ztunnel of a large mesh lists all it holds when it comes back: more than gRPC's
    4 MiB."""
    secure_receive_limit_bytes: int = 256 * MIB
    """The same over TLS, where clients are known. `ISTIO_GPRC_MAXRECVMSGSIZE` sets both."""
    kubernetes_api_qps: float = 80.0
    """Requests per second to the API server."""
    kubernetes_api_burst: int = 160
    """Requests that may go at once after a quiet time."""

    log_levels: tuple[tuple[str, str], ...] = (("default", "info"),)
    """Scope and level, `default` always among them; levels: none, fatal, error, warn, info, debug. Sorted."""
    log_json: bool = False
    """One JSON object per line instead of text."""

    ambient: bool = True
    """`PILOT_ENABLE_AMBIENT`. Serving ztunnels is what this program is for, so unset means true; false refuses them."""
    service_entries_select_pods: bool = True
    services_select_workload_entries: bool = True
    auto_allow_waypoints: bool = False
    serve_dry_run_policies: bool = False
    """A ztunnel older than 1.29 would enforce them."""
    auto_allocate_addresses: bool = True
    writes_status: bool = True

    token_file: str = ""
    """`--token-review static:FILE`: whose tokens are known in a mesh without an API server; empty: nobody's."""
    security: Security = Security()
    """Authentication, certificates and roots."""
    debug_on_http: bool = True
    """`ENABLE_DEBUG_ON_HTTP`: the debug pages exist at all."""
    authorize_debug: bool = True
    """`ENABLE_DEBUG_ENDPOINT_AUTH`: a caller from elsewhere sees only what its namespace may see."""
    debug_namespaces: tuple[str, ...] = ()
    """`DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES`: may see what the system namespace may. Sorted."""
    metrics_loopback_only: bool = False
    """`METRICS_LOCALHOST_ACCESS_ONLY`: metrics answer 403 to others than loopback."""

    def rules(self) -> Rules:
        """The part that rules depend on."""
        return Rules(
            cluster_id=self.cluster_id,
            domain=self.domain,
            system_namespace=self.namespace,
            revision=self.revision,
            service_entries_select_pods=self.service_entries_select_pods,
            services_select_workload_entries=self.services_select_workload_entries,
            auto_allow_waypoints=self.auto_allow_waypoints,
            serve_dry_run_policies=self.serve_dry_run_policies,
            auto_allocate_addresses=self.auto_allocate_addresses,
            writes_status=self.writes_status,
        )


def load(flags: Mapping[str, str], environ: Mapping[str, str], *, strict: bool) -> tuple[Settings, tuple[Notice, ...]]:
    """The settings of flags by name (`parse_arguments`) and of the environment, and what is to be said once in the log.
    Strict: a flag that has no effect is refused too. Raises SettingsError."""
    loader = _Loader(flags, environ)
    settings = loader.settings()
    return settings, tuple(loader.said(strict))


_WITHOUT_EFFECT = (
    "PILOT_DEBOUNCE_AFTER",
    "PILOT_DEBOUNCE_MAX",
    "PILOT_ENABLE_EDS_DEBOUNCE",
    "PILOT_PUSH_THROTTLE",
    "PILOT_MAX_REQUESTS_PER_SECOND",
)
_AMBIENT_ONLY = ("PILOT_AUTO_ALLOW_WAYPOINT_POLICY", "AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY")
_OURS = re.compile(r"(?:PILOT|ISTIO|ENABLE|AMBIENT)_")
# Kubernetes puts these into every pod for the Services of its namespace; they are nobody's settings.
_SERVICE_LINK = re.compile(r".*_(?:SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)\Z")
_LEVELS = ("none", "fatal", "error", "warn", "info", "debug")
# A client says it in a header, and a flag in a list.
_CLUSTER = re.compile(r"[!-+\--~]+\Z")


class _Loader:
    """Reads each setting once, and remembers which were read and what there is to say."""

    def __init__(self, flags: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self._flags = flags
        self._environ = environ
        self._notices: list[Notice] = []
        self._read: set[str] = set()

    def settings(self) -> Settings:
        self._refuse()
        default = Settings()
        receive_limit = self._positive("ISTIO_GPRC_MAXRECVMSGSIZE", 0)
        ambient = self._bool("PILOT_ENABLE_AMBIENT", True)
        config_dir = self._flags.get("config-dir", "")
        host = "127.0.0.1" if config_dir else ""
        return Settings(
            config_dir=config_dir,
            namespace=self._name("namespace", "POD_NAMESPACE", default.namespace, DNS_LABEL, "the name of a namespace"),
            cluster_id=self._name(
                *("cluster-id", "CLUSTER_ID", default.cluster_id),
                *(_CLUSTER, "a name of visible ASCII characters without commas"),
            ),
            cluster_aliases=self._aliases(),
            domain=self._name("domain", "", default.domain, DNS_NAME, "a DNS name in lower case such as cluster.local"),
            revision=self._name("revision", "REVISION", "", DNS_LABEL, "a DNS label such as canary or 1-29-0"),
            mesh_config_file=self._text("mesh-config", "", default.mesh_config_file),
            kubeconfig=self._flags.get("kubeconfig", ""),
            pod_name=self._variable("POD_NAME"),
            http_addr=self._listen("http-addr", Address(host, 8080)),
            https_addr=self._listen_or_not("https-addr", Address(host, 15017)),
            grpc_addr=self._listen("grpc-addr", Address(host, 15010)),
            secure_grpc_addr=self._listen_or_not("secure-grpc-addr", Address(host, 15012)),
            monitoring_addr=self._listen_or_not("monitoring-addr", Address(host, 15014)),
            ca_cert_file=self._flags.get("ca-cert-file", ""),
            tls_cert_file=self._flags.get("tls-cert-file", ""),
            tls_key_file=self._flags.get("tls-key-file", ""),
            keepalive_interval_s=self._grpc_duration("keepalive-interval", "GRPC_KEEPALIVE_INTERVAL", 30.0),
            keepalive_timeout_s=self._grpc_duration("keepalive-timeout", "GRPC_KEEPALIVE_TIMEOUT", 10.0),
            max_connection_age_s=self._grpc_duration("keepalive-max-server-connection-age", "", 0.0, or_none=True)
            or None,
            shutdown_s=self._duration("shutdown-duration", "", default.shutdown_s),
            audit_interval_s=self._duration("audit-interval", "AMBIENTD_AUDIT_INTERVAL", 1.0) or None,
            max_streams=self._positive("ISTIO_GPRC_MAXSTREAMS", default.max_streams),
            receive_limit_bytes=receive_limit or default.receive_limit_bytes,
            secure_receive_limit_bytes=receive_limit or default.secure_receive_limit_bytes,
            kubernetes_api_qps=self._flag("kubernetes-api-qps", _number, default.kubernetes_api_qps),
            kubernetes_api_burst=self._flag("kubernetes-api-burst", _whole_number, default.kubernetes_api_burst),
            log_levels=self._flag("log-level", _log_levels, default.log_levels),
            log_json=self._flag("log-json", parse_bool, False),
            ambient=ambient,
            service_entries_select_pods=self._bool("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", True),
            services_select_workload_entries=self._bool("PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", True),
            auto_allow_waypoints=self._ambient_bool("PILOT_AUTO_ALLOW_WAYPOINT_POLICY", ambient),
            serve_dry_run_policies=self._ambient_bool("AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY", ambient),
            auto_allocate_addresses=self._bool("PILOT_ENABLE_IP_AUTOALLOCATE", True),
            writes_status=self._ambient_bool("AMBIENT_ENABLE_STATUS", ambient, default=True),
            token_file=self._token_file(config_dir),
            security=read_security(self._variable, self._notices.append),
            debug_on_http=self._bool("ENABLE_DEBUG_ON_HTTP", True),
            authorize_debug=self._bool("ENABLE_DEBUG_ENDPOINT_AUTH", True),
            debug_namespaces=_sorted_list(self._variable("DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES")),
            metrics_loopback_only=self._bool("METRICS_LOCALHOST_ACCESS_ONLY", False),
        )

    def said(self, strict: bool) -> list[Notice]:
        """What is to be said, after `settings`."""
        by_name = {flag.name or flag.upstream: flag for flag in FLAGS}
        for name in self._flags:
            flag = by_name.get(name)
            if strict and (flag is None or not flag.name):
                raise UsageError(f"--{name}: no such flag; see 'ambientd serve --help'")
            if flag is None or not flag.has_effect:
                self._notices.append(Notice("the flag is accepted and has no effect", f"--{name}"))
        known = [name for name in _WITHOUT_EFFECT if name in self._environ]
        if known:
            sentence = "the variables have no effect: batching follows the measured cost of a push"
            self._notices.append(Notice(sentence, ", ".join(known)))
        unknown = sorted(
            name
            for name in self._environ
            if _OURS.match(name)
            and name not in self._read
            and name not in _WITHOUT_EFFECT
            and not _SERVICE_LINK.match(name)
        )
        if unknown:
            self._notices.append(Notice("the variables are accepted and have no effect", ", ".join(unknown)))
        return self._notices

    def _refuse(self) -> None:
        """What we cannot do and somebody would rely on."""
        if "configDir" in self._flags:
            raise SettingsError(
                "--configDir: means something else in istiod (only Istio's kinds come from files there); "
                "use 'ambientd serve --config-dir', or remove it"
            )
        if self._flags.get("grpc-addr") == "":
            raise SettingsError("--grpc-addr: plain gRPC cannot share the HTTP port; give an address such as :15010")
        version = self._flags.get("tls-min-version", "1.2")
        if version == "1.3":
            raise SettingsError(
                "--tls-min-version: 1.3 cannot be enforced, as the versions of gRPC's TLS (1.2 and 1.3) are fixed; "
                "remove the flag, or demand it in a proxy in front"
            )
        if version != "1.2":
            raise SettingsError(f"--tls-min-version: must be 1.2, got {version!r}")
        if self._flags.get("tls-cipher-suites"):
            raise SettingsError("--tls-cipher-suites: the suites of gRPC's TLS are fixed; remove the flag")
        files = [f"--{name}" for name in ("ca-cert-file", "tls-cert-file", "tls-key-file") if self._flags.get(name)]
        if files and len(files) < 3:
            raise SettingsError(
                f"{' and '.join(files)}: --ca-cert-file, --tls-cert-file and --tls-key-file count only together; "
                "give all three, or none"
            )
        policy = self._variable("COMPLIANCE_POLICY")
        if policy:
            raise SettingsError(f"COMPLIANCE_POLICY: {policy!r} cannot be enforced in gRPC's TLS; unset the variable")
        for registry in _sorted_list(self._flags.get("registries", "Kubernetes")):
            if registry != "Kubernetes":
                raise SettingsError(f"--registries: must be Kubernetes, got {registry!r}")

    def _variable(self, name: str) -> str:
        """An empty variable counts as unset."""
        self._read.add(name)
        return self._environ.get(name, "")

    def _flag(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self._flags.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError as error:
            raise SettingsError(f"--{name}: {error}") from None

    def _text(self, flag: str, variable: str, default: str) -> str:
        """The flag, else the variable, else the default; an empty flag counts as unset."""
        given = self._variable(variable) if variable else ""
        return self._flags.get(flag) or given or default

    def _name(self, flag: str, variable: str, default: str, form: re.Pattern[str], rule: str) -> str:
        """As `_text`, refused by where it was given when it does not have the form."""
        name = self._text(flag, variable, default)
        if name and not form.match(name):
            where = f"--{flag}" if self._flags.get(flag) else variable
            raise SettingsError(f"{where}: must be {rule}, got {name!r}")
        return name

    def _token_file(self, config_dir: str) -> str:
        text = self._flags.get("token-review", "")
        if not text:
            return ""
        how, colon, path = text.partition(":")
        if how != "static" or not colon or not path:
            raise SettingsError(f"--token-review: must be static:FILE, got {text!r}")
        if not config_dir:
            raise SettingsError(
                "--token-review: a file of tokens beside an API server would let its readers be anybody; "
                "remove the flag, or serve a folder with --config-dir"
            )
        return path

    def _aliases(self) -> tuple[tuple[str, str], ...]:
        aliases: dict[str, str] = {}
        for pair in _sorted_list(self._flags.get("cluster-aliases", "")):
            alias, separator, cluster = pair.partition("=")
            if not separator or not _CLUSTER.match(alias) or not _CLUSTER.match(cluster):
                raise SettingsError(f"--cluster-aliases: must be a list of alias=cluster, got {pair!r}")
            if alias in aliases or cluster in aliases.values():
                raise SettingsError(f"--cluster-aliases: an alias and a cluster must occur once, got {pair!r} again")
            aliases[alias] = cluster
        return tuple(sorted(aliases.items()))

    def _listen(self, name: str, default: Address) -> Address:
        return self._flag(name, _address, default)

    def _listen_or_not(self, name: str, default: Address) -> Address | None:
        return None if self._flags.get(name) == "" else self._listen(name, default)

    def _duration(
        self,
        flag: str,
        variable: str,
        default: float,
        *,
        at_least: str = "0s",
        at_most: str = "",
        or_none: bool = False,
    ) -> float:
        """Seconds; shorter ones than `at_least` and longer ones than `at_most` are refused, but not 0 with
        `or_none`."""
        if flag in self._flags or not variable:
            seconds, where, text = self._flag(flag, parse_duration, default), f"--{flag}", self._flags.get(flag, "")
        else:
            seconds, where, text = self._parsed(variable, parse_duration, default), variable, self._variable(variable)
        check_duration(where, text, seconds, at_least, at_most, or_none=or_none)
        return seconds

    def _grpc_duration(self, flag: str, variable: str, default: float, *, or_none: bool = False) -> float:
        """Seconds. gRPC has whole milliseconds: it takes less for none, and no more than 32 bits hold."""
        return self._duration(flag, variable, default, at_least="1ms", at_most="500h", or_none=or_none)

    def _bool(self, name: str, default: bool) -> bool:
        return self._parsed(name, parse_bool, default)

    def _ambient_bool(self, name: str, ambient: bool, *, default: bool = False) -> bool:
        """A switch that counts only when ambient is on (operations.md 1.3.2)."""
        value = self._bool(name, default)
        if not ambient and self._variable(name):
            self._notices.append(Notice("the variable is ignored, as PILOT_ENABLE_AMBIENT is not true", name))
        return value and ambient

    def _positive(self, name: str, default: int) -> int:
        return self._parsed(name, _whole_number, default)

    def _parsed(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """A variable that does not parse is reported, and the default used (operations.md 1.3)."""
        text = self._variable(name)
        if not text:
            return default
        try:
            return parse(text)
        except ValueError as error:
            self._notices.append(Notice(f"the variable is ignored: {error}", name, text))
            return default


def _sorted_list(text: str) -> tuple[str, ...]:
    return tuple(sorted(part.strip() for part in text.split(",") if part.strip()))


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"must be an address such as :15010 or 127.0.0.1:15010, got {text!r}")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"must be an address with the name of a host, got {text!r}") from None
    return Address(host, int(port))


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise ValueError(f"must be a number above 0, got {text!r}")
    return number


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:12]) < 1 << 31 or len(text) > 10:
        raise ValueError(f"must be a whole number from 1 to 2147483647, got {text!r}")
    return int(text)


def _log_levels(text: str) -> tuple[tuple[str, str], ...]:
    levels = {"default": "info"}
    for part in _sorted_list(text):
        scope, colon, level = part.rpartition(":")
        if level not in _LEVELS or bool(scope) != bool(colon):
            raise ValueError(f"must be levels ({', '.join(_LEVELS)}), each alone or after a scope, got {part!r}")
        levels[scope or "default"] = level
    return tuple(sorted(levels.items()))

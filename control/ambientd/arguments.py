"""The flags of the command line, in both spellings, and the texts that Go programs accept for values. Must not know
what a flag means; `settings.py` does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ambientd.resources.booleans import FALSE_TEXTS, TRUE_TEXTS

Dialect = Literal["serve", "discovery"]


class SettingsError(Exception):
    """A setting that is refused: one line that says which, why, and what to do."""


class UsageError(SettingsError):
    """A command line that `ambientd serve` does not understand; the exit code is 2."""


class Notice(Struct, frozen=True):
    """Something about the settings that is said once in the log: a constant sentence, and what it is about."""

    sentence: str
    name: str
    value: str = ""


class Flag(Struct, frozen=True):
    """One flag. `serve` knows it by `name` only, `discovery` by both spellings."""

    name: str
    upstream: str
    """The spelling of istiod; empty: it has none."""
    help: str
    value: str = "TEXT"
    """What kind of value it takes, for the help; `BOOL` ones may stand alone."""
    short: str = ""
    has_effect: bool = True
    """False: accepted, so that the charts run unchanged, and said once."""

    @property
    def is_boolean(self) -> bool:
        return self.value == "BOOL"


FLAGS: tuple[Flag, ...] = (
    Flag("config-dir", "", "read manifests from this folder instead of an API server", "DIR"),
    Flag("namespace", "namespace", "namespace of the server itself ($POD_NAMESPACE, else istio-system)", short="n"),
    Flag("cluster-id", "clusterID", "name of this cluster ($CLUSTER_ID, else Kubernetes)"),
    Flag("cluster-aliases", "clusterAliases", "other names of clusters", "ALIAS=ID,…"),
    Flag("domain", "domain", "DNS suffix of Kubernetes Services (cluster.local)"),
    Flag("revision", "", "revision of this server ($REVISION)"),
    Flag("mesh-config", "meshConfig", "file with the mesh configuration (./etc/istio/config/mesh)", "FILE"),
    Flag("kubeconfig", "kubeconfig", "credentials for the API server ($KUBECONFIG)", "FILE"),
    Flag("http-addr", "httpAddr", "plain HTTP: readiness and debug (:8080)", "ADDRESS"),
    Flag("https-addr", "httpsAddr", "webhooks (:15017)", "ADDRESS"),
    Flag("grpc-addr", "grpcAddr", "plain gRPC (:15010)", "ADDRESS"),
    Flag("secure-grpc-addr", "secureGRPCAddr", "gRPC over TLS (:15012); empty: disabled", "ADDRESS"),
    Flag("monitoring-addr", "monitoringAddr", "metrics (:15014); empty: on the HTTP port", "ADDRESS"),
    Flag("keepalive-interval", "keepaliveInterval", "time between pings to a client (30s)", "DURATION"),
    Flag("keepalive-timeout", "keepaliveTimeout", "time a client has to answer a ping (10s)", "DURATION"),
    Flag(
        "keepalive-max-server-connection-age",
        "keepaliveMaxServerConnectionAge",
        "age at which a client is asked to connect again (never)",
        "DURATION",
    ),
    Flag("shutdown-duration", "shutdownDuration", "time that streams have to end (10s)", "DURATION"),
    Flag(
        "audit-interval",
        "",
        "time between slices of the self-audit, 0 for none ($AMBIENTD_AUDIT_INTERVAL, else 1s)",
        "DURATION",
    ),
    Flag("kubernetes-api-qps", "kubernetesApiQPS", "requests per second to the API server (80)", "NUMBER"),
    Flag("kubernetes-api-burst", "kubernetesApiBurst", "requests that may come at once (160)", "NUMBER"),
    Flag("log-level", "log_output_level", "levels of the log (default:info)", "[SCOPE:]LEVEL,…"),
    Flag("log-json", "log_as_json", "log as JSON", "BOOL"),
    Flag("tls-min-version", "tls-min-version", "lowest TLS version (1.2)"),
    Flag("tls-cipher-suites", "tls-cipher-suites", "TLS cipher suites"),
    Flag("token-review", "", "who knows tokens in a mesh without an API server; docs/settings.md", "static:FILE"),
    Flag("ca-cert-file", "caCertFile", "root certificate of the serving certificate", "FILE"),
    Flag("tls-cert-file", "tlsCertFile", "serving certificate", "FILE"),
    Flag("tls-key-file", "tlsKeyFile", "key of the serving certificate", "FILE"),
    Flag("registries", "registries", "kinds of registries; only Kubernetes"),
    Flag("", "configDir", "refused: it means something else in istiod", "DIR"),
    Flag("", "cniNamespace", "", has_effect=False),
    Flag("", "clusterRegistriesNamespace", "", has_effect=False),
    Flag("", "networksConfig", "", "FILE", has_effect=False),
    Flag("", "profile", "", "BOOL", has_effect=False),
    Flag("", "log_target", "", has_effect=False),
    Flag("", "log_caller", "", has_effect=False),
    Flag("", "log_stacktrace_level", "", has_effect=False),
    Flag("", "vklog", "", "NUMBER", short="v", has_effect=False),
    Flag("", "ctrlz_port", "", "NUMBER", has_effect=False),
    Flag("", "ctrlz_address", "", has_effect=False),
)
"""Every flag that is known (operations.md 1.2). A flag is called by its `name`, else by its `upstream` name."""


def parse_arguments(arguments: Sequence[str], dialect: Dialect) -> tuple[dict[str, str], tuple[Notice, ...]]:
    """The values of flags by their names (`Flag.name`, else `Flag.upstream`); the last of several counts. In
    `discovery` an unknown flag is ignored, its value too, and said once (operations.md 1.1). Raises UsageError."""
    known: dict[str, Flag] = {}
    for flag in FLAGS:
        known.update({f"--{name}": flag for name in _spellings(flag, dialect)})
        if flag.short and (flag.name or dialect == "discovery"):
            known[f"-{flag.short}"] = flag
    values: dict[str, str] = {}
    unknown: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--" or not argument.startswith("-") or argument == "-":
            positional = rest[0] if argument == "--" and rest else argument
            if positional != "--":
                raise UsageError(f"{positional!r}: no argument is expected that is not a flag; remove it")
            continue
        name, has_value, value = argument.partition("=")
        if not name.startswith("--") and len(name) > 2:
            # As in `-nistio-system`.
            name, has_value, value = argument[:2], "=", argument[2:]
        found = known.get(name)
        if found is None:
            if dialect == "serve":
                raise UsageError(f"{name}: no such flag; see 'ambientd serve --help'")
            unknown.append(name)
            if not has_value and rest and not rest[0].startswith("-"):
                rest.pop(0)
            continue
        if not has_value and found.is_boolean:
            value = "true"
        elif not has_value:
            if not rest:
                raise UsageError(f"{name}: a value must follow ({found.value})")
            value = rest.pop(0)
        values[found.name or found.upstream] = value
    notices = [Notice("unknown flags are ignored", ", ".join(sorted(set(unknown))))] if unknown else []
    return values, tuple(notices)


def _spellings(flag: Flag, dialect: Dialect) -> set[str]:
    names = {flag.name} if dialect == "serve" else {flag.name, flag.upstream, flag.upstream.replace("_", "-")}
    return names - {""}


_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
DNS_LABEL = re.compile(rf"{_LABEL}\Z")
DNS_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z")
"""As Kubernetes has them: in lower case, and without a dot at the end."""

_DURATION = re.compile(r"([-+]?)((?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)\Z", re.ASCII)
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds in a Go duration such as '1m30s' (operations.md 1.3). Raises ValueError that quotes the text; a bare
    number other than 0 is refused, as in Go."""
    if text.lstrip("+-") == "0" and len(text) <= 2:
        return 0.0
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(f"must be a duration such as 10s or 1m30s, got {text!r}")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(match[2]))
    if seconds > 9_223_372_036:
        raise ValueError(f"must be a duration below 292 years, got {text!r}")
    return -seconds if match[1] == "-" else seconds


def check_duration(
    name: str, text: str, seconds: float, at_least: str, at_most: str = "", *, or_none: bool = False
) -> None:
    """Refuses what is shorter or longer than can be kept, but not 0 with `or_none`, where that means none. `name`: of
    the flag or variable; `text`: as it was given. Raises SettingsError."""
    if at_most and seconds > parse_duration(at_most):
        raise SettingsError(f"{name}: must be at most {at_most}, got {text!r}")
    if seconds < parse_duration(at_least) and not (or_none and seconds == 0):
        raise SettingsError(f"{name}: must be at least {at_least}, got {text!r}{'; 0 for none' if or_none else ''}")


def parse_bool(text: str) -> bool:
    """A boolean in Go's spellings. Raises ValueError that quotes the text."""
    if text not in TRUE_TEXTS | FALSE_TEXTS:
        raise ValueError(f"must be true or false, got {text!r}")
    return text in TRUE_TEXTS

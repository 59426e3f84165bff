"""Settings of authentication, certificates and roots (operations.md 1.3.3), validated once. What we cannot do and
somebody would rely on is refused. Must not read anything but the variables it is given."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ambientd.arguments import DNS_NAME, Notice, SettingsError, check_duration, parse_bool, parse_duration

DAY_S = 86_400.0


class Security(Struct, frozen=True, kw_only=True):
    authenticate: bool = True
    """`XDS_AUTH`: streams over TLS must bring a token; false: anybody is served, and nobody gets a certificate."""
    authenticate_plaintext: bool = False
    """`XDS_AUTH_PLAINTEXT`: also streams on plain gRPC must bring a token."""
    checks_identity: bool = True
    """`PILOT_ENABLE_XDS_IDENTITY_CHECK`: a stream's node must be that of its caller."""
    token_audiences: tuple[str, ...] = ("istio-ca",)
    """`TOKEN_AUDIENCES`: a token must be for one of them."""
    trusted_node_accounts: frozenset[tuple[str, str]] = frozenset()
    """`CA_TRUSTED_NODE_ACCOUNTS`: namespace and account of node proxies, which may have the identities of pods on their
    node."""

    serves_ca: bool = True
    """`ENABLE_CA_SERVER`: certificates are signed here."""
    cert_provider: str = "istiod"
    """`PILOT_CERT_PROVIDER`: `istiod`, our CA issues the serving certificate; `custom`, it must come from files; with
    `none` it must too, and roots are not distributed."""
    ca_dir: str = "./etc/cacerts"
    """`ROOT_CA_DIR`: of a plugged-in CA; the default is where istiod's chart mounts it."""
    uses_remote_certs: bool = False
    """`USE_REMOTE_CERTS`: a plugged-in CA that is not in the folder is read from the secret `cacerts`."""
    self_signed_in_cacerts: bool = False
    """`USE_CACERTS_FOR_SELF_SIGNED_CA`: a new self-signed CA is kept in the secret `cacerts`."""
    default_cert_s: float = DAY_S
    """`DEFAULT_WORKLOAD_CERT_TTL`, seconds: life of a certificate whose request does not say."""
    max_cert_s: float = 90 * DAY_S
    """`MAX_WORKLOAD_CERT_TTL`, seconds."""
    self_signed_cert_s: float = 3650 * DAY_S
    """`CITADEL_SELF_SIGNED_CA_CERT_TTL`, seconds: of a self-signed root, and of the serving certificate."""
    self_signed_key_bits: int = 2048
    """`CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE`."""
    root_check_s: float | None = 3600.0
    """`CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL`, seconds; None: a self-signed root is neither renewed nor read
    again."""
    root_grace_percent: int = 20
    """`CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE`: a root with less than this part of its life left is
    renewed."""
    root_check_jitter: bool = True
    """`CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR`: the first check waits a random part of the interval."""
    checks_trust_domain: bool = True
    """`CA_CHECK_IMPERSONATED_TRUST_DOMAIN`: an identity for which a node proxy asks must be of the mesh."""
    custom_hosts: tuple[str, ...] = ()
    """`ISTIOD_CUSTOM_HOST`: further names in the serving certificate. Sorted."""
    root_config_map: str = "istio-ca-root-cert"
    """`PILOT_CA_CERT_CONFIGMAP`: written to every namespace."""
    distributes_crl: bool = True
    """`PILOT_ENABLE_CA_CRL`: the CRL of a plugged-in CA is read and distributed."""
    crl_config_map: str = "istio-ca-crl"
    """`PILOT_CRL_CONFIGMAP`."""


_NOT_BUILT = {
    "EXTERNAL_CA": "signing through Kubernetes is not offered",
    "JWT_RULE": "callers are known by TokenReview only",
    "TRUSTED_GATEWAY_CIDR": "callers are known by their own tokens only, and not by what a gateway says",
}
_NOT_TRUE = {
    "ISTIO_MULTIROOT_MESH": "several roots are not offered",
    "ENABLE_CLUSTER_TRUST_BUNDLE_API": "roots are distributed as ConfigMaps only",
}
_PROVIDERS = ("istiod", "custom", "none")
_ROOT_CHECK = "CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL"


def read_security(variable: Callable[[str], str], note: Callable[[Notice], None]) -> Security:
    """`variable`: the value of one, empty when it is not set; `note`: takes what is to be said once. A value that does
    not parse is reported, and the default used (operations.md 1.3). Raises SettingsError."""
    default = Security()

    def parsed(name: str, parse: Callable[[str], float], fallback: float) -> float:
        text = variable(name)
        try:
            return parse(text) if text else fallback
        except ValueError as error:
            note(Notice(f"the variable is ignored: {error}", name, text))
            return fallback

    def switch(name: str, fallback: bool) -> bool:
        return bool(parsed(name, parse_bool, fallback))

    def life_s(name: str, fallback: float) -> float:
        """Of a certificate, which has whole seconds."""
        seconds = parsed(name, parse_duration, fallback)
        check_duration(name, variable(name), seconds, "1s")
        return seconds

    _refuse(variable, switch)
    provider = variable("PILOT_CERT_PROVIDER") or default.cert_provider
    if provider == "kubernetes" or provider.startswith("k8s.io/"):
        raise SettingsError(
            f"PILOT_CERT_PROVIDER: {provider!r} is not offered; unset it to have our own certificate, or give files"
        )
    if provider not in _PROVIDERS:
        raise SettingsError(f"PILOT_CERT_PROVIDER: must be istiod, custom or none, got {provider!r}")
    root_check_s = parsed(_ROOT_CHECK, parse_duration, default.root_check_s or 0)
    if root_check_s > 0:
        check_duration(_ROOT_CHECK, variable(_ROOT_CHECK), root_check_s, "1s", or_none=True)
    key_bits = int(parsed("CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE", _whole_number, default.self_signed_key_bits))
    if not 2048 <= key_bits <= 8192:
        raise SettingsError(f"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE: must be from 2048 to 8192, got {key_bits}")
    percent = int(
        parsed("CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE", _whole_number, default.root_grace_percent)
    )
    if not 0 <= percent <= 100:
        raise SettingsError(
            f"CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE: must be from 0 to 100, got {percent}"
        )
    return Security(
        authenticate=switch("XDS_AUTH", default.authenticate),
        authenticate_plaintext=switch("XDS_AUTH_PLAINTEXT", default.authenticate_plaintext),
        checks_identity=switch("PILOT_ENABLE_XDS_IDENTITY_CHECK", default.checks_identity),
        token_audiences=_audiences(variable("TOKEN_AUDIENCES")),
        trusted_node_accounts=_accounts(variable("CA_TRUSTED_NODE_ACCOUNTS"), note),
        serves_ca=switch("ENABLE_CA_SERVER", default.serves_ca),
        cert_provider=provider,
        ca_dir=variable("ROOT_CA_DIR") or default.ca_dir,
        uses_remote_certs=switch("USE_REMOTE_CERTS", default.uses_remote_certs),
        self_signed_in_cacerts=switch("USE_CACERTS_FOR_SELF_SIGNED_CA", default.self_signed_in_cacerts),
        default_cert_s=life_s("DEFAULT_WORKLOAD_CERT_TTL", default.default_cert_s),
        max_cert_s=life_s("MAX_WORKLOAD_CERT_TTL", default.max_cert_s),
        self_signed_cert_s=life_s("CITADEL_SELF_SIGNED_CA_CERT_TTL", default.self_signed_cert_s),
        self_signed_key_bits=key_bits,
        root_check_s=root_check_s if root_check_s > 0 else None,
        root_grace_percent=percent,
        root_check_jitter=switch("CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR", default.root_check_jitter),
        checks_trust_domain=switch("CA_CHECK_IMPERSONATED_TRUST_DOMAIN", default.checks_trust_domain),
        custom_hosts=_hosts(variable("ISTIOD_CUSTOM_HOST")),
        root_config_map=_object_name("PILOT_CA_CERT_CONFIGMAP", variable) or default.root_config_map,
        distributes_crl=switch("PILOT_ENABLE_CA_CRL", default.distributes_crl),
        crl_config_map=_object_name("PILOT_CRL_CONFIGMAP", variable) or default.crl_config_map,
    )


def _refuse(variable: Callable[[str], str], switch: Callable[[str, bool], bool]) -> None:
    for name, why in _NOT_BUILT.items():
        if variable(name):
            raise SettingsError(f"{name}: {why}; unset the variable")
    for name, why in _NOT_TRUE.items():
        if switch(name, False):
            raise SettingsError(f"{name}: {why}; unset the variable")


def _audiences(text: str) -> tuple[str, ...]:
    if not text:
        return Security().token_audiences
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise SettingsError(f"TOKEN_AUDIENCES: must name at least one audience, got {text!r}")
    return found


def _accounts(text: str, note: Callable[[Notice], None]) -> frozenset[tuple[str, str]]:
    found = set()
    for part in (part.strip() for part in text.split(",")):
        namespace, slash, account = (half.strip() for half in part.partition("/"))
        if slash and namespace and account:
            found.add((namespace, account))
        elif part:
            sentence = "an entry of the variable is ignored: it must be namespace/account"
            note(Notice(sentence, "CA_TRUSTED_NODE_ACCOUNTS", part))
    return frozenset(found)


def _hosts(text: str) -> tuple[str, ...]:
    found = sorted({part.strip() for part in text.split(",") if part.strip()})
    for host in found:
        if not DNS_NAME.match(host):
            raise SettingsError(f"ISTIOD_CUSTOM_HOST: must be a list of DNS names, got {host!r}")
    return tuple(found)


def _object_name(name: str, variable: Callable[[str], str]) -> str:
    text = variable(name)
    if text and not DNS_NAME.match(text):
        raise SettingsError(f"{name}: must be the name of a ConfigMap, got {text!r}")
    return text


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError(f"must be a whole number, got {text!r}")
    return int(text)

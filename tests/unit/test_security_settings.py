"""Settings of authentication, certificates and roots (operations.md 1.3.3)."""

from __future__ import annotations

import pytest

from ambientd.security import Security
from ambientd.settings import Notice, SettingsError, load


def security_of(**environ: str) -> Security:
    settings, notices = load({}, environ, strict=True)
    assert notices == ()
    return settings.security


def test_nothing_given_gives_the_defaults() -> None:
    assert security_of() == Security()


def test_lists_are_trimmed() -> None:
    found = security_of(
        TOKEN_AUDIENCES=" istio-ca , vault,",
        CA_TRUSTED_NODE_ACCOUNTS=" istio-system/ztunnel , kube-system / ztunnel",
        ISTIOD_CUSTOM_HOST="b.com, a.com",
    )
    assert found.token_audiences == ("istio-ca", "vault")
    assert found.trusted_node_accounts == {("istio-system", "ztunnel"), ("kube-system", "ztunnel")}
    assert found.custom_hosts == ("a.com", "b.com")


def test_an_account_that_is_none_is_left_out_and_said() -> None:
    settings, notices = load({}, {"CA_TRUSTED_NODE_ACCOUNTS": "ztunnel,a/,/b,istio-system/ztunnel"}, strict=True)
    assert settings.security.trusted_node_accounts == {("istio-system", "ztunnel")}
    sentence = "an entry of the variable is ignored: it must be namespace/account"
    assert notices == tuple(Notice(sentence, "CA_TRUSTED_NODE_ACCOUNTS", entry) for entry in ("ztunnel", "a/", "/b"))


def test_a_root_that_is_never_checked_is_none() -> None:
    assert security_of(CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL="0").root_check_s is None
    assert security_of(CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL="90s").root_check_s == 90.0


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"TOKEN_AUDIENCES": " , "}, "TOKEN_AUDIENCES: must name at least one audience, got ' , '"),
        ({"EXTERNAL_CA": "ISTIOD_RA_KUBERNETES_API"}, "EXTERNAL_CA: signing through Kubernetes is not offered"),
        ({"JWT_RULE": "{}"}, "JWT_RULE: callers are known by TokenReview only"),
        ({"TRUSTED_GATEWAY_CIDR": "10.0.0.0/8"}, "TRUSTED_GATEWAY_CIDR: callers are known by their own tokens only"),
        ({"ISTIO_MULTIROOT_MESH": "true"}, "ISTIO_MULTIROOT_MESH: several roots are not offered"),
        ({"ENABLE_CLUSTER_TRUST_BUNDLE_API": "1"}, "ENABLE_CLUSTER_TRUST_BUNDLE_API: roots are distributed"),
        ({"PILOT_CERT_PROVIDER": "kubernetes"}, "PILOT_CERT_PROVIDER: 'kubernetes' is not offered"),
        ({"PILOT_CERT_PROVIDER": "k8s.io/x"}, "PILOT_CERT_PROVIDER: 'k8s.io/x' is not offered"),
        ({"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE": "1024"}, "must be from 2048 to 8192, got 1024"),
        ({"MAX_WORKLOAD_CERT_TTL": "-1h"}, "MAX_WORKLOAD_CERT_TTL: must be at least 1s, got '-1h'"),
        ({"MAX_WORKLOAD_CERT_TTL": "0"}, "MAX_WORKLOAD_CERT_TTL: must be at least 1s, got '0'"),
        ({"DEFAULT_WORKLOAD_CERT_TTL": "1ns"}, "DEFAULT_WORKLOAD_CERT_TTL: must be at least 1s, got '1ns'"),
        (
            {"CITADEL_SELF_SIGNED_CA_CERT_TTL": "999ms"},
            "CITADEL_SELF_SIGNED_CA_CERT_TTL: must be at least 1s, got '999",
        ),
        (
            {"CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL": "1ns"},
            "CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL: must be at least 1s, got '1ns'; 0 for none",
        ),
        ({"PILOT_CERT_PROVIDER": "foo"}, "PILOT_CERT_PROVIDER: must be istiod, custom or none, got 'foo'"),
        ({"PILOT_CERT_PROVIDER": "Istiod"}, "PILOT_CERT_PROVIDER: must be istiod, custom or none, got 'Istiod'"),
        ({"CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE": "101"}, "must be from 0 to 100, got 101"),
        ({"ISTIOD_CUSTOM_HOST": "a b"}, "ISTIOD_CUSTOM_HOST: must be a list of DNS names, got 'a b'"),
        ({"PILOT_CA_CERT_CONFIGMAP": "../x"}, "PILOT_CA_CERT_CONFIGMAP: must be the name of a ConfigMap"),
    ],
)
def test_what_cannot_be_done_is_refused(environ: dict[str, str], line: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load({}, environ, strict=True)
    assert line in str(refused.value)


def test_the_providers_of_a_serving_certificate_that_there_are() -> None:
    for provider in ("istiod", "custom", "none"):
        assert security_of(PILOT_CERT_PROVIDER=provider).cert_provider == provider


def test_a_life_of_a_second_is_legal() -> None:
    assert security_of(DEFAULT_WORKLOAD_CERT_TTL="1s", MAX_WORKLOAD_CERT_TTL="1s").max_cert_s == 1.0


def test_switches_that_are_off_refuse_nothing() -> None:
    assert security_of(ISTIO_MULTIROOT_MESH="false", ENABLE_CLUSTER_TRUST_BUNDLE_API="f") == Security()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"token-review": "static:x"}, "--token-review: a file of tokens beside an API server"),
        ({"token-review": "static:", "config-dir": "d"}, "--token-review: must be static:FILE, got 'static:'"),
        ({"token-review": "x", "config-dir": "d"}, "--token-review: must be static:FILE, got 'x'"),
        (
            {"tls-cert-file": "a"},
            "--tls-cert-file: --ca-cert-file, --tls-cert-file and --tls-key-file count only together",
        ),
        ({"tls-cert-file": "a", "tls-key-file": "b"}, "--tls-cert-file and --tls-key-file: "),
    ],
)
def test_flags_that_cannot_be_honoured_are_refused(flags: dict[str, str], line: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(flags, {}, strict=True)
    assert str(refused.value).startswith(line)


def test_a_file_of_tokens_goes_with_a_folder() -> None:
    settings, _ = load({"config-dir": "d", "token-review": "static:t:1.yaml"}, {}, strict=True)
    assert settings.token_file == "t:1.yaml"

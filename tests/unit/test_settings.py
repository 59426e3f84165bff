"""Flags and environment variables (operations.md 1.2, 1.3)."""

from __future__ import annotations

import pytest

from ambientd.index.rules import Rules
from ambientd.settings import (
    FLAGS,
    Address,
    Notice,
    Settings,
    SettingsError,
    UsageError,
    load,
    parse_arguments,
    parse_bool,
    parse_duration,
)


def settings_of(flags: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> Settings:
    settings, notices = load(flags or {}, environ or {}, strict=True)
    assert notices == ()
    return settings


def test_nothing_given_gives_the_defaults() -> None:
    assert settings_of() == Settings()
    assert Settings().rules() == Rules()


def test_a_folder_of_manifests_listens_on_loopback_unless_told_otherwise() -> None:
    settings = settings_of({"config-dir": "mesh", "http-addr": ":8080"})
    assert settings.config_dir == "mesh"
    assert settings.http_addr == Address("", 8080)
    assert [str(a) for a in (settings.grpc_addr, settings.secure_grpc_addr, settings.monitoring_addr)] == [
        "127.0.0.1:15010",
        "127.0.0.1:15012",
        "127.0.0.1:15014",
    ]


def test_flags_come_before_variables() -> None:
    environ = {"POD_NAMESPACE": "a", "CLUSTER_ID": "b", "REVISION": "c", "GRPC_KEEPALIVE_INTERVAL": "5s"}
    settings = settings_of({}, environ)
    assert (settings.namespace, settings.cluster_id, settings.revision, settings.keepalive_interval_s) == (
        "a",
        "b",
        "c",
        5.0,
    )
    settings = settings_of({"namespace": "x", "cluster-id": "y", "keepalive-interval": "1m"}, environ)
    assert (settings.namespace, settings.cluster_id, settings.keepalive_interval_s) == ("x", "y", 60.0)


def test_the_rules_follow_flags_and_variables() -> None:
    settings = settings_of(
        {"domain": "example", "cluster-id": "east", "namespace": "mesh"},
        {
            "REVISION": "canary",
            "PILOT_ENABLE_SERVICEENTRY_SELECT_PODS": "f",
            "PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES": "0",
            "PILOT_AUTO_ALLOW_WAYPOINT_POLICY": "T",
            "AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY": "1",
            "PILOT_ENABLE_IP_AUTOALLOCATE": "False",
        },
    )
    assert settings.rules() == Rules(
        cluster_id="east",
        domain="example",
        system_namespace="mesh",
        revision="canary",
        service_entries_select_pods=False,
        services_select_workload_entries=False,
        auto_allow_waypoints=True,
        serve_dry_run_policies=True,
        auto_allocate_addresses=False,
    )


def test_a_receive_limit_that_is_set_counts_for_both_ports() -> None:
    settings = settings_of({}, {"ISTIO_GPRC_MAXRECVMSGSIZE": "1000", "ISTIO_GPRC_MAXSTREAMS": "7"})
    assert (settings.receive_limit_bytes, settings.secure_receive_limit_bytes) == (1000, 1000)
    assert settings.max_streams == 7


def test_ports_that_may_be_absent_are_when_their_address_is_empty() -> None:
    settings = settings_of({"secure-grpc-addr": "", "monitoring-addr": "", "https-addr": ""})
    assert (settings.secure_grpc_addr, settings.monitoring_addr, settings.https_addr) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":15010", Address("", 15010)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:15010", Address("::1", 15010)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert settings_of({"grpc-addr": text}).grpc_addr == address
    assert str(address) == text


def test_levels_and_aliases() -> None:
    settings = settings_of({"log-level": "ads:debug,warn", "cluster-aliases": "b=two,a=one", "log-json": "true"})
    assert settings.log_levels == (("ads", "debug"), ("default", "warn"))
    assert settings.cluster_aliases == (("a", "one"), ("b", "two"))
    assert settings.log_json


@pytest.mark.parametrize(
    ("flags", "environ", "line"),
    [
        (
            {"grpc-addr": ""},
            {},
            "--grpc-addr: plain gRPC cannot share the HTTP port; give an address such as :15010",
        ),
        ({"configDir": "x"}, {}, "--configDir: means something else in istiod"),
        ({"tls-min-version": "1.3"}, {}, "--tls-min-version: 1.3 cannot be enforced"),
        ({"tls-min-version": "1.1"}, {}, "--tls-min-version: must be 1.2, got '1.1'"),
        ({"tls-cipher-suites": "X"}, {}, "--tls-cipher-suites: the suites of gRPC's TLS are fixed"),
        ({}, {"COMPLIANCE_POLICY": "fips-140-2"}, "COMPLIANCE_POLICY: 'fips-140-2' cannot be enforced"),
        (
            {"keepalive-max-server-connection-age": "-1s"},
            {},
            "--keepalive-max-server-connection-age: must be at least 1ms, got '-1s'; 0 for none",
        ),
        ({"keepalive-interval": "0"}, {}, "--keepalive-interval: must be at least 1ms, got '0'"),
        ({"keepalive-interval": "999999h"}, {}, "--keepalive-interval: must be at most 500h, got '999999h'"),
        (
            {"keepalive-max-server-connection-age": "501h"},
            {},
            "--keepalive-max-server-connection-age: must be at most 500h, got '501h'",
        ),
        (
            {},
            {"GRPC_KEEPALIVE_TIMEOUT": "999999h"},
            "GRPC_KEEPALIVE_TIMEOUT: must be at most 500h, got '999999h'",
        ),
        *(
            ({flag: "..:1"}, {}, f"--{flag}: must be an address with the name of a host, got '..:1'")
            for flag in ("http-addr", "grpc-addr", "secure-grpc-addr", "monitoring-addr")
        ),
        (
            {"grpc-addr": "x" * 64 + ":1"},
            {},
            f"--grpc-addr: must be an address with the name of a host, got '{'x' * 64}:1'",
        ),
        ({"keepalive-timeout": "1ns"}, {}, "--keepalive-timeout: must be at least 1ms, got '1ns'"),
        ({}, {"GRPC_KEEPALIVE_INTERVAL": "-1s"}, "GRPC_KEEPALIVE_INTERVAL: must be at least 1ms, got '-1s'"),
        ({}, {"AMBIENTD_AUDIT_INTERVAL": "-1s"}, "AMBIENTD_AUDIT_INTERVAL: must be at least 0s, got '-1s'"),
        (
            {"keepalive-max-server-connection-age": "1us"},
            {},
            "--keepalive-max-server-connection-age: must be at least 1ms, got '1us'; 0 for none",
        ),
        ({"shutdown-duration": "10"}, {}, "--shutdown-duration: must be a duration such as 10s or 1m30s, got '10'"),
        ({"http-addr": "8080"}, {}, "--http-addr: must be an address such as :15010 or 127.0.0.1:15010, got '8080'"),
        ({"http-addr": "::1:8080"}, {}, "--http-addr: must be an address"),
        ({"http-addr": ":99999"}, {}, "--http-addr: must be an address"),
        ({"cluster-aliases": "a=one,b=one"}, {}, "--cluster-aliases: an alias and a cluster must occur once"),
        ({"cluster-aliases": "a"}, {}, "--cluster-aliases: must be a list of alias=cluster, got 'a'"),
        ({"cluster-aliases": "a b=one"}, {}, "--cluster-aliases: must be a list of alias=cluster, got 'a b=one'"),
        ({"namespace": "A b"}, {}, "--namespace: must be the name of a namespace, got 'A b'"),
        ({}, {"POD_NAMESPACE": "A b"}, "POD_NAMESPACE: must be the name of a namespace, got 'A b'"),
        ({"registries": "Kubernetes,Mock"}, {}, "--registries: must be Kubernetes, got 'Mock'"),
        ({"log-level": "loud"}, {}, "--log-level: must be levels"),
        ({"log-json": "maybe"}, {}, "--log-json: must be true or false, got 'maybe'"),
        ({"kubernetes-api-qps": "nan"}, {}, "--kubernetes-api-qps: must be a number above 0, got 'nan'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_line(
    flags: dict[str, str], environ: dict[str, str], line: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ, strict=False)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


_NO_LABELS = ("A", "-a", "a-", "a.b", "a b", "a,b", "a/b", "a_b", "ä", "a\n", "\0", " ", "a" * 64)


@pytest.mark.parametrize(
    ("flag", "variable", "values", "rule"),
    [
        (
            "domain",
            "",
            (
                "Cluster.local",
                "cluster.local.",
                ".local",
                "a..b",
                "a_b",
                "a b",
                "a,b",
                "é",
                "a\n",
                "\0",
                "a." * 127 + "b",
            ),
            "must be a DNS name in lower case such as cluster.local",
        ),
        (
            "cluster-id",
            "CLUSTER_ID",
            ("a,b", "a b", " ", "a\tb", "a\n", "\0", "\x7f", "é", "\u200b"),
            "must be a name of visible ASCII characters without commas",
        ),
        ("revision", "REVISION", _NO_LABELS, "must be a DNS label such as canary or 1-29-0"),
        ("namespace", "POD_NAMESPACE", _NO_LABELS, "must be the name of a namespace"),
    ],
)
def test_names_that_are_none_are_refused_by_where_they_were_given(
    flag: str, variable: str, values: tuple[str, ...], rule: str
) -> None:
    for value in values:
        for flags, environ in (({flag: value}, {}), ({}, {variable: value})):
            if environ and not variable:
                continue
            with pytest.raises(SettingsError) as caught:
                load(flags, environ, strict=False)
            assert str(caught.value) == f"{f'--{flag}' if flags else variable}: {rule}, got {value!r}"


def test_names_that_occur_are_accepted() -> None:
    arn = "arn:aws:eks:eu-west-1:123456789012:cluster/blue_1"
    for cluster in (arn, "Kubernetes", "gke_project_zone_name", "a=b"):
        assert settings_of({"cluster-id": cluster}).cluster_id == cluster
    for domain in ("cluster.local", "example", "k8s.corp-1.example.com"):
        assert settings_of({"domain": domain}).domain == domain
    for revision in ("", "default", "canary", "1-29-0"):
        assert settings_of({"revision": revision}).revision == revision


def test_what_has_no_effect_is_said_once() -> None:
    environ = {
        "PILOT_DEBOUNCE_AFTER": "1s",
        "PILOT_PUSH_THROTTLE": "9",
        "PILOT_UNKNOWN": "x",
        "ENABLE_SOMETHING": "x",
        "ISTIO_MISC": "x",
        "ISTIO_INGRESS_SERVICE_HOST": "10.0.0.1",
        "ISTIO_INGRESS_PORT_80_TCP_ADDR": "10.0.0.1",
        "ISTIO_INGRESS_PORT": "tcp://10.0.0.1:80",
        "HOME": "/",
        "XDS_AUTH_PLAINTEXT": "maybe",
    }
    settings, notices = load({"ctrlz_port": "0"}, environ, strict=False)
    assert settings == Settings()
    assert notices == (
        Notice("the variable is ignored: must be true or false, got 'maybe'", "XDS_AUTH_PLAINTEXT", "maybe"),
        Notice("the flag is accepted and has no effect", "--ctrlz_port"),
        Notice(
            "the variables have no effect: batching follows the measured cost of a push",
            "PILOT_DEBOUNCE_AFTER, PILOT_PUSH_THROTTLE",
        ),
        Notice("the variables are accepted and have no effect", "ENABLE_SOMETHING, ISTIO_MISC, PILOT_UNKNOWN"),
    )


def test_switches_of_ambient_are_ignored_when_it_is_off() -> None:
    environ = {"PILOT_ENABLE_AMBIENT": "false", "PILOT_AUTO_ALLOW_WAYPOINT_POLICY": "true"}
    settings, notices = load({}, environ, strict=False)
    assert (settings.ambient, settings.auto_allow_waypoints) == (False, False)
    assert [notice.name for notice in notices] == ["PILOT_AUTO_ALLOW_WAYPOINT_POLICY"]


def test_strict_settings_know_no_flag_that_has_no_effect() -> None:
    with pytest.raises(UsageError):
        load({"ctrlz_port": "0"}, {}, strict=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("10s", 10),
        ("1m30s", 90),
        ("24h", 86400),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("100ms", 0.1),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("-1s", -1),
        ("+1s", 1),
    ],
)
def test_durations_in_go_syntax(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "1 s", "1d", "1m 30s", "ten", "1s ", "--1s", "-", "1e3s", "9999999999h"]
)
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(text)


def test_booleans_in_go_spelling() -> None:
    assert all(parse_bool(text) for text in ("1", "t", "T", "true", "TRUE", "True"))
    assert not any(parse_bool(text) for text in ("0", "f", "F", "false", "FALSE", "False"))
    for text in ("", "yes", "on", "tRUE", " true"):
        with pytest.raises(ValueError, match="must be true or false"):
            parse_bool(text)


def test_serve_reads_its_own_spelling_only() -> None:
    arguments = ["--config-dir", "x", "-n", "a", "-nb", "--log-json", "--grpc-addr=", "--http-addr=:1"]
    assert parse_arguments(arguments, "serve") == (
        {"config-dir": "x", "namespace": "b", "log-json": "true", "grpc-addr": "", "http-addr": ":1"},
        (),
    )
    for unknown in ("--grpcAddr=:1", "--configDir=x", "--unknown", "-x"):
        with pytest.raises(UsageError, match="no such flag"):
            parse_arguments([unknown], "serve")


def test_discovery_reads_the_spellings_of_the_charts_and_ignores_what_it_does_not_know() -> None:
    arguments = [
        "--monitoringAddr=:15014",
        "--log_output_level=default:info",
        "--log-as-json=false",
        "--domain",
        "cluster.local",
        "--keepaliveMaxServerConnectionAge",
        "30m",
        "--vanished",
        "value",
        "--gone",
        "--grpc-addr",
        "",
        "-v=3",
    ]
    values, notices = parse_arguments(arguments, "discovery")
    assert values == {
        "monitoring-addr": ":15014",
        "log-level": "default:info",
        "log-json": "false",
        "domain": "cluster.local",
        "keepalive-max-server-connection-age": "30m",
        "grpc-addr": "",
        "vklog": "3",
    }
    assert notices == (Notice("unknown flags are ignored", "--gone, --vanished"),)


@pytest.mark.parametrize("arguments", [["x"], ["--log-json", "true"], ["--", "x"], ["-"], ["--domain"]])
def test_a_positional_argument_and_a_missing_value_are_errors(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_arguments(arguments, "discovery")


def test_no_spelling_means_two_flags() -> None:
    names = [name for flag in FLAGS for name in {flag.name, flag.upstream} - {""}]
    assert len(names) == len(set(names))

"""Where the API server is and who we are to it: a kubeconfig, or the service account of the pod. Read by the official
package, into one frozen value. Blocks (files, plugins), so it runs in a thread. Must not talk to the server."""

from __future__ import annotations

import base64
import os
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes.client import Configuration
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_HOST_ENV_NAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from msgspec import Struct

from ambientd.kube.errors import Misconfigured

_HOME_CONFIG = "~/.kube/config"


class Origin(Struct, frozen=True):
    """Where the configuration comes from."""

    kubeconfig: str = ""
    """Paths, joined as in $KUBECONFIG; empty: the service account of this pod."""
    token_file: str = SERVICE_TOKEN_FILENAME
    ca_file: str = SERVICE_CERT_FILENAME

    def __str__(self) -> str:
        return self.kubeconfig or "the service account of this pod"


class PluginCredentials(Struct, frozen=True):
    """What an exec plugin gave."""

    token: str = ""
    certificate: str = ""
    """PEM."""
    key: str = ""
    expires_at_s: float = 0.0
    """Unix time, seconds; 0: it does not tell."""


class Access(Struct, frozen=True, kw_only=True):
    """How to reach the server, at this moment. Equal while nothing changed."""

    server: str
    """URL without a slash at the end."""
    authorization: str = ""
    """Value of the header; empty: none."""
    ca_file: str = ""
    """Empty: the system's certificates."""
    cert_file: str = ""
    key_file: str = ""
    checks_certificate: bool = True
    server_name: str = ""
    """In the server's certificate, if it is not the host of the URL."""
    proxy: str = ""
    can_renew: bool = True
    """The credentials may be others when they are read again without anybody changing the configuration."""
    plugin: PluginCredentials | None = None
    """Of an exec plugin; asked again only when they expire or are refused."""


def find_origin(kubeconfig: str, environ: Mapping[str, str], origin: Origin | None = None) -> Origin:
    """The setting if there is one, else the files of $KUBECONFIG that exist (charts set it to an optional mount), else
    the pod's service account, else ~/.kube/config. `origin`: where a service account is mounted. Raises
    Misconfigured."""
    account = origin or Origin()
    if kubeconfig:
        if not os.access(kubeconfig, os.R_OK):
            why = "no such file" if not os.path.exists(kubeconfig) else "it cannot be read"
            raise Misconfigured(f"--kubeconfig: {kubeconfig}: {why}; give a kubeconfig file that this user may read")
        return Origin(kubeconfig)
    paths = [path for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path and os.path.exists(path)]
    if paths:
        return Origin(os.pathsep.join(paths))
    if environ.get(SERVICE_HOST_ENV_NAME) and os.path.isfile(account.token_file):
        return account
    home = environ.get("HOME", "")
    home_config = _HOME_CONFIG.replace("~", home, 1)
    if home and os.path.exists(home_config):
        return Origin(home_config)
    raise Misconfigured(
        "no kubeconfig, and no service account is mounted here; give --kubeconfig FILE, or --config-dir DIR to serve "
        "a folder of manifests"
    )


def load_access(origin: Origin, environ: Mapping[str, str], plugin: PluginCredentials | None = None) -> Access:
    """What the origin says now. `plugin`: credentials of an exec plugin that are still good. Raises Misconfigured."""
    try:
        if origin.kubeconfig:
            return _load_kubeconfig(origin.kubeconfig, plugin)
        return _load_account(origin, environ)
    except Misconfigured:
        raise
    except Exception as error:
        # The loader of the package raises whatever a wrong document makes it run into.
        text = " ".join(str(error).split()) or type(error).__name__
        raise Misconfigured(f"{origin}: cannot be used: {text}; correct the file or give another one") from error


def _load_account(origin: Origin, environ: Mapping[str, str]) -> Access:
    configuration = Configuration()
    InClusterConfigLoader(origin.token_file, origin.ca_file, environ=environ).load_and_set(configuration)
    return _access(configuration, can_renew=True)


def _load_kubeconfig(paths: str, held: PluginCredentials | None) -> Access:
    merger = KubeConfigMerger(paths)
    if merger.config is None:
        raise Misconfigured(f"{paths}: no such file; give a kubeconfig file that this user may read")
    config = merger.config
    if not isinstance(config.value, dict):
        raise Misconfigured(f"{paths}: must be a kubeconfig; give another file")
    context = _context(paths, config)
    cluster = _named(paths, config, "clusters", str(context.get("cluster") or ""))
    user = _named(paths, config, "users", str(context["user"])) if context.get("user") else None
    if not cluster["cluster"].safe_get("server"):
        raise Misconfigured(f"{paths}: the cluster of the current context has no server; add its URL")
    secrets = user["user"].value if user is not None and user.safe_get("user") else {}
    can_renew = bool({"exec", "auth-provider", "tokenFile"} & secrets.keys())
    plugin = None
    if "exec" in secrets and not (secrets.get("token") or secrets.get("tokenFile")):
        assert user is not None
        plugin = held or _ask_plugin(paths, user["user"], cluster["cluster"])
        _fill_in(secrets, plugin)
    configuration = Configuration()
    KubeConfigLoader(config_dict=config, config_base_path=None).load_and_set(configuration)
    has_own_proxy = "proxy-url" in cluster["cluster"]
    return _access(configuration, can_renew=can_renew, plugin=plugin, has_own_proxy=has_own_proxy)


def _context(paths: str, config: Any) -> Mapping[str, Any]:
    name = config.safe_get("current-context")
    if not name:
        raise Misconfigured(f"{paths}: no current context; choose one with 'kubectl config use-context'")
    chosen = _named(paths, config, "contexts", str(name))
    context = chosen.safe_get("context")
    if not isinstance(context, dict):
        raise Misconfigured(f"{paths}: the context {name!r} is empty; correct the file")
    return context


def _named(paths: str, config: Any, section: str, name: str) -> Any:
    found = [node for node in config.value.get(section) or () if node.value.get("name") == name]
    if not found:
        known = ", ".join(sorted(str(node.value.get("name")) for node in config.value.get(section) or ())) or "none"
        what = "the current context" if section == "contexts" else f"the {section.removesuffix('s')} of the context"
        raise Misconfigured(f"{paths}: {what} {name!r} is not in it (there: {known}); correct the file")
    return found[0]


def _ask_plugin(paths: str, user: Any, cluster: Any) -> PluginCredentials:
    command = user.value["exec"].get("command")
    try:
        status = ExecProvider(user["exec"], os.path.dirname(os.path.abspath(user.path or paths)), cluster).run()
    except (ConfigException, OSError) as error:
        text = " ".join(str(error).split())
        raise Misconfigured(
            f"{paths}: the exec plugin {command!r} failed: {text}; run it by hand to see why"
        ) from error
    if not status.get("token") and not (status.get("clientCertificateData") and status.get("clientKeyData")):
        raise Misconfigured(f"{paths}: the exec plugin {command!r} gave neither a token nor a certificate and its key")
    expires = status.get("expirationTimestamp")
    return PluginCredentials(
        token=status.get("token") or "",
        certificate=status.get("clientCertificateData") or "",
        key=status.get("clientKeyData") or "",
        expires_at_s=datetime.fromisoformat(str(expires)).timestamp() if expires else 0.0,
    )


def _fill_in(secrets: dict[str, Any], plugin: PluginCredentials) -> None:
    """As if the plugin's answer stood in the file; else the package would run it once more, and keep its errors to
    itself."""
    del secrets["exec"]
    if plugin.token:
        secrets["token"] = plugin.token
    if plugin.certificate:
        secrets["client-certificate-data"] = base64.b64encode(plugin.certificate.encode()).decode()
        secrets["client-key-data"] = base64.b64encode(plugin.key.encode()).decode()


def _access(
    configuration: Configuration,
    *,
    can_renew: bool,
    plugin: PluginCredentials | None = None,
    has_own_proxy: bool = False,
) -> Access:
    server = str(configuration.host).rstrip("/")
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Misconfigured(f"the server must be a URL such as https://10.0.0.1:6443, got {server!r}")
    proxy = configuration.proxy or ""
    if proxy and not has_own_proxy and urllib.request.proxy_bypass(parts.netloc):
        proxy = ""
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise Misconfigured(f"the proxy of the API server must be of http or https, got {proxy!r}")
    return Access(
        server=server,
        authorization=_header(configuration.api_key.get("BearerToken")),
        ca_file=configuration.ssl_ca_cert or "",
        cert_file=configuration.cert_file or "",
        key_file=configuration.key_file or "",
        checks_certificate=bool(configuration.verify_ssl),
        server_name=configuration.tls_server_name or "",
        proxy=proxy,
        can_renew=can_renew,
        plugin=plugin,
    )


def _header(token: str | None) -> str:
    scheme, _, value = (token or "").strip().partition(" ")
    # A file may end with a line break, which a header may not hold.
    value = value.strip()
    return f"{scheme.capitalize()} {value}" if value else ""


def signature(access: Access) -> tuple[tuple[int, int], ...]:
    """Changes when the content of a certificate file does."""
    paths = [Path(path) for path in (access.ca_file, access.cert_file, access.key_file) if path]
    try:
        return tuple((status.st_mtime_ns, status.st_ino) for status in (path.stat() for path in paths))
    except OSError as error:
        raise Misconfigured(f"{error.filename}: cannot be read: {error.strerror}; correct the configuration") from error

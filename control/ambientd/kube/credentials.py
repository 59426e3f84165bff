"""The access of the moment, read again when it may have changed: tokens of service accounts live an hour, certificates
are renewed in their files, plugins give tokens that expire. One reading at a time, in a thread of its own. Must not
talk to the server."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog
from cryptography.x509 import load_pem_x509_certificate
from msgspec import Struct

from ambientd.aside import Aside, Stuck
from ambientd.kube.access import Access, Origin, load_access, signature
from ambientd.kube.errors import Misconfigured

log = structlog.get_logger("kube")

EVERY_S = 60.0
"""How often files are read again; a kubelet renews a token well before the last minute of its life."""
_AGAIN_S = 5.0
"""Refused credentials are read again at most so often."""
_PLUGIN_TIMEOUT_S = 60.0
_EXPIRY_MARGIN_S = 120.0


class Secured(Struct, frozen=True):
    """An access, with its certificates loaded."""

    access: Access
    context: ssl.SSLContext | None
    """None: plain HTTP."""


class Credentials:
    """Gives the access of the moment."""

    def __init__(
        self, origin: Origin, environ: Mapping[str, str], *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`now_s`: a monotonic clock."""
        self.origin = origin
        self._now_s = now_s
        self._environ = environ
        self._lock = asyncio.Lock()
        self._aside = Aside("reading the credentials", "run the exec plugin by hand to see why")
        self._held: Secured | None = None
        self._signature: object = None
        self._read_s = 0.0

    async def current(self) -> Secured:
        """Raises Misconfigured; what was good stays in use while it cannot be read again."""
        held = self._held
        if held is not None and self._now_s() < self._read_s + EVERY_S:
            return held
        async with self._lock:
            if self._held is None or self._now_s() >= self._read_s + EVERY_S:
                await self._read(keeps_plugin=True)
            assert self._held is not None
            return self._held

    async def renew(self, refused: Secured) -> Secured:
        """Reads again, because the server refused these; equal to them when there are no others. Raises
        Misconfigured."""
        async with self._lock:
            if self._held is refused and self._now_s() >= self._read_s + _AGAIN_S:
                await self._read(keeps_plugin=False)
            assert self._held is not None
            return self._held

    async def _read(self, *, keeps_plugin: bool) -> None:
        held = self._held
        plugin = held.access.plugin if held is not None and keeps_plugin else None
        if plugin is not None and plugin.expires_at_s and time.time() >= plugin.expires_at_s - _EXPIRY_MARGIN_S:
            plugin = None

        def read() -> tuple[Access, object]:
            access = load_access(self.origin, self._environ, plugin)
            return access, signature(access)

        try:
            access, signed = await self._aside.run(read, _PLUGIN_TIMEOUT_S)
            if held is None or access != held.access or signed != self._signature:
                context = await self._aside.run(lambda: make_context(access), _PLUGIN_TIMEOUT_S)
                self._held, self._signature = Secured(access, context), signed
        except Stuck as error:
            self._keep(Misconfigured(f"{self.origin}: {error}"))
        except Misconfigured as error:
            self._keep(error)
        self._read_s = self._now_s()

    def _keep(self, error: Misconfigured) -> None:
        """Goes on with what is held; raises the error when nothing is."""
        if self._held is None:
            raise error
        log.warning("the credentials cannot be read again, the old ones stay in use", reason=str(error))


def make_context(access: Access) -> ssl.SSLContext | None:
    """The TLS settings of an access. Raises Misconfigured."""
    if not access.server.startswith("https:"):
        return None
    try:
        context = ssl.create_default_context(cafile=access.ca_file or None)
        # Since 3.13 Python wants more of a certificate than the roots of many clusters have, and than others want.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not access.checks_certificate:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.cert_file:
            context.load_cert_chain(access.cert_file, access.key_file or None)
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise Misconfigured(
            f"the certificates for {access.server} cannot be used: {text}; correct them in the configuration"
        ) from error
    return context


def refusal(access: Access) -> str:
    """What is probably wrong with credentials that were refused."""
    expired_at_s = _token_expiry_s(access.authorization)
    if expired_at_s is not None and expired_at_s <= time.time():
        at = datetime.fromtimestamp(expired_at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return f"the token expired at {at}"
    if access.cert_file:
        try:
            certificate = load_pem_x509_certificate(Path(access.cert_file).read_bytes())
        except (OSError, ValueError):
            return "the client certificate cannot be read"
        expired_at = certificate.not_valid_after_utc
        if expired_at <= datetime.now(UTC):
            return f"the client certificate expired at {expired_at.isoformat().replace('+00:00', 'Z')}"
    if not access.authorization and not access.cert_file:
        return "no credentials are configured, and the server wants some"
    return "the credentials are refused"


def _token_expiry_s(authorization: str) -> float | None:
    """Of a JSON web token, unverified; None: it is none, or does not tell."""
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    try:
        expiry = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))).get("exp")
    except (ValueError, AttributeError, msgspec.DecodeError):
        return None
    return float(expiry) if isinstance(expiry, int | float) else None

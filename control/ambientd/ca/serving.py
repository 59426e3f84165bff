"""The certificate that the TLS port shows (ca.md 14, operations.md 2.4): from files, or issued by our own authority for
the names of the service. A new one counts from the next handshake on; connections stay. Its key lives in this process
only, and is another than the authority's. Must not show a pair that does not belong together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Never, Protocol

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from msgspec import Struct

from ambientd.aside import Stuck, read_file
from ambientd.ca.authority import PrivateKey, Public
from ambientd.ca.followed import POLL_S, FollowedFiles
from ambientd.ca.orders import Signed
from ambientd.ca.parsing import UNREADABLE, extension_of, first_certificate, public_bytes
from ambientd.ca.signing import Busy, SigningFailed

log = structlog.get_logger("serving")

_CHECK_S = 60.0
_TELL_S = 60.0
_CURVES = frozenset({"secp256r1", "secp384r1", "secp521r1"})
_WORTH_S = 60.0
"""A certificate that lives less than this longer is not worth another."""


class BadPair(Exception):
    """A certificate and key that cannot be shown; one line that names file and reason, and holds nothing of a key."""


class Pair(Struct, frozen=True):
    """What is shown in a handshake."""

    certificates: str
    """PEM: the server's own first."""
    key: PrivateKey
    roots: str
    """PEM of the bundle that clients verify it with."""
    names: tuple[str, ...]
    not_before_s: float
    """Unix time, as the one below."""
    not_after_s: float
    public: Public | None = None
    """Of the authority that issued it; None: it is from files."""


class Shown:
    """The pair that handshakes use, whenever it changes."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.trouble = ""
        """Why what the files hold now is not shown; empty: it is."""

    @property
    def pair(self) -> Pair:
        return self._pair

    def show(self, pair: Pair) -> None:
        """From the next handshake on."""
        self._pair = pair
        log.info("serving certificate", names=", ".join(pair.names), expires_s=round(pair.not_after_s))

    def credentials(self) -> grpc.ServerCredentials:
        """For a server of gRPC, which asks anew at each handshake. Clients need no certificate."""
        last: list[Pair] = [self._pair]

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            # Called by a thread of gRPC; it reads one reference.
            pair = self._pair
            if pair is last[0]:
                return None
            last[0] = pair
            return _configuration(pair)

        # gRPC goes on with what it has when it is given nothing, which its stubs do not know.
        return grpc.dynamic_ssl_server_credentials(_configuration(self._pair), fetch, False)  # type: ignore[arg-type]


def _configuration(pair: Pair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pair.key.pem, pair.certificates.encode())])


def service_names(
    namespace: str, revision: str, discovery_host: str, custom_hosts: Iterable[str], services: Iterable[str] = ()
) -> tuple[str, ...]:
    """The names of the serving certificate, sorted (ca.md 14.2). `discovery_host`: by which clients are told to call;
    `services`: names of further Services in the namespace that lead here, as those of revision tags."""
    names = {
        *custom_hosts,
        discovery_host,
        *(f"{name}.{namespace}.svc" for name in ("istiod", "istiod-remote", "istio-pilot", *services)),
    }
    if revision not in ("", "default"):
        names.add(f"istiod-{revision}.{namespace}.svc")
    return tuple(sorted(names - {""}))


# Issued by our own authority (ca.md 14.3).


class Signing(Protocol):
    async def sign(
        self, csr: str, subject_ids: tuple[str, ...], requested_s: int, *, is_limited: bool = True
    ) -> Signed: ...


async def issue(signer: Signing, public: Public, names: tuple[str, ...], lifetime_s: float) -> Pair:
    """A new key and its certificate. Raises SigningFailed and Busy."""
    authority = first_certificate(public.certificate)
    held = None if authority is None else authority.public_key()
    is_large = isinstance(held, ec.EllipticCurvePublicKey) and held.curve.name == "secp384r1"
    # A signature of a P-256 key takes a tenth of the time that one of an RSA key does, at each handshake.
    key = ec.generate_private_key(ec.SECP384R1() if is_large else ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    csr = request.public_bytes(serialization.Encoding.PEM).decode()
    signed = await signer.sign(csr, names, int(lifetime_s), is_limited=False)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificates = "".join(signed.elements[:-1])
    return Pair(
        certificates, PrivateKey(pem), signed.elements[-1], names, signed.not_before_s, signed.not_after_s, public
    )


def is_due(pair: Pair, names: tuple[str, ...], public: Public, lifetime_s: float, now_s: float) -> bool:
    """Whether another certificate should be issued: for other names, or by another authority, or because less than half
    of the life of this one is left and one that lives longer can be had."""
    if pair.names != names or pair.public != public:
        return True
    if now_s < (pair.not_before_s + pair.not_after_s) / 2:
        return False
    authority = first_certificate(public.certificate)
    longest_s = now_s + lifetime_s
    if authority is not None:
        longest_s = min(longest_s, authority.not_valid_after_utc.timestamp())
    return longest_s > pair.not_after_s + _WORTH_S


class Issuer:
    """Keeps a certificate of our own authority shown."""

    def __init__(
        self,
        signer: Signing,
        public: Callable[[], Public | None],
        names: Callable[[], tuple[str, ...]],
        lifetime_s: float,
    ) -> None:
        self._signer = signer
        self._public = public
        self._names = names
        self._lifetime_s = lifetime_s
        self._poke = asyncio.Event()

    def look(self) -> None:
        """The authority may be another one."""
        self._poke.set()

    async def first(self) -> Shown:
        """Raises SigningFailed and Busy."""
        public = self._public()
        assert public is not None
        pair = await issue(self._signer, public, self._names(), self._lifetime_s)
        shown = Shown(pair)
        shown.show(pair)
        return shown

    async def run(self, shown: Shown) -> Never:
        """For ever."""
        while True:
            try:
                # As in keeping.py: `wait_for` can forget that it was cancelled.
                async with asyncio.timeout(_CHECK_S):
                    await self._poke.wait()
            except TimeoutError:
                pass
            self._poke.clear()
            await self.renew(shown)

    async def renew(self, shown: Shown) -> None:
        """One look at what is shown; another one if it is due."""
        public, names = self._public(), self._names()
        if public is None or not is_due(shown.pair, names, public, self._lifetime_s, time.time()):
            return
        try:
            shown.show(await issue(self._signer, public, names, self._lifetime_s))
        except (SigningFailed, Busy) as error:
            log.warning("the serving certificate could not be renewed, tried again", reason=str(error))


# From files (ca.md 14.1).


class Files(Struct, frozen=True):
    """Where a pair comes from."""

    certificate: Path
    key: Path
    roots: Path


MOUNTED = (
    Files(
        Path("./var/run/secrets/istiod/tls/tls.crt"),
        Path("./var/run/secrets/istiod/tls/tls.key"),
        Path("./var/run/secrets/istiod/ca/root-cert.pem"),
    ),
    Files(
        Path("./var/run/secrets/istiod/tls/tls.crt"),
        Path("./var/run/secrets/istiod/tls/tls.key"),
        Path("./var/run/secrets/istiod/tls/ca.crt"),
    ),
)
"""Where charts mount a certificate of somebody else's making."""


def find_files(certificate: str, key: str, roots: str) -> Files | None:
    """Those of the flags if all three are given, else those that are mounted; None: there are none."""
    if certificate and key and roots:
        return Files(Path(certificate), Path(key), Path(roots))
    return next((files for files in MOUNTED if all(map(Path.is_file, _paths(files)))), None)


def read_pair(files: Files) -> Pair:
    """Blocks. Raises BadPair."""
    contents: dict[Path, bytes] = {}
    for path in _paths(files):
        try:
            contents[path] = read_file(path)
        except OSError as error:
            raise BadPair(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    certificates = _certificates(files.certificate, contents[files.certificate])
    _certificates(files.roots, contents[files.roots])
    own = certificates[0]
    try:
        key = serialization.load_pem_private_key(contents[files.key], None)
    except UNREADABLE as error:
        raise BadPair(f"{files.key}: must be an unencrypted private key in PEM ({type(error).__name__})") from None
    try:
        belongs = public_bytes(key.public_key()) == public_bytes(own.public_key())
    except UNREADABLE as error:
        raise BadPair(f"{files.certificate}: has a key that cannot be used ({type(error).__name__})") from None
    if not belongs:
        raise BadPair(f"{files.key}: must be the key of {files.certificate}, and is of another certificate")
    now_s = time.time()
    if own.not_valid_before_utc.timestamp() > now_s:
        raise BadPair(f"{files.certificate}: is not valid before {own.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}")
    if own.not_valid_after_utc.timestamp() <= now_s:
        raise BadPair(f"{files.certificate}: expired at {own.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}")
    try:
        san = extension_of(own, x509.SubjectAlternativeName)
    except UNREADABLE:
        san = None
    pair = Pair(
        certificates=contents[files.certificate].decode("utf-8", "replace"),
        key=PrivateKey(contents[files.key]),
        roots=contents[files.roots].decode("utf-8", "replace"),
        names=() if san is None else tuple(san.get_values_for_type(x509.DNSName)),
        not_before_s=own.not_valid_before_utc.timestamp(),
        not_after_s=own.not_valid_after_utc.timestamp(),
    )
    if not _can_be_shown(own, pair):
        raise BadPair(f"{files.certificate}: must have an RSA key, or one of P-256, P-384 or P-521")
    return pair


def _can_be_shown(own: x509.Certificate, pair: Pair) -> bool:
    """Whether gRPC takes it. Of one that it is given later and does not take it says nothing, and goes on with the one
    before."""
    key = own.public_key()
    is_of_curve = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES
    if not (is_of_curve or isinstance(key, rsa.RSAPublicKey)):
        return False
    # The rest only gRPC itself can tell, when it opens a port: RSA-PSS keys, curves by their parameters.
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        try:
            server.add_secure_port(
                "127.0.0.1:0", grpc.ssl_server_credentials([(pair.key.pem, pair.certificates.encode())])
            )
        except RuntimeError:
            return False
        finally:
            server.stop(None)
    return True


def followed(files: Files) -> FollowedFiles[Pair]:
    """The pair that is read from these, again and again. Reading raises BadPair."""
    return FollowedFiles("the files of the serving certificate", _paths(files), lambda: read_pair(files))


async def follow_files(
    files: FollowedFiles[Pair],
    shown: Shown,
    changed: Callable[[Pair], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> Never:
    """Shows what the files, which were read, hold whenever they have changed and then stood still; what cannot be shown
    leaves the former in force and is told of every minute. For ever."""
    told_s = 0.0
    while True:
        await sleep(POLL_S)
        if shown.trouble and now_s() >= told_s + _TELL_S:
            told_s = now_s()
            log.error("the serving certificate in the files is not in use; the former stays", reason=shown.trouble)
        try:
            pair = await files.look()
        except (BadPair, Stuck) as error:
            if str(error) != shown.trouble:
                shown.trouble, told_s = str(error), -_TELL_S
            continue
        if pair is None:
            continue
        shown.trouble = ""
        if pair != shown.pair:
            shown.show(pair)
            changed(pair)


def _paths(files: Files) -> tuple[Path, Path, Path]:
    return files.certificate, files.key, files.roots


def _certificates(path: Path, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except UNREADABLE:
        raise BadPair(f"{path}: must hold certificates in PEM") from None

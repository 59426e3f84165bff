"""Where the authority's certificate and key come from: plugged in by the operator in one of two layouts, or signed by
themselves (ca.md 10). Reads values that others fetched. Must not touch files or an API server, and must not decide
whether a set is sound (`verification.py` does)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from msgspec import Struct

from ambientd.ca import pem
from ambientd.ca.authority import Authority, Kind, PrivateKey, Public, Unusable
from ambientd.ca.parsing import first_certificate
from ambientd.resources.faults import Fault

SECRET_TYPE = "istio.io/ca-root"
SELF_SIGNED_SECRET = "istio-ca-secret"
PLUGGED_IN_SECRET = "cacerts"

_NATIVE = ("ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem", "ca-crl.pem")
_TLS = ("tls.crt", "tls.key", "tls.crt and ca.crt", "ca.crt", "")
_INCOMPLETE = "the whole set is left alone, since half of one would sign what nobody can verify"


def read_plugged_in(files: Mapping[str, bytes], source: str, *, with_crl: bool = True) -> Authority | None:
    """The authority in a folder or a secret with these files, in native or TLS layout; None: there is none at all.
    `with_crl` is `PILOT_ENABLE_CA_CRL`. Raises Unusable for a part of a set (ca.md 10.1)."""
    is_tls = "tls.crt" in files or ("tls.key" in files and not files.keys() & set(_NATIVE))
    names = _TLS if is_tls else _NATIVE
    certificate, key, chain, roots, crl = names
    chain_names = ("tls.crt", "ca.crt") if names is _TLS else (chain,)
    has_chain = any(name in files for name in chain_names)
    present = {certificate: certificate in files, key: key in files, chain: has_chain, roots: roots in files}
    if not any(present.values()):
        return None
    if missing := [name for name, is_there in present.items() if not is_there]:
        faults = tuple(Fault(name, "must be there beside the others", "", _INCOMPLETE) for name in missing)
        raise Unusable(source, faults)
    texts = _texts(files, source)
    return Authority(
        kind=Kind.PLUGGED_IN,
        source=source,
        certificate=texts[certificate],
        key=PrivateKey(files[key]),
        chain=pem.join(*(texts[name] for name in chain_names)),
        roots=texts[roots],
        crl=texts[crl] if with_crl and crl else "",
        names=names,
    )


def read_self_signed(data: Mapping[str, bytes], source: str, extra_roots: str = "") -> Authority:
    """The authority in the data of a secret `istio-ca-secret`, written by us or by istiod. `extra_roots`: PEM of the
    root file in the folder, if there is one. Raises Unusable (ca.md 10.3)."""
    missing = [name for name in ("ca-cert.pem", "ca-key.pem") if not data.get(name)]
    if missing:
        effect = "the secret is left as it is; no other authority is made beside it"
        raise Unusable(source, tuple(Fault(name, "must be there", "", effect) for name in missing))
    certificate = _texts(data, source)["ca-cert.pem"]
    return Authority(
        kind=Kind.SELF_SIGNED,
        source=source,
        certificate=certificate,
        key=PrivateKey(data["ca-key.pem"]),
        chain="",
        roots=pem.join(certificate, extra_roots),
        names=("ca-cert.pem", "ca-key.pem", "", "ca-cert.pem", ""),
    )


def secret_data(authority: Authority) -> dict[str, bytes]:
    """The data of the secret that keeps a self-signed authority, as istiod reads it too. Holds the key (ca.md 10.3)."""
    certificate = authority.certificate.encode()
    return {
        "ca-cert.pem": certificate,
        "ca-key.pem": authority.key.pem,
        "root-cert.pem": certificate,
        "cert-chain.pem": b"",
        "key.pem": b"",
    }


class Keep(Struct, frozen=True):
    """Nothing is to be done."""


class Adopt(Struct, frozen=True):
    """Another replica has rotated: use what the secret holds."""


class Rotate(Struct, frozen=True):
    """Make the same root for longer, write it into the secret, and use it."""

    reason: str


def next_step(active: str, stored: str, now: datetime.datetime, grace_percent: int) -> Keep | Adopt | Rotate:
    """What a check of the self-signed root has to do. `active` and `stored` are PEM: the certificate in use, and what
    the secret holds. The grace period is `grace_percent` of the certificate's whole life (ca.md 10.3.1)."""
    certificate = first_certificate(stored)
    if certificate is None:
        return Rotate("the certificate in the secret cannot be read")
    end = certificate.not_valid_after_utc
    remaining = end - now
    grace = (end - certificate.not_valid_before_utc) * grace_percent / 100
    if remaining <= datetime.timedelta(0):
        return Rotate("the root has expired")
    if remaining <= grace:
        return Rotate("the root is in its grace period")
    return Keep() if active.strip() == stored.strip() else Adopt()


def is_renewed(active: Public, fresh: Authority) -> bool:
    """Whether a self-signed root has the key of the one in use, so that clients of either can verify the other."""
    old, new = first_certificate(active.certificate), first_certificate(fresh.certificate)
    return old is not None and new is not None and old.public_key() == new.public_key()


class Take(Struct, frozen=True):
    """Files that changed may be verified and put to use."""


class Ignore(Struct, frozen=True):
    """Files that changed are left alone as a whole."""

    reason: str


def judge_reload(active: Public, fresh: Authority) -> Take | Ignore:
    """Whether plugged-in files that changed may replace what is in use, as far as their roots go. Whoever holds the old
    roots only must still be able to verify, so other roots take a restart (ca.md 10.4)."""
    if active.roots == fresh.roots:
        return Take()
    return Ignore("the root bundle differs from the one in use, which takes a restart")


class Expiry(Struct, frozen=True):
    """How long something is still valid (ca.md 16.1)."""

    what: str
    """`root` or `chain`."""
    not_after_s: float
    """Unix time."""


WARN_DAYS = (7, 30, 90)


def expiries(public: Public) -> tuple[Expiry, ...]:
    """When the first certificate of the root bundle ends, and that of the chain, if there is one."""
    found = (
        ("root", first_certificate(public.roots)),
        ("chain", first_certificate(public.chain) if public.chain else None),
    )
    return tuple(
        Expiry(what, certificate.not_valid_after_utc.timestamp())
        for what, certificate in found
        if certificate is not None
    )


def expiry_warning(expiry: Expiry, now_s: float) -> str | None:
    """What to tell an operator about it: 90, 30 and 7 days ahead, and once it has happened; None: nothing yet. The text
    is the same all the time between two of these days, so that a change of the text is when to log it."""
    days = (expiry.not_after_s - now_s) / 86_400
    name = "the root certificate" if expiry.what == "root" else "the signing certificate"
    if days <= 0:
        return f"{name} has expired: no client can verify anything that it stands behind"
    for limit in WARN_DAYS:
        if days <= limit:
            return f"{name} expires in less than {limit} days; renew it before"
    return None


def _texts(files: Mapping[str, bytes], source: str) -> dict[str, str]:
    """The files that are not keys, as text. PEM is ASCII; comments around the blocks may be anything in UTF-8."""
    texts: dict[str, str] = {}
    for name in ("ca-cert.pem", "cert-chain.pem", "root-cert.pem", "ca-crl.pem", "tls.crt", "ca.crt"):
        try:
            texts[name] = files.get(name, b"").decode()
        except UnicodeDecodeError:
            fault = Fault(name, "must be PEM text", "bytes that are no UTF-8", "nothing is put to use")
            raise Unusable(source, (fault,)) from None
    return texts

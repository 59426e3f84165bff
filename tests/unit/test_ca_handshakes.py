"""Whether somebody else verifies what is issued, on both sides of a handshake and by nothing but the answer to a
request: OpenSSL, by way of Python's ssl (ca.md 3, 7, 8; rows 82b and 96 of its tables)."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import PrivateFormat
from cryptography.x509.oid import NameOID

from ambientd.ca.authority import Authority, Lifetimes
from ambientd.ca.making import create_self_signed, renew_self_signed
from ambientd.ca.orders import Sign, Signed, Use
from ambientd.ca.roots import read_plugged_in
from ambientd.ca.worker import Worker
from tests.unit.authorities import ID, Link, certify, csr, files, key, key_pem, pem_of, signing_key

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def odd_name() -> x509.Name:
    """As scripts write names: not in ASCII, of several values at one level, of several types of text."""
    return x509.Name(
        [
            x509.RelativeDistinguishedName(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Bäcker & Söhne"),
                    x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "Mesh"),
                ]
            ),
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(NameOID.COMMON_NAME, "ca", x509.name._ASN1Type.PrintableString)]
            ),
        ]
    )


def certified(subject: str | x509.Name, kind: str, by: Link | None = None) -> Link:
    return certify(subject, kind, by=by, starts=NOW - DAY, ends=NOW + 30 * DAY)


def plugged_in(kind: str, *, with_root_in_chain: bool = False, is_deep: bool = False) -> Authority:
    root = certified("root", f"{kind}/root")
    middle = certified("middle", f"{kind}/middle", root) if is_deep else root
    signer = certified(odd_name(), f"{kind}/signer", middle)
    chain = [signer, *([middle] if is_deep else []), *([root] if with_root_in_chain else [])]
    made = read_plugged_in(
        {**files(signer, chain, [root]), "ca-key.pem": key_pem(signing_key(f"{kind}/signer"), PrivateFormat.PKCS8)},
        "/etc/cacerts",
    )
    assert made is not None
    return made


def self_signed() -> Authority:
    return create_self_signed("cluster.local", NOW - 50 * DAY, lifetime_s=100 * 86_400, source="x")


def issued(authority: Authority, kind: str = "P-256") -> Signed:
    worker = Worker()
    worker.handle(Use(0, authority, Lifetimes()), NOW)
    answer = worker.handle(Sign(1, pem_of(csr(kind)), (ID,), 0), NOW)
    assert isinstance(answer, Signed)
    return answer


def verifies(elements: Sequence[str], roots: str, folder: Path, kind: str = "P-256") -> bool:
    """Whether two sides that show the certificate of an answer to each other come to terms."""
    chain, own_key = folder / "chain.pem", folder / "key.pem"
    chain.write_text("".join(elements[:-1]))
    own_key.write_bytes(key_pem(key(kind)))
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for context in contexts:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=roots)
        context.load_cert_chain(chain, own_key)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        contexts[0].wrap_bio(back, there, server_side=False),
        contexts[1].wrap_bio(there, back, server_side=True),
    ]
    for _ in range(10):
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
            sides.remove(side)
    return not sides


@pytest.mark.parametrize("kind", ["RSA-2048", "P-256", "P-384", "P-521", "Ed25519"])
@pytest.mark.parametrize(
    ("with_root_in_chain", "is_deep", "count"), [(False, False, 3), (True, False, 4), (False, True, 4), (True, True, 5)]
)
def test_what_a_plugged_in_authority_issues_is_verified(
    tmp_path: Path, kind: str, with_root_in_chain: bool, is_deep: bool, count: int
) -> None:
    authority = plugged_in(kind, with_root_in_chain=with_root_in_chain, is_deep=is_deep)
    signed = issued(authority)
    assert len(signed.elements) == count
    assert verifies(signed.elements, signed.elements[-1], tmp_path)
    leaf, signer = (x509.load_pem_x509_certificate(element.encode()) for element in signed.elements[:2])
    assert leaf.tbs_certificate_bytes.count(signer.subject.public_bytes()) == 1
    assert signer.subject.public_bytes() in signer.tbs_certificate_bytes


@pytest.mark.parametrize("kind", ["RSA-2048", "P-256", "P-384", "Ed25519"])
def test_what_a_self_signed_authority_issues_is_verified_for_every_kind_of_key(tmp_path: Path, kind: str) -> None:
    signed = issued(self_signed(), kind)
    assert len(signed.elements) == 2
    assert verifies(signed.elements, signed.elements[-1], tmp_path, kind)


def test_roots_that_are_another_s_verify_nothing(tmp_path: Path) -> None:
    assert not verifies(issued(self_signed()).elements, self_signed().roots, tmp_path)


def test_what_was_issued_before_a_renewal_is_verified_after_it_and_the_other_way_round(tmp_path: Path) -> None:
    old = self_signed()
    new = renew_self_signed(old, NOW, trust_domain="x", lifetime_s=100 * 86_400)
    assert old.roots != new.roots
    for authority, roots in ((old, new.roots), (new, old.roots), (old, old.roots), (new, new.roots)):
        assert verifies(issued(authority).elements, roots, tmp_path)

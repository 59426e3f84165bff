"""What the server and its signing process say to each other, and how it is framed on the pipe between them. Values
only; must not do anything."""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec import Struct

from ambientd.ca.authority import Authority, Lifetimes
from ambientd.resources.faults import Fault


class SignError(Enum):
    """Why nothing was signed; the value is the label `error` of `citadel_server_csr_sign_err_count` (ca.md 9)."""

    NOT_READY = "CA_NOT_READY"
    CSR = "CSR_ERROR"
    LIFETIME = "TTL_ERROR"
    GENERATION = "CERT_GEN_ERROR"
    UNKNOWN = "UNKNOWN"


class Use(Struct, frozen=True, tag=True):
    """Sign with this from now on, if it is sound."""

    number: int
    authority: Authority
    lifetimes: Lifetimes


class Sign(Struct, frozen=True, tag=True):
    number: int
    csr: str
    subject_ids: tuple[str, ...]
    requested_s: int
    """Lifetime that was asked for, seconds; zero or less: the default."""
    is_limited: bool = True
    """False: for ourselves, whatever the lifetime."""


class Create(Struct, frozen=True, tag=True):
    """Make a new self-signed authority; it is not put to use."""

    number: int
    trust_domain: str
    lifetime_s: int
    key_bits: int
    source: str
    extra_roots: str


class Renew(Struct, frozen=True, tag=True):
    """Make the same self-signed authority for longer; it is not put to use."""

    number: int
    authority: Authority
    trust_domain: str
    lifetime_s: int
    extra_roots: str


Order = Use | Sign | Create | Renew


class Used(Struct, frozen=True, tag=True):
    number: int
    notices: tuple[Fault, ...]
    """What an operator should hear about it all the same."""


class Signed(Struct, frozen=True, tag=True):
    number: int
    elements: tuple[str, ...]
    """PEM: leaf, chain, roots, all of the one authority that signed (ca.md 8)."""
    serial: str
    """Hexadecimal."""
    not_before_s: int
    """Unix time."""
    not_after_s: int
    key_sha256: str
    """Of the leaf's public key (SubjectPublicKeyInfo), hexadecimal."""
    lacks_common_name: bool
    """The request asked for one, and the identity is too long to be one."""


class Made(Struct, frozen=True, tag=True):
    number: int
    authority: Authority


class Failed(Struct, frozen=True, tag=True):
    number: int
    error: SignError
    text: str
    """For whoever asked; holds nothing of a key."""


class Rejected(Struct, frozen=True, tag=True):
    """A set of key material that is not put to use."""

    number: int
    source: str
    faults: tuple[Fault, ...]


Answer = Used | Signed | Made | Failed | Rejected

LENGTH_BYTES = 4
_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def frame(message: Order | Answer) -> bytes:
    """Length and content of a message."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read_order(body: bytes) -> Order:
    return _orders.decode(body)


def read_answer(body: bytes) -> Answer:
    return _answers.decode(body)

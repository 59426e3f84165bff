"""The signing process: it alone holds the key, and does all that takes long or reads what strangers wrote. Takes orders
from one pipe, one after the other, and answers on another; ends with the first. Must not talk to anybody else, and must
not write of a key anywhere but in the answer that makes one."""

from __future__ import annotations

import datetime
import hashlib
import os
import resource
import signal
import sys
import warnings
from typing import BinaryIO

from ambientd.ca import orders
from ambientd.ca.authority import Lifetimes, Unusable
from ambientd.ca.certificates import GenerationError, LifetimeError, assemble, lifetime, make_leaf
from ambientd.ca.making import create_self_signed, renew_self_signed
from ambientd.ca.parsing import public_bytes
from ambientd.ca.requests import CsrError, parse_request
from ambientd.ca.verification import Sound, notices, verify


class Worker:
    """Holds the authority that is in use."""

    def __init__(self) -> None:
        self._sound: Sound | None = None
        self._lifetimes = Lifetimes()

    def handle(self, order: orders.Order, now: datetime.datetime) -> orders.Answer:
        """Answers every order; whatever goes wrong with one says nothing about the next."""
        try:
            match order:
                case orders.Sign():
                    return self._sign(order, now)
                case orders.Use():
                    return self._use(order, now)
                case orders.Create():
                    made = create_self_signed(
                        order.trust_domain,
                        now,
                        lifetime_s=order.lifetime_s,
                        key_bits=order.key_bits,
                        source=order.source,
                        extra_roots=order.extra_roots,
                    )
                    return orders.Made(order.number, made)
                case orders.Renew():
                    renewed = renew_self_signed(
                        order.authority,
                        now,
                        trust_domain=order.trust_domain,
                        lifetime_s=order.lifetime_s,
                        extra_roots=order.extra_roots,
                    )
                    return orders.Made(order.number, renewed)
        except Unusable as error:
            return orders.Rejected(order.number, error.source, error.faults)
        except CsrError as error:
            return orders.Failed(order.number, orders.SignError.CSR, str(error))
        except LifetimeError as error:
            return orders.Failed(order.number, orders.SignError.LIFETIME, str(error))
        except GenerationError as error:
            return orders.Failed(order.number, orders.SignError.GENERATION, str(error))
        except BaseException as error:
            # Also a panic of the library, which is no Exception: a request that causes one must not end this process,
            # and with it the requests of others. Its text may quote what was read, so only its type is told.
            return orders.Failed(order.number, orders.SignError.UNKNOWN, type(error).__name__)

    def _use(self, order: orders.Use, now: datetime.datetime) -> orders.Used:
        sound = verify(order.authority, now)
        default_s = order.lifetimes.default_s
        if sound.default_limit_s is not None:
            default_s = min(default_s, sound.default_limit_s)
        # The one moment at which anything changes: until here the former set signs.
        self._sound, self._lifetimes = sound, Lifetimes(default_s, order.lifetimes.maximum_s)
        return orders.Used(order.number, notices(sound))

    def _sign(self, order: orders.Sign, now: datetime.datetime) -> orders.Answer:
        sound = self._sound
        if sound is None:
            return orders.Failed(order.number, orders.SignError.NOT_READY, "there is no authority to sign with yet")
        parsed = parse_request(order.csr)
        limits = self._lifetimes
        maximum_s = limits.maximum_s if order.is_limited else order.requested_s
        lifetime_s = lifetime(order.requested_s, limits.default_s, maximum_s)
        leaf = make_leaf(
            sound.certificate,
            sound.key,
            parsed.public_key,
            order.subject_ids,
            lifetime_s=lifetime_s,
            now=now,
            wants_common_name=parsed.has_common_name,
        )
        return orders.Signed(
            number=order.number,
            elements=assemble(leaf.certificate, sound.authority.chain, sound.authority.roots),
            serial=f"{leaf.serial:x}",
            not_before_s=leaf.not_before_s,
            not_after_s=leaf.not_after_s,
            key_sha256=hashlib.sha256(public_bytes(parsed.public_key)).hexdigest(),
            lacks_common_name=leaf.lacks_common_name,
        )


def serve(source: BinaryIO, answers: BinaryIO) -> None:
    """Answers orders until their pipe ends."""
    worker = Worker()
    while len(head := source.read(orders.LENGTH_BYTES)) == orders.LENGTH_BYTES:
        order = orders.read_order(source.read(int.from_bytes(head, "big")))
        answers.write(orders.frame(worker.handle(order, datetime.datetime.now(datetime.UTC))))
        answers.flush()


def main() -> None:
    # The server ends us by closing the pipe; a signal for the whole group must not end us before it has drained.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Where processors are scarce, pushes go first: with 16 callers on two cores a change arrives a third sooner so, and
    # as many certificates are signed.
    os.nice(5)
    # A core dump would be a copy of the key on a disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The library warns of what strangers write in their requests; it is read, or refused with an answer.
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever some library may print must not end up between two answers.
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        # The server is gone, and with it whoever waited.
        os._exit(0)


if __name__ == "__main__":
    main()

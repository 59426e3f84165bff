"""Fetches the authority from where it is kept, and follows it: a plugged-in one in a folder or a secret, reloaded when
it changes; a self-signed one in a secret that whichever replica comes first creates, renewed before it ends (ca.md 10).
What cannot be put to use leaves the former in force, and is told of every minute. Must not judge a set: `roots.py` and
the signing process do."""

from __future__ import annotations

import asyncio
import datetime
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Never

import structlog
from msgspec.structs import replace

from ambientd.aside import Stuck, read_file
from ambientd.ca.authority import Authority, Lifetimes, Public, Unusable
from ambientd.ca.followed import POLL_S, FollowedFiles
from ambientd.ca.parsing import first_certificate
from ambientd.ca.roots import (
    PLUGGED_IN_SECRET,
    SECRET_TYPE,
    SELF_SIGNED_SECRET,
    Adopt,
    Ignore,
    Keep,
    Rotate,
    expiries,
    expiry_warning,
    is_renewed,
    judge_reload,
    next_step,
    read_plugged_in,
    read_self_signed,
    secret_data,
)
from ambientd.ca.secrets import Conflict, Data, Secret, Secrets
from ambientd.ca.signing import Signer, SigningFailed
from ambientd.kube.backoff import Backoff
from ambientd.kube.errors import ApiError
from ambientd.resources.faults import Fault
from ambientd.security import Security

log = structlog.get_logger("pkica")

START_S = 1200.0
"""How long the start tries to have an authority, seconds (ca.md 10.3)."""
_SECRET_POLL_S = 30.0
_TELL_S = 60.0
_LOOK_AT_MOST_EVERY_S = 5.0
_TRIES_S = (0.0, 5.0, 10.0, 15.0)
_MARKER = "istio-generated"
_FILES = (
    *("ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem", "ca-crl.pem"),
    *("tls.crt", "tls.key", "ca.crt", _MARKER),
)
_UNTIL_BACK = "nothing is signed until it is back as it was, or the server is restarted"
_NATIVE = frozenset({"ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"})


class Keeper:
    """Keeps one authority in use. `signer` signs with it."""

    def __init__(
        self,
        security: Security,
        secrets: Secrets | None,
        *,
        trust_domain: Callable[[], str],
        changed: Callable[[Public], None],
        dice: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`secrets`: None: there is no API server, and a self-signed authority lives as long as this process. `changed`
        hears of every authority that is put to use, with the last revocation list that there was."""
        self._security = security
        self._secrets = secrets
        self._trust_domain = trust_domain
        self._dice = dice or random.Random()
        self._sleep = sleep
        self._now_s = now_s
        self._folder = Path(security.ca_dir)
        self._followed = FollowedFiles(
            str(self._folder), [self._folder / name for name in _FILES], lambda: read_folder(self._folder)
        )
        self._in_memory: Authority | None = None
        """Only where there is nowhere else to keep it."""
        self._is_plugged_in = False
        self._plugged_in_was = ""
        """Where something plugged in was seen since the start, if only a part of it, or a broken one."""
        self._remote_version = ""
        self._secret_name = SELF_SIGNED_SECRET
        self._look = asyncio.Event()
        self._told: dict[str, str] = {}
        self._changed = changed
        self._crl = ""
        lifetimes = Lifetimes(int(security.default_cert_s), int(security.max_cert_s))
        self.signer = Signer(self._load, lifetimes, changed=self._put_to_use)
        self.trouble = ""
        """Why what is kept now is not in use; empty: it is."""

    async def start(self) -> None:
        """Returns when there is an authority in use. Raises Unusable for files that cannot be, and what failed last
        when an API server did not help within twenty minutes."""
        until_s = self._now_s() + START_S
        backoff = Backoff(0.5, 60.0, self._dice.random)
        told = ""
        while True:
            try:
                await self.signer.start()
                return
            except (Unusable, ApiError, Conflict, SigningFailed) as error:
                is_of_files = isinstance(error, Unusable) and error.source == str(self._folder)
                if is_of_files or self._secrets is None or self._now_s() >= until_s:
                    raise
                if str(error) != told and not isinstance(error, Conflict):
                    told = str(error)
                    log.warning("there is no certificate authority yet, tried again", reason=told)
                # Whoever created it first has, and it need only be read.
                await self._sleep(0.05 if isinstance(error, Conflict) else backoff.next_s())

    async def run(self) -> Never:
        """For ever, once started."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.signer.run(), name="signing process")
            tasks.create_task(self._tell(), name="trouble of the authority")
            if self._is_plugged_in:
                follow = self._follow_secret() if self._remote_version else self._follow_folder()
                tasks.create_task(follow, name="follow plugged-in authority")
            elif self._secrets is not None and self._security.root_check_s is not None:
                tasks.create_task(self._follow_root(self._secrets, self._security.root_check_s), name="follow root")
        raise AssertionError("these run for ever")

    def look(self) -> None:
        """Somebody distributes other roots: perhaps another replica, which has renewed them."""
        self._look.set()

    def _put_to_use(self, public: Public) -> None:
        # A list that was there stays until a restart: clients hold certificates that it concerns (ca.md 10.2).
        self._crl = public.crl or self._crl
        self.trouble = ""
        self._changed(replace(public, crl=self._crl))

    # Where it comes from (ca.md 10.1).

    async def _load(self) -> Authority:
        try:
            found = await (self._first() if self.signer.public is None else self._same(self.signer.public))
        except (Unusable, SigningFailed, Conflict, ApiError) as error:
            if self.signer.public is not None:
                self._keep(str(error))
            raise
        return found

    async def _first(self) -> Authority:
        """What to begin with."""
        self._remote_version = ""
        files, source = await self._files()
        try:
            found = self._plugged_in(files, source)
        except Unusable:
            self._plugged_in_was = source
            raise
        self._is_plugged_in = found is not None
        if found is not None:
            self._plugged_in_was = source
            return found
        if self._plugged_in_was:
            effect = "no self-signed root is made in its place, unless the server is started without it"
            raise Unusable(self._plugged_in_was, (Fault("", "must hold the certificate authority", "", effect),))
        extra_roots = files.get("root-cert.pem", files.get("ca.crt", b"")).decode("utf-8", "replace")
        return await self._self_made(extra_roots)

    async def _same(self, active: Public) -> Authority:
        """A signing process that died gets the authority that it had, or none: with another root every client would be
        cut off. Raises Unusable."""
        if not self._is_plugged_in:
            return await self._self_made(_extra_roots(active))
        files, source = await self._files()
        found = self._plugged_in(files, source)
        if found is None:
            raise Unusable(source, (Fault("", "must hold the certificate authority", "", _UNTIL_BACK),))
        if isinstance(judgement := judge_reload(active, found), Ignore):
            raise _another(found, judgement.reason)
        return found

    def _plugged_in(self, files: Mapping[str, bytes], source: str) -> Authority | None:
        """Raises Unusable."""
        found = read_plugged_in(files, source, with_crl=self._security.distributes_crl)
        return None if _MARKER in files and self._security.self_signed_in_cacerts else found

    async def _self_made(self, extra_roots: str) -> Authority:
        if self._secrets is not None:
            return await self._self_signed(self._secrets, extra_roots)
        if self._in_memory is None:
            log.warning("a self-signed root is made that nobody keeps: clients must be given it at each start")
            self._in_memory = await self._create("a root made at this start", "")
        return self._in_memory

    async def _files(self) -> tuple[Mapping[str, bytes], str]:
        try:
            files = await self._followed.read()
        except Stuck as error:
            fault = Fault("", "must be a folder whose files can be read", str(error), "nothing is put to use")
            raise Unusable(str(self._folder), (fault,)) from None
        is_whole = files.keys() >= _NATIVE or "tls.crt" in files
        if self._security.uses_remote_certs and self._secrets is not None:
            # A place that is in use is kept to.
            is_remote = not is_whole if self.signer.public is None else bool(self._remote_version)
            secret = await self._secrets.read(PLUGGED_IN_SECRET) if is_remote else None
            if secret is not None:
                self._remote_version = secret.version
                return secret.data.by_key, self._secrets.source(PLUGGED_IN_SECRET)
            if self._remote_version:
                return {}, self._secrets.source(PLUGGED_IN_SECRET)
        return files, str(self._folder)

    async def _self_signed(self, secrets: Secrets, extra_roots: str) -> Authority:
        active = self.signer.public
        names = [SELF_SIGNED_SECRET, *([PLUGGED_IN_SECRET] if self._security.self_signed_in_cacerts else [])]
        for name in names if active is None else [self._secret_name]:
            self._secret_name = name
            secret = await secrets.read(name)
            if secret is not None:
                log.info("the secret of the self-signed root was found", source=secrets.source(name))
                if active is None:
                    return read_self_signed(secret.data.by_key, secrets.source(name), extra_roots)
                return await self._stored_again(secrets, secret, active)
        if active is not None:
            raise Unusable(secrets.source(self._secret_name), (Fault("", "must be there", "", _UNTIL_BACK),))
        authority = await self._create(secrets.source(names[-1]), extra_roots)
        data = secret_data(authority) | ({_MARKER: b""} if names[-1] == PLUGGED_IN_SECRET else {})
        await secrets.create(names[-1], SECRET_TYPE, Data(data))
        log.info("a self-signed root was made", source=secrets.source(names[-1]))
        return authority

    async def _stored_again(self, secrets: Secrets, secret: Secret, active: Public) -> Authority:
        """What a signing process that died is given from the secret. Raises Unusable."""
        source = secrets.source(secret.name)
        self._check_kind(secret, source)
        found = self._stored(secret, source, active)
        if self._security.root_check_s is None:
            # Where the secret is followed, a root that somebody put there would have been taken anyhow.
            if not is_renewed(active, found):
                raise _another(found, "the root has another key, and changes of the secret are not followed")
            return found
        # One that has ended cannot be used, and without a process nobody would renew it.
        step = self._next_step(secret, active)
        return await self._renewed(secrets, secret, source, active) if isinstance(step, Rotate) else found

    def _check_kind(self, secret: Secret, source: str) -> None:
        """A self-signed root in the secret of plugged-in authorities bears a mark; what has none is an operator's.
        Raises Unusable."""
        if secret.name == PLUGGED_IN_SECRET and _MARKER not in secret.data.by_key:
            effect = "the self-signed root stays in use; a restart of the server would take what is plugged in"
            raise Unusable(source, (Fault(_MARKER, "must be there", "", effect),))

    async def _create(self, source: str, extra_roots: str) -> Authority:
        return await self.signer.create(
            self._trust_domain(),
            lifetime_s=int(self._security.self_signed_cert_s),
            key_bits=self._security.self_signed_key_bits,
            source=source,
            extra_roots=extra_roots,
        )

    # Plugged in (ca.md 10.4).

    async def _follow_folder(self) -> Never:
        while True:
            await self._sleep(POLL_S)
            try:
                files = await self._followed.look()
            except (Unusable, Stuck) as error:
                self._keep(str(error))
                continue
            if files is not None:
                await self._reload(files, str(self._folder))

    async def _follow_secret(self) -> Never:
        assert self._secrets is not None
        source = self._secrets.source(PLUGGED_IN_SECRET)
        while True:
            await self._sleep(_SECRET_POLL_S)
            try:
                secret = await self._secrets.read(PLUGGED_IN_SECRET)
            except ApiError as error:
                log.warning("the plugged-in authority cannot be read again", source=source, reason=str(error))
                continue
            version, data = ("gone", {}) if secret is None else (secret.version, secret.data.by_key)
            if version != self._remote_version:
                self._remote_version = version
                await self._reload(data, source)

    async def _reload(self, files: Mapping[str, bytes], source: str) -> None:
        active = self.signer.public
        assert active is not None
        try:
            fresh = read_plugged_in(files, source, with_crl=self._security.distributes_crl)
            if fresh is None:
                self._keep(f"{source}: the certificate authority is no longer there")
                return
            judgement = judge_reload(active, fresh)
            if isinstance(judgement, Ignore):
                self._keep(f"{source}: {judgement.reason}")
                return
            await self.signer.use(fresh)
        except (Unusable, SigningFailed) as error:
            self._keep(str(error))
            return
        log.info("the plugged-in certificate authority was reloaded", source=source)

    # Self-signed (ca.md 10.3.1).

    async def _follow_root(self, secrets: Secrets, interval_s: float) -> Never:
        wait_s = interval_s + (first_delay_s(interval_s, self._dice) if self._security.root_check_jitter else 0.0)
        while True:
            try:
                # Not `wait_for`, which forgets that it was cancelled when what it waits for comes at the same moment.
                async with asyncio.timeout(wait_s):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            wait_s = interval_s
            await self._check(secrets)
            await self._sleep(min(_LOOK_AT_MOST_EVERY_S, interval_s))

    async def _check(self, secrets: Secrets) -> None:
        """One look at the secret: renews the root, or takes the one that another replica has made."""
        source = secrets.source(self._secret_name)
        try:
            secret = await self._read_patiently(secrets)
        except ApiError as error:
            log.warning("the self-signed root cannot be looked at", source=source, reason=str(error))
            return
        if secret is None:
            self._keep(f"{source}: it is gone; signing goes on, but a restart would make another root")
            return
        active = self.signer.public
        assert active is not None
        try:
            self._check_kind(secret, source)
            match self._next_step(secret, active):
                case Keep():
                    pass
                case Adopt():
                    await self.signer.use(self._stored(secret, source, active))
                    log.info("another replica has renewed the root, which is in use now", source=source)
                case Rotate(reason):
                    await self._rotate(secrets, secret, source, active, reason)
        except (Unusable, SigningFailed) as error:
            self._keep(str(error))
            return
        except Conflict:
            # Another replica renews it at this moment; the next look finds what it wrote.
            self._look.set()
            return
        except ApiError as error:
            self._keep(f"{source}: the renewed root could not be written: {error}")
            return
        self.trouble = ""

    def _next_step(self, secret: Secret, active: Public) -> Keep | Adopt | Rotate:
        stored = secret.data.by_key.get("ca-cert.pem", b"").decode("utf-8", "replace")
        now = datetime.datetime.now(datetime.UTC)
        return next_step(active.certificate, stored, now, self._security.root_grace_percent)

    def _stored(self, secret: Secret, source: str, active: Public) -> Authority:
        return read_self_signed(secret.data.by_key, source, _extra_roots(active))

    async def _renewed(self, secrets: Secrets, secret: Secret, source: str, active: Public) -> Authority:
        """The same root for longer, and written. Raises Unusable, SigningFailed, Conflict and ApiError."""
        old = self._stored(secret, source, active)
        if first_certificate(old.certificate) is None:
            # The one in use still tells subject and key id, and whether this is its key.
            old = replace(old, certificate=active.certificate, roots=active.roots)
        fresh = await self.signer.renew(
            old,
            trust_domain=self._trust_domain(),
            lifetime_s=int(self._security.self_signed_cert_s),
            extra_roots=_extra_roots(active),
        )
        await secrets.replace(secret, _own(secret_data(fresh)))
        return fresh

    async def _rotate(self, secrets: Secrets, secret: Secret, source: str, active: Public, reason: str) -> None:
        fresh = await self._renewed(secrets, secret, source, active)
        try:
            await self.signer.use(fresh)
        except (Unusable, SigningFailed):
            written, ours = await secrets.read(secret.name), _own(secret_data(fresh)).by_key
            # What somebody else has put there meanwhile is theirs.
            if written is not None and ours.items() <= written.data.by_key.items():
                await secrets.replace(written, _own(secret.data.by_key))
            raise
        log.info("the self-signed root was renewed", source=source, reason=reason)

    async def _read_patiently(self, secrets: Secrets) -> Secret | None:
        """Raises ApiError after half a minute."""
        for wait_s in _TRIES_S[1:]:
            try:
                return await secrets.read(self._secret_name)
            except ApiError:
                await self._sleep(wait_s)
        return await secrets.read(self._secret_name)

    # What an operator must hear.

    def _keep(self, trouble: str) -> None:
        is_new, self.trouble = trouble != self.trouble, trouble
        if is_new:
            self._tell_trouble()

    def _tell_trouble(self) -> None:
        log.error("the certificate authority that is kept is not in use; the former stays", reason=self.trouble)

    async def _tell(self) -> Never:
        while True:
            public = self.signer.public
            if public is not None:
                self._warn_of_ends(public)
            await self._sleep(_TELL_S)
            if self.trouble:
                self._tell_trouble()

    def _warn_of_ends(self, public: Public) -> None:
        for expiry in expiries(public):
            text = expiry_warning(expiry, time.time()) or ""
            if text != self._told.get(expiry.what, ""):
                self._told[expiry.what] = text
                if text:
                    log.warning("a certificate of the authority ends", what=text, source=public.source)


def _another(found: Authority, reason: str) -> Unusable:
    return Unusable(found.source, (Fault(found.names[3], "must hold the roots in use", reason, _UNTIL_BACK),))


def first_delay_s(interval_s: float, dice: random.Random) -> float:
    """Whole seconds, less than the interval, so that replicas that start together do not look together (ca.md
    10.3.1)."""
    return float(dice.randrange(max(1, int(interval_s))))


def _own(data: Mapping[str, bytes]) -> Data:
    """The keys that a renewal writes."""
    return Data({name: data[name] for name in ("ca-cert.pem", "ca-key.pem") if name in data})


def _extra_roots(active: Public) -> str:
    """What the bundle in use has after the root itself."""
    root = active.certificate if active.certificate.endswith("\n") else f"{active.certificate}\n"
    return active.roots[len(root) :] if active.roots.startswith(root) else ""


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files of an authority that are there. Raises Unusable for one that cannot be read."""
    found: dict[str, bytes] = {}
    for name in _FILES:
        try:
            found[name] = read_file(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            fault = Fault(name, "must be a file that can be read", error.strerror or "", "the set is not put to use")
            raise Unusable(str(folder), (fault,)) from None
    return found

"""What stands behind the TLS port: who callers are, the authority, the serving certificate, the roots in every
namespace. A part of the composition root (app.py), of which it has the objects that it needs; puts parts together, and
has no rule of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import structlog

from ambientd.aside import Stuck
from ambientd.ca.authority import Public, Unusable
from ambientd.ca.caller import Caller, Unauthenticated
from ambientd.ca.decide import Trust
from ambientd.ca.distribution import CRL_KEY, ROOT_KEY, Distributor, Wanted
from ambientd.ca.keeping import Keeper
from ambientd.ca.roots import expiries
from ambientd.ca.secrets import Conflict, Secrets
from ambientd.ca.service import SERVICE, Certificates
from ambientd.ca.serving import (
    MOUNTED,
    BadPair,
    Files,
    Issuer,
    Pair,
    Shown,
    find_files,
    follow_files,
    followed,
    read_pair,
    service_names,
)
from ambientd.ca.signing import Busy, SigningFailed
from ambientd.ca.trust import trust_of
from ambientd.ca.waiting import Waiters
from ambientd.debug.access import PREFIXES
from ambientd.debug.metrics import Metrics
from ambientd.explain.onlooker import Onlooker
from ambientd.index.inputs import PODS, SERVICES
from ambientd.index.mesh import MeshView, mesh_of
from ambientd.index.pods import AccountRef, PodIndex
from ambientd.index.world import World
from ambientd.kube.errors import ApiError
from ambientd.resources.events import Event
from ambientd.resources.ref import label
from ambientd.settings import Settings
from ambientd.xds.authentication import Authenticator, Reviewer
from ambientd.xds.server import CannotListen, Server, secure_server
from ambientd.xds.service import Context, Guard, Service
from ambientd.xds.static_tokens import BadTokenFile, load_tokens
from ambientd.xds.token_review import TokenReviews

if TYPE_CHECKING:
    from ambientd.kube.api import Api

log = structlog.get_logger("secure")

_LOOK_S = 5.0
_TAG_PREFIX = "istiod-revision-tag-"


class CannotSecure(Exception):
    """Why there is no TLS port, in one line for the operator."""


class Secure:
    """One TLS port and what it needs."""

    def __init__(
        self,
        settings: Settings,
        *,
        world: World,
        pods: PodIndex,
        waiters: Waiters,
        ads: Service,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._security = settings.security
        self._world = world
        self._pods = pods
        self._waiters = waiters
        self._ads = ads
        self._metrics = metrics
        self._authenticator: Authenticator | None = None
        self._certificates: Certificates | None = None
        self._issuer: Issuer | None = None
        self._distributor: Distributor | None = None
        self._shown: Shown | None = None
        self._api: Api | None = None
        self._tasks: list[Coroutine[Any, Any, None]] = []
        self.keeper: Keeper | None = None
        self.server: Server | None = None
        """None: there is no TLS port, or not yet."""

    # Who callers are.

    def know(self, api: Api | None) -> None:
        """Before anything is opened. `api`: the API server that reviews tokens, and keeps and is given roots; None:
        there is none. Raises CannotSecure."""
        self._api = api
        self._check_paths()
        reviewer: Reviewer
        if api is not None:
            reviewer = TokenReviews(api, self._security.token_audiences)
            if self._distributes:
                self._distributor = Distributor(
                    api, selectors=lambda: self._mesh().discovery_selectors, on_foreign=self._look
                )
        elif self._settings.token_file:
            try:
                reviewer = load_tokens(Path(self._settings.token_file))
            except BadTokenFile as error:
                raise CannotSecure(f"--token-review: {error}") from None
        else:
            return
        self._authenticator = Authenticator(
            reviewer,
            self._metrics,
            cluster_id=self._settings.cluster_id,
            cluster_aliases=dict(self._settings.cluster_aliases),
            trust_domain=lambda: self._mesh().trust_domain,
        )

    def _check_paths(self) -> None:
        """Refuses files that are named and cannot be used, also where there will be no TLS port to need them."""
        settings = self._settings
        if settings.tls_cert_file:
            files = Files(Path(settings.tls_cert_file), Path(settings.tls_key_file), Path(settings.ca_cert_file))
            try:
                read_pair(files)
            except BadPair as error:
                raise _unusable(files, error) from None
        folder = Path(self._security.ca_dir)
        if self._security.serves_ca and os.path.lexists(folder) and not os.path.isdir(folder):
            raise CannotSecure(f"ROOT_CA_DIR: must be a folder, and {folder} is none")

    def guard(self, *, is_demanding: bool) -> Guard:
        """What a listener demands of streams."""
        return Guard(
            self._authenticate_call if is_demanding and self._security.authenticate else None,
            self._security.checks_identity,
            self._security.trusted_node_accounts,
        )

    async def authenticate_request(self, headers: Iterable[tuple[str, str]]) -> Caller:
        """The caller of an HTTP request. Raises Unauthenticated and CannotTell."""
        return await self._known().authenticate(headers, prefixes=PREFIXES)

    def root_namespace(self) -> str:
        return self._mesh().root_namespace

    async def _authenticate_call(self, context: Context) -> Caller:
        return await self._known().authenticate(context.invocation_metadata() or ())

    async def _authenticate_for_certificate(self, context: Context) -> Caller:
        if not self._security.authenticate:
            # Without authentication there is nobody to whom a certificate could be given (ca.md 4.1).
            raise Unauthenticated("XDS_AUTH is false")
        return await self._authenticate_call(context)

    def _known(self) -> Authenticator:
        if self._authenticator is None:
            raise Unauthenticated("nobody is known: there is no API server and no --token-review")
        return self._authenticator

    # What is served.

    @property
    def _serves(self) -> bool:
        """Whether there is a TLS port. Over a folder only where a caller could be known, or need not be."""
        settings = self._settings
        if settings.secure_grpc_addr is None:
            return False
        return not settings.config_dir or bool(settings.token_file) or not self._security.authenticate

    @property
    def _has_authority(self) -> bool:
        return self._security.serves_ca and (self._serves or self._api is not None)

    @property
    def _distributes(self) -> bool:
        return self._security.serves_ca and self._security.cert_provider != "none"

    def apply(self, events: Sequence[Event]) -> None:
        """What a source saw."""
        if self._distributor is not None:
            self._distributor.apply(events)

    async def open(self) -> None:
        """Opens the port, once the index has its first state: the authority first, then the serving certificate. What
        must go on running is in `running`. Raises CannotSecure and CannotListen."""
        if self._has_authority:
            self._look_at_ztunnels()
            await self._have_authority()
        if not self._serves:
            if self._settings.config_dir:
                log.info("the TLS port is not opened: without --token-review no caller could be known")
            return
        try:
            await self._open()
        except (CannotSecure, CannotListen):
            for work in self.running():
                work.close()
            if self.keeper is not None:
                await self.keeper.signer.close()
            raise

    async def _open(self) -> None:
        shown = await self._have_certificate()
        if shown is None:
            log.warning("there is no serving certificate, so the TLS port is not opened")
            return
        others = {} if self._certificates is None else {SERVICE: self._certificates.handlers()}
        guard = self.guard(is_demanding=True)
        self.server = secure_server(self._settings, self._ads, guard, shown.credentials(), others)
        await self.server.open()

    def _look_at_ztunnels(self) -> None:
        """Tells of ztunnels that run and would get no certificates, at the start: later every refusal says it."""
        trusted = self._security.trusted_node_accounts
        running = {
            (ref.namespace, pod.service_account)
            for ref, pod in self._world.graph.items(PODS)
            if label(pod.labels, "app") == "ztunnel"
        }
        for namespace, account in sorted(running - trusted):
            log.warning(
                "a ztunnel runs as an account that is not trusted, and gets no certificates for the pods of its node",
                account=f"{namespace}/{account}",
                trusted=sorted("/".join(each) for each in trusted),
                setting="CA_TRUSTED_NODE_ACCOUNTS",
            )

    async def _have_authority(self) -> None:
        secrets = None if self._api is None else Secrets(self._api, self._settings.namespace)
        self.keeper = keeper = Keeper(
            self._security, secrets, trust_domain=lambda: self._mesh().trust_domain, changed=self._changed
        )
        try:
            await keeper.start()
        except (Unusable, ApiError, Conflict, SigningFailed, ValueError) as error:
            raise CannotSecure(f"there is no certificate authority: {error}") from None
        self._tasks.append(keeper.run())
        if self._distributor is not None:
            names = [self._security.root_config_map]
            names += [self._security.crl_config_map] if self._security.distributes_crl else []
            self._tasks += [self._distributor.run(names), self._look_at_selectors(self._distributor)]
        self._certificates = Certificates(
            self._authenticate_for_certificate,
            self._pods,
            self._trust,
            keeper.signer,
            self._waiters,
            self._metrics.certificates,
        )

    async def _have_certificate(self) -> Shown | None:
        settings, keeper = self._settings, self.keeper
        files = find_files(settings.tls_cert_file, settings.tls_key_file, settings.ca_cert_file)
        if files is not None:
            pairs = followed(files)
            try:
                pair = await pairs.read()
            except (BadPair, Stuck) as error:
                raise _unusable(files, error) from None
            self._shown = shown = Shown(pair)
            shown.show(pair)
            self._distribute_roots(pair.roots)
            self._tasks.append(follow_files(pairs, shown, self._changed_files))
            return shown
        if keeper is None or self._security.cert_provider != "istiod":
            return None
        self._issuer = issuer = Issuer(
            keeper.signer, lambda: keeper.signer.public, self._names, self._security.self_signed_cert_s
        )
        try:
            self._shown = shown = await issuer.first()
        except (SigningFailed, Busy) as error:
            raise CannotSecure(f"there is no serving certificate: {error}") from None
        self._tasks.append(issuer.run(shown))
        return shown

    def running(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What must run from now on, for ever; each is given once."""
        while self._tasks:
            yield self._tasks.pop()

    async def close(self, grace_s: float) -> None:
        if self.server is not None:
            await self.server.close(grace_s)

    def refresh(self) -> None:
        """Before a scrape of the metrics."""
        certificates = self._metrics.certificates
        certificates.judged_material(is_usable=not self._troubles())
        if self.keeper is not None:
            certificates.restarted(self.keeper.signer.restarts)
        if self._distributor is not None:
            self._metrics.distributed(missing=self._distributor.missing(), failures=self._distributor.failures)

    def _troubles(self) -> list[str]:
        """What is given and cannot be used."""
        found = ["" if self.keeper is None else self.keeper.trouble, "" if self._shown is None else self._shown.trouble]
        return [trouble for trouble in found if trouble]

    def page(self) -> dict[str, object]:
        """What stands on `/debug/ca`. Everything on it is public, or a name."""
        public = None if self.keeper is None else self.keeper.signer.public
        pair = None if self._shown is None else self._shown.pair
        found: dict[str, object] = {
            "trustedNodeAccounts": sorted("/".join(account) for account in self._security.trusted_node_accounts),
            "trustDomain": self._mesh().trust_domain,
            "troubles": self._troubles(),
        }
        if public is not None and self.keeper is not None:
            found["authority"] = {
                "kind": public.kind.value,
                "source": public.source,
                "isReady": self.keeper.signer.is_ready,
                "restarts": self.keeper.signer.restarts,
                "expires": {expiry.what: expiry.not_after_s for expiry in expiries(public)},
                "roots": public.roots,
            }
        if pair is not None:
            found["serving"] = {"names": list(pair.names), "expires": pair.not_after_s}
        if self._certificates is not None:
            found["refusals"] = [
                {
                    "at": refusal.at_s,
                    "peer": refusal.peer,
                    "caller": refusal.caller,
                    "cluster": refusal.cluster,
                    "identity": refusal.identity,
                    "node": refusal.node,
                    "reason": refusal.reason,
                    "text": refusal.text,
                }
                for refusal in self._certificates.refusals()
            ]
        return found

    # What changes.

    def _changed(self, public: Public) -> None:
        """Another authority is in use."""
        self._metrics.certificates.recorded(expiries(public))
        if self._issuer is not None:
            self._issuer.look()
        if self._distributor is None:
            return
        if self._issuer is not None or self._shown is None:
            self._distribute_roots(public.roots)
        if self._security.distributes_crl:
            self._distributor.want(self._security.crl_config_map, Wanted(CRL_KEY, public.crl))

    def _changed_files(self, pair: Pair) -> None:
        self._distribute_roots(pair.roots)

    def _distribute_roots(self, roots: str) -> None:
        if self._distributor is not None and roots:
            self._distributor.want(self._security.root_config_map, Wanted(ROOT_KEY, roots))

    def _look(self) -> None:
        if self.keeper is not None:
            self.keeper.look()

    async def _look_at_selectors(self, distributor: Distributor) -> Never:
        """The mesh configuration says which namespaces exist for us, and may come to say something else."""
        seen = self._mesh().discovery_selectors
        while True:
            await asyncio.sleep(_LOOK_S)
            selectors = self._mesh().discovery_selectors
            if selectors != seen:
                seen = selectors
                distributor.look_everywhere()

    # What holds now.

    def _mesh(self) -> MeshView:
        return mesh_of(Onlooker(self._world.graph))

    def _trust(self) -> Trust:
        accounts = frozenset(AccountRef(*account) for account in self._security.trusted_node_accounts)
        return trust_of(
            self._mesh(),
            accounts,
            self._settings.cluster_aliases,
            checks_trust_domain=self._security.checks_trust_domain,
        )

    def _names(self) -> tuple[str, ...]:
        namespace = self._settings.namespace
        tags = [
            ref.name
            for ref in self._world.graph.keys(SERVICES)
            if ref.namespace == namespace and ref.name.startswith(_TAG_PREFIX)
        ]
        custom = (*self._security.custom_hosts, *(["localhost"] if self._settings.config_dir else []))
        return service_names(namespace, self._settings.revision, self._mesh().discovery_host, custom, tags)


def _unusable(files: Files, error: Exception) -> CannotSecure:
    flags = "--ca-cert-file, --tls-cert-file and --tls-key-file: " if files not in MOUNTED else ""
    return CannotSecure(f"{flags}the serving certificate cannot be used: {error}")

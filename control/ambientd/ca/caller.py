"""Who asks: what an authenticator found out about a caller, and the two ways in which it can fail. Must not hold a
token, or anything that a caller said of itself without proof."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

Metadata = Iterable[tuple[str, str | bytes]]
"""Of a call: lower-case names and values, in their order."""


class Caller(Struct, frozen=True):
    """An account of Kubernetes, as the API server vouches for it (ca.md 4.3, 4.6)."""

    namespace: str
    account: str
    trust_domain: str
    """The mesh's at the moment of the call."""
    pod_name: str = ""
    """Of the pod that the token is bound to; empty: it is bound to none, and then nobody is impersonated."""
    pod_uid: str = ""
    node: str = ""
    """That the token names; empty: it names none, as before Kubernetes 1.30."""

    @property
    def identity(self) -> str:
        """Its own SPIFFE id; an `@` cannot stand in the trust domain of one (ca.md 4.6)."""
        return f"spiffe://{self.trust_domain.replace('@', '.')}/ns/{self.namespace}/sa/{self.account}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.account}" + (f" (pod {self.pod_name})" if self.pod_name else "")


class Unauthenticated(Exception):
    """The caller is nobody whom we know. The reason is for the log, never for the caller, and holds no token."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CannotTell(Exception):
    """Who the caller is could not be found out, since the API server did not answer: the caller may try again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def cluster_named(metadata: Metadata) -> str:
    """The cluster that a caller says that it is of; empty when it says none, or several: merging repeated values would
    make another decision of them (ca.md 4.6)."""
    named = [value for name, value in metadata if name == "clusterid"]
    return named[0] if len(named) == 1 and isinstance(named[0], str) else ""

"""Whatever is sent as metadata, nobody becomes somebody, and nothing but the two declared errors comes of it."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.ca.caller import CannotTell, Unauthenticated
from ambientd.xds.authentication import Authenticator, Denied, Reviewed
from ambientd.xds.static_tokens import StaticTokens
from ambientd.xds.token_review import read_review

TOKEN = "the-only-token"


class Silent:
    def authenticated(self, outcome: str) -> None:
        pass


def authenticator() -> Authenticator:
    return Authenticator(
        StaticTokens({TOKEN: Reviewed("istio-system", "ztunnel")}),
        Silent(),
        cluster_id="Kubernetes",
        cluster_aliases={},
        trust_domain=lambda: "cluster.local",
    )


_values = st.one_of(st.text(), st.binary(), st.text().map(lambda text: f"Bearer {text}"), st.just(f"bearer {TOKEN}"))
_names = st.sampled_from(["authorization", "clusterid", "authorization-bin", "x"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(_names, _values), max_size=5))
def test_no_metadata_but_the_right_one_is_a_caller(metadata: list[tuple[str, str | bytes]]) -> None:
    try:
        caller = asyncio.run(authenticator().authenticate(metadata))
    except Unauthenticated:
        return
    raise AssertionError(f"{metadata} became {caller}")


@settings(max_examples=300, deadline=None)
@given(st.binary())
def test_no_bytes_are_taken_for_a_review(raw: bytes) -> None:
    try:
        found = read_review(raw, TOKEN, ("istio-ca",))
    except (CannotTell, Denied):
        return
    raise AssertionError(f"{raw!r} became {found}")

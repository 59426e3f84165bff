"""What decisions rest on, out of the settings and the mesh configuration in force (ca.md 5.2, 5.4, 12). Must not decide
anything."""

from __future__ import annotations

from collections.abc import Iterable

from ambientd.ca.decide import Trust
from ambientd.index.mesh import MeshView
from ambientd.index.pods import AccountRef


def trust_of(
    mesh: MeshView,
    accounts: frozenset[AccountRef],
    aliases: Iterable[tuple[str, str]] = (),
    *,
    checks_trust_domain: bool = True,
) -> Trust:
    """`accounts` are those of node proxies; `aliases` are pairs of an alias and the cluster id that it stands for. An
    alias of our cluster means our cluster, and the empty id means none (decisions)."""
    ours = mesh.rules.cluster_id
    clusters = {ours, *(alias for alias, cluster in aliases if cluster == ours)} - {""}
    return Trust(
        accounts=accounts,
        clusters=frozenset(clusters),
        trust_domains=frozenset({mesh.trust_domain, *mesh.trust_domain_aliases}),
        checks_trust_domain=checks_trust_domain,
        discovery_selectors=mesh.discovery_selectors,
    )

"""Who may hold which certificate (ca.md 5): a caller its own, and the proxy of a node those of what runs on that node
now. A decision is a value; its reason is for the log, never for the caller. Must not wait, and must not read anything
but who runs where."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from ambientd.ca.caller import Caller
from ambientd.ca.identity import parse_identity
from ambientd.index.pods import AccountRef, Placement, PodIndex, is_finished
from ambientd.resources.mesh import LabelSelector


class Reason(Enum):
    """Why an identity is refused, one for each condition, in the order in which they are looked at (ca.md 5.3)."""

    NOBODY_TRUSTED = "no account is trusted to ask for others (CA_TRUSTED_NODE_ACCOUNTS is empty)"
    UNKNOWN_CLUSTER = "the caller's header clusterid names no cluster of ours"
    UNTRUSTED_ACCOUNT = "the caller's account is not among CA_TRUSTED_NODE_ACCOUNTS"
    MALFORMED_IDENTITY = "what is asked for is not the SPIFFE id of an account"
    FOREIGN_TRUST_DOMAIN = "the trust domain is neither the mesh's nor one of its aliases"
    NO_POD_IN_TOKEN = "the caller's token is not bound to a pod"
    CALLER_UNKNOWN = "the caller's pod is not known"
    CALLER_REPLACED = "the caller's pod has another uid than its token"
    CALLER_OTHER_ACCOUNT = "the caller's pod runs as another account"
    CALLER_FINISHED = "the caller's pod is in a terminal phase"
    CALLER_ON_NO_NODE = "the caller's pod is on no node yet"
    CALLER_ON_OTHER_NODE = "the caller's token names another node than the one that its pod is on"
    NOT_ON_NODE = "no pod of that account is on the caller's node"
    TOO_MANY_WAIT = "too many requests of the caller wait for pods already"


class Trust(Struct, frozen=True):
    """What decisions rest on besides the pods: settings, and the mesh configuration in force."""

    accounts: frozenset[AccountRef]
    """Accounts that node proxies run as (ca.md 5.2)."""
    clusters: frozenset[str]
    """The id of our cluster, and its aliases. The empty text is never among them: a caller that names no cluster has
    proved nothing about where it runs."""
    trust_domains: frozenset[str] = frozenset({"cluster.local"})
    """The mesh's, and its aliases."""
    checks_trust_domain: bool = True
    """`CA_CHECK_IMPERSONATED_TRUST_DOMAIN`."""
    discovery_selectors: tuple[LabelSelector, ...] = ()
    """Namespaces that exist for us; none: all do (ca.md 13.5)."""


class Ask(Struct, frozen=True):
    """One request for a certificate."""

    caller: Caller
    cluster: str
    """The header `clusterid`, as it came; empty: absent, or there more than once."""
    identity: str = ""
    """On whose behalf; empty: the caller's own."""


class Issue(Struct, frozen=True):
    identity: str
    """The only subject of the certificate, byte for byte what was asked for."""
    node: str = ""
    """On which it was found to run; empty: the caller's own identity, for which no node is looked at."""


class Refuse(Struct, frozen=True):
    reason: Reason
    node: str = ""
    """Of the caller's pod, where it came that far."""


class Await(Struct, frozen=True):
    """Refused as things are, and the one thing that is missing may be on its way: the shell waits for this placement,
    at most 2 s, and asks again (decisions)."""

    placement: Placement


def decide(ask: Ask, pods: PodIndex, trust: Trust) -> Issue | Refuse | Await:
    """Whether a certificate may be issued (ca.md 5.3). Only the last condition waits, for a pod that is just appearing
    on the node: every other one is a matter of who the caller is, and its answer does not change by waiting."""
    if not ask.identity:
        return Issue(ask.caller.identity)
    caller = ask.caller
    if not trust.accounts:
        return Refuse(Reason.NOBODY_TRUSTED)
    if not ask.cluster or ask.cluster not in trust.clusters:
        return Refuse(Reason.UNKNOWN_CLUSTER)
    if AccountRef(caller.namespace, caller.account) not in trust.accounts:
        return Refuse(Reason.UNTRUSTED_ACCOUNT)
    parsed = parse_identity(ask.identity)
    if parsed is None:
        return Refuse(Reason.MALFORMED_IDENTITY)
    trust_domain, account = parsed
    if trust.checks_trust_domain and trust_domain not in trust.trust_domains:
        return Refuse(Reason.FOREIGN_TRUST_DOMAIN)
    node = _node_of(caller, pods, trust)
    if isinstance(node, Refuse):
        return node
    # A namespace that does not exist for us has no pods; that, too, may change while we wait.
    if _exists(account.namespace, pods, trust) and pods.runs(account, node):
        return Issue(ask.identity, node)
    return Await(Placement(account, node))


def _node_of(caller: Caller, pods: PodIndex, trust: Trust) -> str | Refuse:
    """The node of the caller's pod, as the API server has it. Never what a request says."""
    if not caller.pod_name or not caller.pod_uid:
        return Refuse(Reason.NO_POD_IN_TOKEN)
    pod = pods.pod(caller.namespace, caller.pod_name)
    if pod is None or not _exists(caller.namespace, pods, trust):
        return Refuse(Reason.CALLER_UNKNOWN)
    if pod.uid != caller.pod_uid:
        return Refuse(Reason.CALLER_REPLACED, pod.node)
    if pod.service_account != caller.account:
        return Refuse(Reason.CALLER_OTHER_ACCOUNT, pod.node)
    if is_finished(pod):
        return Refuse(Reason.CALLER_FINISHED, pod.node)
    if not pod.node:
        return Refuse(Reason.CALLER_ON_NO_NODE)
    if caller.node and caller.node != pod.node:
        return Refuse(Reason.CALLER_ON_OTHER_NODE, pod.node)
    return pod.node


def _exists(namespace: str, pods: PodIndex, trust: Trust) -> bool:
    if not trust.discovery_selectors:
        return True
    labels = pods.namespace_labels(namespace)
    return labels is not None and any(selector.matches(labels) for selector in trust.discovery_selectors)

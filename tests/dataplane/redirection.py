"""The rules that send a pod's connections through its node's ztunnel, in the pod's own namespace, as istio-cni sets
them for an enrolled pod. Must not know who takes the connections.

A ztunnel opens its sockets within the pod: 15001 takes what the pod opens, 15006 what is opened to it without a tunnel,
15008 tunnels, 15053 names. It marks the packets of its own sockets, by which they pass."""

from __future__ import annotations

from tests.dataplane.namespaces import Namespace

OUTBOUND_PORT, INBOUND_PORT, TUNNEL_PORT, DNS_PORT = 15001, 15006, 15008, 15053

MARK = 0x539
"""Of packets from a ztunnel's sockets."""

# Of connections that a ztunnel opened to the pod under its caller's address: the pod's answers must find back to it.
_ANSWERED = 0x111
_MASK = 0xFFF
_TABLE = 100

# What a kubelet's probes are made to come from; they are not captured.
_PROBE = "169.254.7.127/32"

_OWN = f"-m mark --mark {MARK:#x}/{_MASK:#x}"
_NOT_OWN = f"-m mark ! --mark {MARK:#x}/{_MASK:#x}"
_RULES = f"""\
*mangle
-A PREROUTING {_OWN} -j CONNMARK --set-xmark {_ANSWERED:#x}/{_MASK:#x}
-A OUTPUT -m connmark --mark {_ANSWERED:#x}/{_MASK:#x} -j CONNMARK --restore-mark
COMMIT
*nat
-A PREROUTING -s {_PROBE} -p tcp -j ACCEPT
-A PREROUTING ! -d 127.0.0.1/32 -p tcp ! --dport {TUNNEL_PORT} {_NOT_OWN} -j REDIRECT --to-ports {INBOUND_PORT}
-A OUTPUT -d {_PROBE} -p tcp -j ACCEPT
-A OUTPUT ! -o lo -p udp --dport 53 {_NOT_OWN} -j REDIRECT --to-ports {DNS_PORT}
-A OUTPUT ! -d 127.0.0.1/32 -p tcp --dport 53 {_NOT_OWN} -j REDIRECT --to-ports {DNS_PORT}
-A OUTPUT -p tcp -m mark --mark {_ANSWERED:#x}/{_MASK:#x} -j ACCEPT
-A OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT
-A OUTPUT ! -d 127.0.0.1/32 -p tcp {_NOT_OWN} -j REDIRECT --to-ports {OUTBOUND_PORT}
COMMIT
"""


def capture(pod: Namespace) -> None:
    """From now on, new connections of this namespace go through the sockets that a ztunnel opens in it."""
    pod.run("iptables-restore", "--noflush", given=_RULES)
    pod.run("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", str(_TABLE))
    rule = f"rule add fwmark {_ANSWERED:#x}/{_MASK:#x} pref 32764 lookup {_TABLE}"
    pod.run("ip", *rule.split())

"""What the ztunnels of a rig hold and do: their certificates, and whether a call gets through. No test stands here."""

from __future__ import annotations

import base64

from cryptography import x509

from tests.dataplane.rig import PORT, Node, Pod
from tests.dataplane.traffic import call
from tests.wire.process import eventually

_WITHIN_S = 3.0


def reaches(caller: Pod, target: Pod, port: int = PORT) -> bool:
    """Whether a call is answered by whom it was for."""
    try:
        return call(caller.inside, target.address, port, _WITHIN_S) == target.name
    except OSError:
        return False


def certificates(node: Node) -> dict[str, str]:
    """State of each identity that a node's ztunnel asked for."""
    return {each["identity"]: each["state"] for each in node.dump().get("certificates", ())}


def leaves(node: Node) -> dict[str, x509.Certificate]:
    """Each certificate that a node's ztunnel has, by its identity."""
    held = (each for each in node.dump().get("certificates", ()) if each["state"] == "Available")
    pems = {each["identity"]: each["certChain"][0]["pem"] for each in held}
    return {identity: x509.load_pem_x509_certificate(base64.b64decode(pem)) for identity, pem in pems.items()}


def until_renewed(*nodes: Node) -> list[x509.Certificate]:
    """Waits until every certificate that these nodes hold was asked for after this call; returns those."""
    # Twice: the first renewal may be of a request from before.
    for _ in range(2):
        before = [leaves(node) for node in nodes]

        def renewed(before: list[dict[str, x509.Certificate]] = before) -> bool:
            now = [leaves(node) for node in nodes]
            return all(
                new.keys() == old.keys() and all(new[each].serial_number != old[each].serial_number for each in old)
                for new, old in zip(now, before, strict=True)
            )

        eventually(renewed, "new certificates", within_s=30)
    return [leaf for node in nodes for leaf in leaves(node).values()]

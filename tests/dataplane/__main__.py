"""The rig by hand (`hack/dataplane`): a mesh over a folder of manifests, and a line for every change of who reaches
whom."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from itertools import permutations
from pathlib import Path

from tests.dataplane.held import reaches
from tests.dataplane.mesh import Mesh
from tests.dataplane.namespaces import missing
from tests.dataplane.rig import PORT, Pod, Rig

_POLICY = """\
# Who may call the till. Edit it, and see what changes; or add other objects to this folder.
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-cart, namespace: shop}
spec:
  selector: {matchLabels: {app: till}}
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/cart]}}]}]
"""


def show(mesh: Mesh, pods: list[Pod], *, once: bool) -> None:
    print(f"manifests: {mesh.objects}")
    for pod in pods:
        kind = "captured" if pod.is_enrolled else "not captured"
        print(f"pod {pod.name}: {pod.address}:{PORT} on {pod.node.name}, {kind}; nsenter --net={pod.inside.path}")
    print(
        f"control plane: nsenter --net={mesh.rig.control_plane.path} curl http://127.0.0.1:{mesh.server.http_port}/debug"
    )
    before: dict[tuple[str, str], bool] = {}
    while True:
        now = {(caller.name, target.name): reaches(caller, target) for caller, target in permutations(pods, 2)}
        for pair, answered in now.items():
            if before.get(pair) != answered:
                what = "answered" if answered else "cut"
                print(f"{time.strftime('%H:%M:%S')} {' → '.join(pair)}: {what}", flush=True)
        if once:
            return
        before = now
        time.sleep(0.2)


def main() -> None:
    once = sys.argv[1:] == ["--once"]
    if sys.argv[1:] and not once:
        raise SystemExit(f"hack/dataplane: expected --once or nothing, got {' '.join(sys.argv[1:])}")
    if reason := missing():
        raise SystemExit(f"hack/dataplane: no network namespaces can be made: {reason}")
    binary = Path(os.environ.get("ZTUNNEL_BIN", ""))
    if not binary.is_file():
        raise SystemExit(f"hack/dataplane: ZTUNNEL_BIN must be the path of a ztunnel, got '{binary}'")
    # Also where a shell has its background jobs ignore interrupts; everything is taken down.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="ambientd-rig-") as name, Rig(Path(name)) as rig:
        mesh = Mesh(rig, Path(name), binary)
        with mesh.running():
            pods = [
                mesh.add_pod("node-a", "cart", "10.1.0.1"),
                mesh.add_pod("node-b", "till", "10.1.0.2"),
                mesh.add_pod("node-a", "guest", "10.1.0.3"),
                mesh.add_pod("node-b", "outside", "10.1.0.4", enrolled=False),
            ]
            (mesh.objects / "policies.yaml").write_text(_POLICY)
            mesh.until_served(*pods)
            try:
                show(mesh, pods, once=once)
            except KeyboardInterrupt:
                pass


if __name__ == "__main__":
    main()

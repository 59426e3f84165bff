"""The rig by hand: a mesh over a folder of manifests, and a line for every change of who reaches whom. A failure is one
line too."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
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


def run(arguments: Sequence[str]) -> None:
    """Until it is interrupted, or once. Raises SystemExit with why it cannot."""
    once = list(arguments) == ["--once"]
    if arguments and not once:
        raise SystemExit(f"hack/dataplane: expected --once or nothing, got {' '.join(arguments)}")
    binary = _ztunnel()
    if reason := missing():
        raise SystemExit(f"hack/dataplane: no network namespaces can be made: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="ambientd-rig-"))
    with ExitStack() as at_end:
        at_end.callback(shutil.rmtree, folder)
        try:
            _serve(folder, binary, once=once)
        except (AssertionError, RuntimeError) as error:
            # What the programs said is in the folder, so that stays.
            at_end.pop_all()
            told = str(error).partition("\n")[0].rstrip(":")
            where = "" if str(folder) in told else f"; what the programs said is in {folder}"
            raise SystemExit(f"hack/dataplane: {told}{where}") from None


def _ztunnel() -> Path:
    path = os.environ.get("ZTUNNEL_BIN", "")
    if not path:
        raise SystemExit(
            "hack/dataplane: ZTUNNEL_BIN must be the path of a ztunnel, and is not set; "
            "run it as ZTUNNEL_BIN=/path/to/ztunnel hack/dataplane"
        )
    if not Path(path).is_file() or not os.access(path, os.X_OK):
        raise SystemExit(f"hack/dataplane: ZTUNNEL_BIN must be the path of an executable ztunnel, got '{path}'")
    return Path(path).resolve()


def _serve(folder: Path, binary: Path, *, once: bool) -> None:
    with Rig(folder) as rig:
        mesh = Mesh(rig, folder, binary)
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

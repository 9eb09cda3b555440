"""Ray Serve: deployments as actors of a Ray that is started for them alone."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from paceline.servers._program import ExportedModelServer, with_onnxruntime


class RayServe(ExportedModelServer):
    """A deployment of ours decodes the body and runs the model in ONNX Runtime."""

    name = "ray-serve"
    summary = "Ray Serve with ONNX Runtime; HTTP, batching"
    wires = ("kserve-json",)
    path = "/infer"
    apps = ("ray_serve_app.py", "onnx_model.py")
    requirements = with_onnxruntime("ray-serve", "ray[serve]", "2.60.0")
    ready_path = "/-/healthz"
    grace = 20.0

    def _command(self) -> Sequence[str]:
        return [*super()._command(), str(self._short_path())]

    def _environment(self) -> dict[str, str]:
        # A token of its own, so that it neither takes the user's nor obeys anybody else on this machine.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # Without clusters, which this variable turns off on every system, it listens on the loopback only.
        alone = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_ADDRESS": "", "RAY_USAGE_STATS_ENABLED": "0"}
        return super()._environment() | token | alone

    def _is_ready(self) -> bool:
        return (self.folder / "deployed").exists() and super()._is_ready()

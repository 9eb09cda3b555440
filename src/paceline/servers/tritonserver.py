"""NVIDIA's Triton as a program on the path, as its containers have it, with a backend of its own for the model."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence

from paceline.core.network import free_port
from paceline.load.kserve import TensorSpec
from paceline.servers._program import HOST, MODEL, BatchingSettings, ExportedModelServer

LARGEST_REQUEST = 4096  # samples, where requests are not put together


class TritonServer(ExportedModelServer):
    """Triton with its backend for ONNX Runtime."""

    name = "tritonserver"
    summary = "Triton with its ONNX Runtime backend; HTTP and gRPC, dynamic batching"
    wires = ("kserve-binary", "kserve-json", "kserve-grpc", "kserve-shm")
    Settings = BatchingSettings
    path = f"/v2/models/{MODEL}/infer"
    ready_path = f"/v2/models/{MODEL}/ready"
    grace = 30.0

    settings: BatchingSettings
    _metrics_port = 0

    @classmethod
    def missing(cls) -> str | None:
        if shutil.which("tritonserver") is None:
            return "tritonserver is not on the path; run Paceline in a container of Triton, which has it"
        return None

    def prepare(self) -> None:
        super().prepare()
        folder = self.folder / "repository" / MODEL / "1"
        folder.mkdir(parents=True, exist_ok=True)
        assert self.artifact.path is not None
        file = folder / "model.onnx"  # as the backend wants it to be called
        file.unlink(missing_ok=True)
        file.symlink_to(self.artifact.path.absolute())
        (folder.parent / "config.pbtxt").write_text(self._model_config())

    def _model_config(self) -> str:
        settings = self.settings
        together = settings.max_batch > 1
        kind, _, index = self.need.device.partition(":")
        device = "kind: KIND_CPU" if kind == "cpu" else f"kind: KIND_GPU gpus: [ {index or 0} ]"
        lines = [
            f'name: "{MODEL}"',
            'backend: "onnxruntime"',
            f"max_batch_size: {settings.max_batch if together else LARGEST_REQUEST}",
            *(f"input [ {_tensor(spec)} ]" for spec in self.artifact.inputs),
            *(f"output [ {_tensor(spec)} ]" for spec in self.artifact.outputs),
            f"instance_group [ {{ count: {settings.workers} {device} }} ]",
            f'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{settings.threads_of_worker}" }} }}',
        ]
        if together:
            delay = round(settings.max_delay * 1e6)
            lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}")
        return "\n".join(lines) + "\n"

    def _command(self) -> Sequence[str]:
        addresses = [f"--http-address={HOST}", f"--http-port={self.port}"]
        addresses += [f"--grpc-address={HOST}", f"--grpc-port={self.grpc_port}"]
        self._metrics_port = free_port()
        addresses += [f"--metrics-address={HOST}", f"--metrics-port={self._metrics_port}", "--allow-gpu-metrics=false"]
        return ["tritonserver", f"--model-repository={self.folder / 'repository'}", *addresses]

    @property
    def metrics_url(self) -> str:
        return f"http://{HOST}:{self._metrics_port}/metrics"

    @property
    def versions(self) -> dict[str, str]:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        match = re.search(r"server_version\s*\|\s*([\d.]+)", text)
        return {"tritonserver": match.group(1)} if match else {}


def _tensor(spec: TensorSpec) -> str:
    sizes = ", ".join(str(size) for size in spec.shape) or "1"
    flat = " reshape: { shape: [ ] }" if not spec.shape else ""
    return f'{{ name: "{spec.name}" data_type: TYPE_{spec.datatype} dims: [ {sizes} ]{flat} }}'

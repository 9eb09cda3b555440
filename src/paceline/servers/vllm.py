"""vLLM: paged attention and continuous batching on GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from paceline.core.quantity import Fraction
from paceline.servers._environment import Requirements
from paceline.servers._language_model import TORCH_NAMES, GpuLanguageModelServer, GpuSettings
from paceline.servers._program import HOST


class VllmSettings(GpuSettings):
    """What decides about its memory and its batches."""

    gpu_memory: Fraction = Field(default=0.9, gt=0, le=1)
    """Part of the GPU's memory that it may take"""


class Vllm(GpuLanguageModelServer):
    """`vllm serve` with one model on one GPU."""

    name = "vllm"
    summary = "vLLM; OpenAI-compatible, streams, continuous batching"
    Settings = VllmSettings
    ready_path = "/health"
    requirements = Requirements(
        server="vllm",
        packages=("vllm==0.32.0",),
        shown=("vllm", "torch", "transformers"),
        machines=("x86_64", "aarch64"),
    )

    settings: VllmSettings

    def _command(self) -> Sequence[str]:
        settings = self.settings
        serve = [str(self.python.parent / "vllm"), "serve", str(self.model_path), "--served-model-name"]
        where = [self.served_name, "--host", HOST, "--port", str(self.port), "--seed", str(self.need.seed)]
        options = ["--dtype", TORCH_NAMES[self.need.precision], "--gpu-memory-utilization", f"{settings.gpu_memory:g}"]
        options.append("--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching")
        if settings.max_batch is not None:
            options += ["--max-num-seqs", str(settings.max_batch)]
        return [*serve, *where, *options]

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"VLLM_NO_USAGE_STATS": "1"}

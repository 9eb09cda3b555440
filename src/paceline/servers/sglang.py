"""SGLang: continuous batching with a cache of common prefixes on GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from paceline.core.quantity import Fraction
from paceline.servers._environment import Requirements
from paceline.servers._language_model import TORCH_NAMES, GpuLanguageModelServer, GpuSettings
from paceline.servers._program import HOST


class SglangSettings(GpuSettings):
    """What decides about its memory and its batches."""

    gpu_memory: Fraction | None = Field(default=None, gt=0, le=1)
    """Part of the GPU's memory for weights and cache; its own choice unless set"""


class Sglang(GpuLanguageModelServer):
    """SGLang's server with one model on one GPU."""

    name = "sglang"
    summary = "SGLang; OpenAI-compatible, streams, continuous batching"
    Settings = SglangSettings
    ready_path = "/health_generate"  # /health answers before the model is loaded
    requirements = Requirements(
        server="sglang",
        packages=("sglang==0.5.23",),
        shown=("sglang", "torch", "transformers"),
        machines=("x86_64", "aarch64"),
    )

    settings: SglangSettings

    def _command(self) -> Sequence[str]:
        settings = self.settings
        launch = [str(self.python), "-m", "sglang.launch_server", "--model-path", str(self.model_path)]
        where = ["--served-model-name", self.served_name, "--host", HOST, "--port", str(self.port)]
        options = ["--dtype", TORCH_NAMES[self.need.precision], "--random-seed", str(self.need.seed)]
        options.append("--enable-metrics")
        if not settings.prefix_caching:
            options.append("--disable-radix-cache")
        if settings.gpu_memory is not None:
            options += ["--mem-fraction-static", f"{settings.gpu_memory:g}"]
        if settings.max_batch is not None:
            options += ["--max-running-requests", str(settings.max_batch)]
        return [*launch, *where, *options]

"""SGLang: continuous batching with a cache of common prefixes on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from paceline.core.quantity import Duration, Fraction
from paceline.devices import kind_of
from paceline.servers._environment import Requirements
from paceline.servers._language_model import TORCH_NAMES, WIRES, LanguageModel
from paceline.servers._program import HOST, Program, PythonSettings
from paceline.servers.base import ServerSettings


class SglangSettings(PythonSettings):
    """What decides about its memory and its batches."""

    ready_timeout: Duration = Field(default=600.0, gt=0)  # it captures graphs first
    gpu_memory: Fraction | None = Field(default=None, gt=0, le=1)
    """Part of the GPU's memory for weights and cache; its own choice unless set"""
    max_batch: int | None = Field(default=None, ge=1)
    """Requests that are run together, at most; its own choice unless set"""
    prefix_caching: bool = False
    """Reuse what earlier requests with the same beginning have computed"""


class Sglang(Program):
    """SGLang's server with one model on one GPU."""

    name = "sglang"
    summary = "SGLang; OpenAI-compatible, streams, continuous batching"
    Settings: ClassVar[type[ServerSettings]] = SglangSettings
    wires = WIRES
    model_format = LanguageModel()
    is_checkable = False  # nobody knows what a right text is
    gpu_only = True
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
        if not settings.prefix_caching:
            options.append("--disable-radix-cache")
        if settings.gpu_memory is not None:
            options += ["--mem-fraction-static", f"{settings.gpu_memory:g}"]
        if settings.max_batch is not None:
            options += ["--max-running-requests", str(settings.max_batch)]
        return [*launch, *where, *options]

    def _environment(self) -> dict[str, str]:
        _, _, index = self.need.device.partition(":")
        return super()._environment() | (kind_of(self.need.device).showing(index) if index else {})

    def _facts(self) -> dict[str, Any]:
        settings = self.settings
        return super()._facts() | {"max_batch": settings.max_batch, "prefix_caching": settings.prefix_caching}

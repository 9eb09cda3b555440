"""vLLM: paged attention and continuous batching on GPUs."""

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


class VllmSettings(PythonSettings):
    """What decides about its memory and its batches."""

    ready_timeout: Duration = Field(default=600.0, gt=0)  # it compiles and captures graphs first
    gpu_memory: Fraction = Field(default=0.9, gt=0, le=1)
    """Part of the GPU's memory that it may take"""
    max_batch: int | None = Field(default=None, ge=1)
    """Requests that are run together, at most; its own choice unless set"""
    prefix_caching: bool = False
    """Reuse what earlier requests with the same beginning have computed"""


class Vllm(Program):
    """`vllm serve` with one model on one GPU."""

    name = "vllm"
    summary = "vLLM; OpenAI-compatible, streams, continuous batching"
    Settings: ClassVar[type[ServerSettings]] = VllmSettings
    wires = WIRES
    model_format = LanguageModel()
    is_checkable = False  # nobody knows what a right text is
    ready_path = "/health"
    gpu_only = True
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
        quiet = {"VLLM_NO_USAGE_STATS": "1"}
        _, _, index = self.need.device.partition(":")
        return super()._environment() | quiet | (kind_of(self.need.device).showing(index) if index else {})

    def _facts(self) -> dict[str, Any]:
        settings = self.settings
        return super()._facts() | {"max_batch": settings.max_batch, "prefix_caching": settings.prefix_caching}

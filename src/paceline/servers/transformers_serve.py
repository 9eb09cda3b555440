"""Transformers' own server: the reference implementation of most language models behind an HTTP interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from paceline.servers._environment import Requirements
from paceline.servers._language_model import TORCH_NAMES, LanguageModelServer
from paceline.servers._program import HOST, PythonSettings


class TransformersServeSettings(PythonSettings):
    """How requests are run together."""

    continuous_batching: bool = False
    """Run the requests that are there in one batch, token by token; without it they take turns"""
    threads: int | None = Field(default=None, ge=1)
    """Threads of torch on the CPU; its own choice unless set"""


class TransformersServe(LanguageModelServer):
    """`transformers serve` with one model loaded."""

    name = "transformers-serve"
    summary = "transformers serve; OpenAI-compatible, streams"
    Settings = TransformersServeSettings
    ready_path = "/health"
    requirements = Requirements(
        server="transformers-serve",
        packages=("transformers[serving]==5.22.2",),
        shown=("transformers", "torch"),
        torch=True,
    )

    settings: TransformersServeSettings

    @property
    def served_name(self) -> str:
        return str(self.model_path)

    def _command(self) -> Sequence[str]:
        program = "from transformers.cli.transformers import main; main()"
        serve = [str(self.python), "-c", program, "serve", str(self.model_path), "--host", HOST, "--port"]
        options = ["--device", self.need.device, "--dtype", TORCH_NAMES[self.need.precision], "--log-level", "error"]
        if self.settings.continuous_batching:
            options.append("--continuous-batching")
        return [*serve, str(self.port), *options]

    def _environment(self) -> dict[str, str]:
        threads = {"OMP_NUM_THREADS": str(self.settings.threads)} if self.settings.threads else {}
        return super()._environment() | threads

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"engine": "torch", "continuous_batching": self.settings.continuous_batching}

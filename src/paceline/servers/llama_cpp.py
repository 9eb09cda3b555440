"""llama.cpp by its Python package: quantised language models from one file, on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from paceline.core.errors import InputError
from paceline.core.quantity import Duration
from paceline.servers._environment import Requirements
from paceline.servers._language_model import DTYPES, PREFIX, LanguageModelServer, LlamaShape, write_gguf
from paceline.servers._program import HOST, PythonSettings


class LlamaCppSettings(PythonSettings):
    """How much of the model is where."""

    ready_timeout: Duration = Field(default=300.0, gt=0)
    threads: int | None = Field(default=None, ge=1)
    """Threads on the CPU; its own choice unless set"""
    context: int = Field(default=2048, ge=1)
    """Tokens of prompt and answer together, at most"""


class LlamaCpp(LanguageModelServer):
    """llama-cpp-python's server with one GGUF file; requests are run one after the other."""

    name = "llama-cpp"
    summary = "llama.cpp by llama-cpp-python; OpenAI-compatible, streams"
    Settings = LlamaCppSettings
    model_noun = "file"
    ready_path = "/v1/models"
    requirements = Requirements(
        server="llama-cpp",
        packages=("llama-cpp-python[server]==0.3.36",),  # compiled when it is installed: a C++ compiler is needed
        shown=("llama-cpp-python",),
        programs=(("c++", "install a C++ compiler, as pip compiles it"),),
    )

    settings: LlamaCppSettings

    @classmethod
    def check_file(cls, model: str) -> None:
        path = Path(model)
        if path.suffix != ".gguf" or not path.is_file():
            message = f"model '{model}': {cls.name} serves a .gguf file, or {PREFIX}:layers=2"
            raise InputError("not-a-gguf-file", message, key="model", value=model)

    def write(self, shape: LlamaShape) -> Path:
        path = self.folder / "model.gguf"
        write_gguf(path, shape, dtype=DTYPES[self.need.precision], seed=self.need.seed)
        return path

    def _command(self) -> Sequence[str]:
        start = [str(self.python), "-m", "llama_cpp.server", "--model", str(self.model_path)]
        where = ["--model_alias", self.served_name, "--host", HOST, "--port", str(self.port)]
        options = ["--n_ctx", str(self.settings.context), "--seed", str(self.need.seed)]
        options += ["--interrupt_requests", "false"]  # a new request would end the one that runs
        if self.need.device != "cpu":
            options += ["--n_gpu_layers", "-1"]
        if self.settings.threads is not None:
            options += ["--n_threads", str(self.settings.threads)]
        return [*start, *where, *options]

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts() | {"engine": "llama.cpp", "context": self.settings.context}
        del facts["precision"]  # the file decides
        return facts

"""llama.cpp from a wheel that has its server: quantised language models from one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from paceline.core.errors import InputError
from paceline.core.quantity import Duration
from paceline.servers import _apps
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
    parallel: int = Field(default=4, ge=1, le=256)
    """Requests that are computed together, at most"""


class LlamaCpp(LanguageModelServer):
    """llama.cpp's own server with one GGUF file, with continuous batching."""

    name = "llama-cpp"
    summary = "llama.cpp's own server; OpenAI-compatible, streams, embeddings, continuous batching"
    Settings = LlamaCppSettings
    model_noun = "file"
    ready_path = "/v1/models"
    requirements = Requirements(server="llama-cpp", packages=("xllamacpp==2026.10.11549",), shown=("xllamacpp",))

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
        settings, on_gpu = self.settings, self.need.device != "cpu"
        numbers = (self.port, settings.context, settings.parallel, self.need.seed, settings.threads or 0, -1 * on_gpu)
        app = Path(_apps.__path__[0], "llama_cpp_app.py")
        kind = {"openai-embeddings": "embeddings", "rerank": "rerank"}.get(self.need.wire or "", "text")
        return [str(self.python), str(app), str(self.model_path), self.served_name, HOST, kind, *map(str, numbers)]

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts() | {"engine": "llama.cpp", "context": self.settings.context}
        facts |= {"parallel": self.settings.parallel}
        del facts["precision"]  # the file decides
        return facts

"""What servers of language models have in common: a model's folder, and the interface that OpenAI's clients speak."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from paceline.benchmarks.serving.servers import _language_model
from paceline.benchmarks.serving.servers._program import HOST, PythonProgram, PythonSettings
from paceline.benchmarks.serving.servers.base import Endpoint, Need, ServerSettings, Wire
from paceline.core.errors import InputError

PATHS: dict[Wire, str] = {"openai-chat": "/v1/chat/completions", "openai-completions": "/v1/completions"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class LanguageModelServer(PythonProgram):
    """A server that generates text from a folder of the Hugging Face format."""

    wires: ClassVar[tuple[Wire, ...]] = ("openai-chat", "openai-completions")
    ready_path: ClassVar[str] = "/health"
    gpu_only: ClassVar[bool] = False
    is_checkable: ClassVar[bool] = False  # nobody knows what a right text is

    settings: PythonSettings
    model_path: Path

    @classmethod
    def missing(cls) -> str | None:
        # An interpreter that a user has made may have a build for other devices.
        if cls.gpu_only and not cls.requirements.has_own_python and not _has_nvidia_gpu():
            return f"{cls.name} needs an NVIDIA GPU, and this machine has none that its driver shows"
        return super().missing()

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        super().check(settings, need)
        if need.precision not in DTYPES:
            raise InputError(f"precision = '{need.precision}': {cls.name} serves one of {', '.join(DTYPES)}")
        cls._check_model(need)

    @classmethod
    def _check_model(cls, need: Need) -> None:
        if need.model.startswith(_language_model.PREFIX):
            _language_model.parse(need.model)
            return
        if not need.allow_import:
            raise InputError(f"model '{need.model}': only a case that was started on this machine may name a folder")
        if not (Path(need.model) / "config.json").is_file():
            raise InputError(
                f"model '{need.model}': {cls.name} serves a folder with a config.json, weights and a tokenizer, "
                f"or {_language_model.PREFIX}:layers=2,width=64"
            )

    def prepare(self) -> None:
        super().prepare()
        need = self.need
        if need.model.startswith(_language_model.PREFIX):
            self.say(f"writing {need.model}")
            self.model_path = self._write_model(_language_model.parse(need.model))
        else:
            self.model_path = Path(need.model).absolute()

    def _write_model(self, shape: _language_model.LlamaShape) -> Path:
        """A generated model as this server reads it."""
        path = self.folder / "model"
        _language_model.write(path, shape, precision=self.need.precision, seed=self.need.seed)
        return path

    def _environment(self) -> dict[str, str]:
        """The model is here: nothing is to be looked up elsewhere, or told to anybody."""
        alone = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
        }
        return super()._environment() | alone

    @property
    def served_name(self) -> str:
        """What the server calls its model."""
        return "model"

    @property
    def dtype(self) -> str:
        """As torch calls the precision."""
        return DTYPES[self.need.precision]

    def endpoint(self, wire: Wire) -> Endpoint:
        return Endpoint(wire=wire, host=HOST, port=self.port, path=PATHS[wire], model=self.served_name)

    def _facts(self) -> dict[str, Any]:
        return {"engine": self.name, "workers": 1, "precision": self.need.precision}


def _has_nvidia_gpu() -> bool:
    """Whether the driver shows one; asked without loading it."""
    gpus = Path("/proc/driver/nvidia/gpus")
    return gpus.is_dir() and any(gpus.iterdir())

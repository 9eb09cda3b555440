"""Language models behind the interface that OpenAI's clients speak: what is served, and where it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.core.errors import InputError
from paceline.load.request import Endpoint, Wire
from paceline.servers import _language_model
from paceline.servers._program import HOST, ModelFormat, Program
from paceline.servers.base import Need, ServerSettings

PATHS: dict[Wire, str] = {"openai-chat": "/v1/chat/completions", "openai-completions": "/v1/completions"}
WIRES = tuple(PATHS)
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # as torch calls a precision


class LanguageModel(ModelFormat):
    """A folder of the Hugging Face format; a generated model is written as one."""

    noun = "folder"

    def check(self, server: type[Program], settings: ServerSettings, need: Need) -> None:
        if need.precision not in DTYPES:
            message = f"precision = '{need.precision}': {server.name} serves one of {', '.join(DTYPES)}"
            raise InputError("precision-not-served", message, key="precision", value=need.precision)
        if need.model.startswith(_language_model.PREFIX):
            _language_model.parse(need.model)
            return
        if not need.allow_import:
            message = f"model '{need.model}': only a case that was started on this machine may name a {self.noun}"
            raise InputError("not-from-network", message, key="model", value=need.model)
        self.check_file(server, need.model)

    def check_file(self, server: type[Program], model: str) -> None:
        """Refuse what is not there, or not in this format."""
        if not (Path(model) / "config.json").is_file():
            message = (
                f"model '{model}': {server.name} serves a folder with a config.json, weights and a tokenizer, "
                f"or {_language_model.PREFIX}:layers=2,width=64"
            )
            raise InputError("not-a-model-folder", message, key="model", value=model)

    def write(self, folder: Path, shape: _language_model.LlamaShape, need: Need) -> Path:
        """A generated model as the server reads it."""
        path = folder / "model"
        _language_model.write(path, shape, precision=need.precision, seed=need.seed)
        return path

    def prepare(self, server: Program) -> None:
        need = server.need
        if need.model.startswith(_language_model.PREFIX):
            server.say(f"writing {need.model}")
            server.model_path = self.write(server.folder, _language_model.parse(need.model), need)
        else:
            server.model_path = Path(need.model).absolute()

    def endpoint(self, server: Program, wire: Wire) -> Endpoint:
        return Endpoint(wire=wire, host=HOST, port=server.port, path=PATHS[wire], model=server.served_name)

    def environment(self) -> dict[str, str]:
        """The model is here: nothing is to be looked up elsewhere, or told to anybody."""
        return {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
        }

    def facts(self, server: Program) -> dict[str, Any]:
        return {"engine": server.name, "workers": 1, "precision": server.need.precision}

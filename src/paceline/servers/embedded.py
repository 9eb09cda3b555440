"""Paceline's own server: KServe v2 over HTTP and gRPC, dynamic batching, and the engine of your choice."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

from paceline.core.errors import InputError, MissingDependency
from paceline.load.kserve_grpc import METHOD as GRPC_METHOD
from paceline.load.request import LANGUAGE_PATHS, Endpoint, Wire
from paceline.models import MODELS
from paceline.models.sources import check_model
from paceline.servers._embedded.app import DRAIN, EmbeddedSettings, ServerConfiguration
from paceline.servers._embedded.engines import FORMATS
from paceline.servers._program import HTTP_ERRORS, MODEL, Program, answers, http_get
from paceline.servers.base import Need, ServerFailed, ServerSettings
from paceline.servers.export import export
from paceline.servers.processing import Processing
from paceline.version import VERSION

FAMILIES = ("llama", "qwen", "mixtral")  # whose attention reads a paged cache


def is_language_model(model: str) -> bool:
    """Whether it can be asked for text."""
    spec = MODELS.registry().entries.get(model)
    return spec is not None and spec.family in FAMILIES


class Embedded(Program):
    """The server that comes with Paceline, in a process of its own."""

    name = "embedded"
    summary = "Paceline's own: KServe v2 with dynamic batching, or OpenAI's completions with continuous batching"
    Settings = EmbeddedSettings
    wires: ClassVar[tuple[Wire, ...]] = (
        "kserve-binary", "kserve-json", "kserve-grpc", "kserve-shm", "openai-chat",
        "openai-completions",
    )  # fmt: skip
    reads = ("image", "text")
    grace = DRAIN + 2

    settings: EmbeddedSettings
    _processing: Processing | None = None

    @classmethod
    def usual_wire(cls, settings: ServerSettings, model: str = "") -> Wire:
        return "openai-chat" if is_language_model(model) else cls.wires[0]

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        assert isinstance(settings, EmbeddedSettings)
        if need.wire in LANGUAGE_PATHS:
            _check_language(settings, need)
        for size in settings.preferred:
            if not 1 <= size <= settings.max_batch:
                message = f"preferred = {size}: a batch has 1 to max_batch = {settings.max_batch} samples"
                raise InputError("out-of-range", message, key="server.preferred", value=size)
        if settings.cpus is not None and len(set(settings.cpus)) != len(settings.cpus):
            message = f"cpus = {list(settings.cpus)}: duplicate CPU"
            raise InputError("duplicate-cpu", message, key="server.cpus", value=list(settings.cpus))
        if settings.cpus is not None and not settings.cpus:
            raise InputError("empty-list", "cpus is empty: name at least one, or leave it unset", key="server.cpus")
        traits = check_model(need.model, is_local=need.allow_import, inputs=need.inputs)
        if traits.engine == "onnxruntime" and settings.engine not in ("onnxruntime", "null"):
            message = f"engine = {settings.engine}: the {traits.noun} {need.model} is served with engine = onnxruntime"
            raise InputError("fixed-engine", message, key="server.engine", value=settings.engine)
        if settings.engine == "openvino" and need.device != "cpu":
            message = f"engine = openvino computes on the CPU, not on {need.device}; choose another engine"
            raise InputError("needs-cpu", message, key="server.engine", value="openvino")

    @classmethod
    def most_samples(cls, settings: ServerSettings) -> int | None:
        """A request is never split, so that it must fit into a batch."""
        return settings.max_batch if isinstance(settings, EmbeddedSettings) else None

    @classmethod
    def listens_at(cls, settings: ServerSettings) -> str:
        assert isinstance(settings, EmbeddedSettings)
        return settings.host

    @property
    def _is_language(self) -> bool:
        return self.need.wire in LANGUAGE_PATHS

    def prepare(self) -> None:
        engine = self.settings.engine
        package = engine if engine in ("onnxruntime", "openvino") else "torch"
        needed = {package: package} | ({"grpc": "grpcio"} if self.need.wire == "kserve-grpc" else {})
        for module, name in needed.items():
            if importlib.util.find_spec(module) is None:
                raise MissingDependency(name, "pip install '.[serving]'")
        if self._is_language:
            return
        self.say(f"exporting {self.need.model}")
        self.artifact = export(self.need, FORMATS.get(engine, "eager"))
        if self.need.form is not None:
            self._processing = Processing.of(self.need.form, self.artifact, allow_import=self.need.allow_import)

    def start(self) -> float:
        if self.artifact is None and not self._is_language:
            raise RuntimeError("prepare() comes before start()")
        self.stop()
        for leftover in ("port", "grpc_port", "failure", "facts"):
            (self.folder / leftover).unlink(missing_ok=True)
        self.say(f"starting {self.name} with {self.settings.engine}")
        try:
            # The user's own model is imported relative to the user's folder.
            return self._run(self._command(), cwd=Path.cwd())
        except ServerFailed as error:
            failure = self.folder / "failure"
            raise ServerFailed(failure.read_text() if failure.exists() else str(error), error.logs) from None

    def endpoint(self, wire: Wire) -> Endpoint:
        if not self.port:
            raise RuntimeError("the server was not started")
        if wire == "kserve-grpc":
            port = int((self.folder / "grpc_port").read_text())
            return Endpoint(wire, self.settings.host, port, GRPC_METHOD, MODEL)
        if wire in LANGUAGE_PATHS:
            return Endpoint(wire, self.settings.host, self.port, LANGUAGE_PATHS[wire], MODEL)
        return Endpoint(wire, self.settings.host, self.port, f"/v2/models/{MODEL}/infer", MODEL)

    def statistics(self) -> dict[str, Any]:
        """Its counters since it is ready; ServerFailed if it does not answer."""
        try:
            _, body = http_get(self.settings.host, self.port, f"/v2/models/{MODEL}/stats")
            counters: dict[str, Any] = json.loads(body)
        except (*HTTP_ERRORS, ValueError) as error:
            raise ServerFailed(f"the server reports no statistics: {error}", self.logs()) from None
        return counters

    def describe(self) -> dict[str, Any]:
        settings, artifact = self.settings, self.artifact
        facts: dict[str, Any] = {"server": self.name, "version": VERSION, "engine": settings.engine}
        facts |= {"max_queue": settings.max_queue, "instances": settings.instances}
        if self._is_language:
            facts |= {"max_sequences": settings.max_sequences, "prefill_tokens": settings.prefill_tokens}
            facts |= {"prefix_caching": settings.prefix_caching, "tokenizer": "one made-up word for each token"}
        else:
            facts |= {"max_batch": settings.max_batch}
        if settings.max_batch > 1 and not self._is_language:
            facts |= {"max_delay": settings.max_delay, "preferred": list(settings.preferred)}
        if artifact is not None:
            facts |= {"format": artifact.format, "artifact": artifact.digest, "deviation": artifact.deviation}
        reported = self.folder / "facts"
        return facts | (json.loads(reported.read_text()) if reported.exists() else {})

    def _is_ready(self) -> bool:
        path = self.folder / "port"
        if not path.exists():
            return False
        self.port = int(path.read_text())
        return answers(self.settings.host, self.port, "/v2/health/ready")

    def _command(self) -> list[str]:
        configuration = ServerConfiguration(
            **self.settings.model_dump(include=set(EmbeddedSettings.model_fields)),
            name=MODEL,
            need=self.need,
            artifact=self.artifact,
            processing=self._processing,
        )
        path = self.folder / "configuration.json"
        path.write_text(configuration.model_dump_json(indent=2))
        return [sys.executable, "-P", "-m", "paceline.servers._embedded", str(path)]


def _check_language(settings: EmbeddedSettings, need: Need) -> None:
    """Refuse a model that does not make text, and settings that do not go with one that does."""
    if not is_language_model(need.model):
        message = f"model '{need.model}' does not make text token by token; ask for one of {', '.join(FAMILIES)}, like "
        message += "llama3.2-1b, or choose the wire kserve-binary"
        raise InputError("not-a-language-model", message, key="model", value=need.model)
    for name, value in {"engine": "torch", "instances": 1}.items():
        if getattr(settings, name) != value:
            message = f"{name} = {getattr(settings, name)}: language models are served with {name} = {value}"
            raise InputError("key-does-not-apply", message, key=f"server.{name}", value=getattr(settings, name))

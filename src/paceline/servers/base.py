"""What every server has in common: prepare, start, wait until ready, describe, stop, logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.core.errors import CaseError
from paceline.core.network import WORD, FromNetwork
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration
from paceline.load.kserve import TensorSpec
from paceline.load.request import Endpoint, Form, Wire

# eager: nothing on disk, the model is built from its name where it is served
Format = Literal["eager", "torchscript", "torch-export", "onnx", "openvino"]


@dataclass(frozen=True)
class Artifact:
    """An exported model, checked against the eager module when it was made."""

    model: str  # as the user named it
    scale: Literal["full", "tiny"]
    format: Format
    precision: str
    seed: int  # of the weights
    path: Path | None  # None for eager
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    digest: str = ""  # of the content
    device: str = "cpu"  # that torch formats were traced on, and that they can only run on
    deviation: float | None = None  # largest difference from the eager output, relative to its largest value
    given_inputs: str | None = None  # what the user wrote of the inputs of a model of their own


class ServerFailed(CaseError):
    """A server did not start, never became ready, or died; `logs` are its last lines."""

    def __init__(self, message: str, logs: str = "") -> None:
        super().__init__(message)
        self.logs = self.detail = logs


@dataclass(frozen=True)
class Need:
    """What a case needs served."""

    model: str  # a name of the zoo, `generated/...`, or the user's own file or module:factory
    scale: Literal["full", "tiny"] = "full"
    precision: str = "fp32"
    device: str = "cpu"  # or cuda:0
    seed: int = 1234
    allow_import: bool = False  # whether module:factory may be imported
    wire: Wire | None = None  # of the requests; None for those that cost nothing when they are not used
    form: Form | None = None  # what the server is to make tensors of; None if it is sent tensors
    inputs: str | None = None  # of the user's own model, where neither it nor its file says what goes in


class ServerSettings(Parameters):
    """What a user may write under `server:`; each server adds its own."""

    kind: Annotated[str, FromNetwork.matching(WORD)] = "embedded"
    """Which server; see `paceline list servers`"""
    ready_timeout: Duration = Field(default=120.0, gt=0)
    """How long to wait until it answers that it is ready"""

    @classmethod
    def written_out(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings of a user at this machine who named them in another form, such as a file that says them."""
        return values


class Server(ABC):
    """One serving software; a subclass in a scanned module is registered by its `name`.

    The life of an object: `prepare()`, `start()`, then any number of requests, then `stop()`, which may be called at
    any time, any number of times, and leaves no process behind. Everything it writes is in `folder`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Settings: ClassVar[type[ServerSettings]] = ServerSettings
    wires: ClassVar[tuple[Wire, ...]]
    artifact: Artifact | None = None  # what is served, once it is prepared; its inputs say what to send
    reads: ClassVar[tuple[Form, ...]] = ()  # what it can make tensors of itself
    is_checkable: ClassVar[bool] = True  # whether answers must be those of the model that the case names

    def __init__(self, settings: ServerSettings, need: Need, folder: Path, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.need = need
        self.folder = folder
        self.say = say  # a phase for the person who waits: exporting, starting, ...

    @classmethod
    def usual_wire(cls, settings: ServerSettings, model: str = "") -> Wire:
        """What a user gets who names none, for this model."""
        return cls.wires[0]

    @classmethod
    def most_samples(cls, settings: ServerSettings) -> int | None:
        """How many samples one request may carry with these settings; None where that has no bound."""
        return None

    @classmethod
    def listens_at(cls, settings: ServerSettings) -> str:
        """The address or name of the host that answers; most servers are started for this machine alone."""
        return "127.0.0.1"

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot start here and what to do about it, in one sentence; None if it can. Must be quick."""
        return None

    @classmethod  # noqa: B027
    def check(cls, settings: ServerSettings, need: Need) -> None:
        """Refuse, before anything starts, what is wrong beyond single settings (raise InputError)."""

    @abstractmethod
    def prepare(self) -> None:
        """Export the model, write configuration: all that happens before the process starts."""

    @abstractmethod
    def start(self) -> float:
        """Start it and wait until it reports that it is ready: the seconds until then. ServerFailed, with its logs,
        if that takes too long.
        """

    @abstractmethod
    def endpoint(self, wire: Wire) -> Endpoint:
        """Where to send; only after `start()`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Version, engine, instances, what was configured: facts for the record. No secrets."""

    is_remote: ClassVar[bool] = False  # whether somebody else runs it, and pays for what is sent

    @property
    def prompt_words(self) -> tuple[str, ...]:
        """Words that its language model takes as one token each, where it knows no others; empty for common ones."""
        return ()

    @property
    def metrics_url(self) -> str:
        """Where it reports of itself in Prometheus' text, unless that is /metrics where it serves."""
        return ""

    def statistics(self) -> dict[str, Any]:
        """The server's own counters, if it has any: batches, sheds, errors, busy time."""
        return {}

    def processes(self) -> list[int]:
        """Ids of the processes that serve, to watch their CPU and memory; empty for somebody else's server."""
        return []

    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it still runs, as far as is known without a request."""

    @abstractmethod
    def stop(self) -> None:
        """End it and everything that it started."""

    def logs(self) -> str:
        """The last lines of what it wrote; empty for somebody else's server."""
        return ""

"""From what a user wants to send to requests that are ready to go."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.benchmarks.serving.answers import Answers
from paceline.benchmarks.serving.artifact import Artifact
from paceline.benchmarks.serving.load.prepared import Prepared
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.servers.base import Endpoint, Server
from paceline.benchmarks.serving.workloads.language import language_requests
from paceline.benchmarks.serving.workloads.raw import raw_requests
from paceline.benchmarks.serving.workloads.shared import shared_requests
from paceline.benchmarks.serving.workloads.tensors import Requests, tensor_batches, tensor_requests


@dataclass(frozen=True)
class Made:
    """Requests, and how their answers are to be taken."""

    prepared: list[Prepared]
    source: str
    streaming: bool
    answers: Answers | None  # None where nobody knows what is right


def made_requests(parameters: ServeParameters, server: Server, endpoint: Endpoint, *, allow_import: bool) -> Made:
    """The requests of a case."""
    wanted, wire = parameters.wanted, endpoint.wire
    if wire in ("openai-chat", "openai-completions"):
        prepared, source = language_requests(wanted, wire, model=endpoint.model, seed=parameters.seed)
        return Made(prepared, source, wanted.stream, None)
    artifact = server.artifact or _as_named(parameters, allow_import)
    most, seed = server.most_samples(server.settings), parameters.seed
    if wire == "kserve-shm":
        batches, source = tensor_batches(wanted, artifact, seed=seed, most_samples=most, allow_import=allow_import)
        requests = Requests(shared_requests(batches, endpoint), batches, f"{source}, in shared memory")
    else:
        make = tensor_requests if wanted.form == "tensors" else raw_requests
        requests = make(
            wanted, artifact, wire, model=endpoint.model, seed=seed, most_samples=most, allow_import=allow_import
        )
    answers = None
    is_null = getattr(server.settings, "engine", None) == "null"  # it computes nothing, on purpose
    if parameters.check_answers and server.is_checkable and not is_null:
        answers = Answers(artifact, requests.tensors, wire, requests.processing, allow_import=allow_import)
    return Made(requests.prepared, requests.source, False, answers)


def _as_named(parameters: ServeParameters, allow_import: bool) -> Artifact:
    """What goes into the model that the case names, for a server that does not tell what it takes."""
    from paceline.benchmarks.serving.export import export

    return export(
        parameters.model,
        scale=parameters.scale,
        format="eager",
        precision=parameters.precision,
        seed=parameters.seed,
        allow_import=allow_import,
    )

"""What a worker hands back: the log of its requests as a trace, with answers read that were kept until the end.

An answer of a tensor protocol is good where it has outputs of the expected shapes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import CaseError, InputError, MissingDependency
from paceline.load import kserve, kserve_grpc
from paceline.load.kserve import Array, ProtocolError
from paceline.load.language import (
    UNKNOWN,
    LanguageAnswer,
    error_in,
    error_of,
    json_problem,
    read_stream,
    read_vectors,
    read_whole,
    shown,
)
from paceline.load.request import TEXT_WIRES, Wire
from paceline.load.task import WorkerTask
from paceline.load.trace import BROKEN, OK, TOKEN_COLUMNS, UNSENT, WRONG, Log, Times, Trace, WorkerResults, read_stages

FIRST_REFUSAL = 400  # of HTTP's statuses


def log_of(task: WorkerTask, finished: Callable[[int], None]) -> Log:
    """An empty log, which knows what a good answer is."""
    log = Log(task.kinds.tolist(), task.keep, finished)
    log.hidden = task.endpoint.hidden
    if (outputs := task.outputs) is not None:
        log.judge = lambda kind, body: problem(task.endpoint.wire, body, int(task.samples[kind]), outputs)
    return log


def results(task: WorkerTask, log: Log, start: int, cpu_seconds: float, client: str = "python") -> WorkerResults:
    """Everything that happened, in seconds since the start, with the emulated network's share added."""
    number = log.number
    rows = np.arange(number)
    up = 0.0 if task.up is None else task.up[rows % len(task.up)]
    down = np.zeros(number) if task.down is None else task.down[rows % len(task.down)]
    size = np.array(log.size[:number], np.float64)
    kind = task.kinds[rows % len(task.kinds)]
    for row, one in log.kind_of.items():
        kind[row] = one

    def seconds(column: list[int]) -> Times:
        times = np.array(column[:number], np.int64)
        return np.where(times == 0, np.nan, (times - start) / 1e9)

    status = np.array(log.status[:number], np.int32)
    status[(status == UNSENT) & (np.array(log.sent[:number]) > 0)] = BROKEN  # under way when it was all ended
    log.settle()
    for row, why in log.problems.items():
        status[row] = WRONG
        log.add_cause(why)
    answers = _language_answers(task, log, status) if task.streaming or task.endpoint.is_language else []
    chunks = [(np.array(one.chunks, np.int64) - start) / 1e9 + down[row] for row, one in enumerate(answers)]
    counts: dict[str, Any] = {
        name: np.array([getattr(one, name) for one in answers], np.int32) for name in TOKEN_COLUMNS
    }
    stages, batch = read_stages(log.timing[:number])
    trace = Trace(
        intended=seconds(log.intended),
        sent=seconds(log.sent) - up,
        first=seconds(log.first) + down,
        done=seconds(log.done) + down + size / task.down_bandwidth,
        status=status,
        kind=kind,
        worker=np.full(number, task.number, np.int32),
        samples=task.samples[kind],
        stages=stages,
        batch=batch,
        chunks=chunks if task.streaming and answers else None,
        **(counts if answers else {}),
        cpu_seconds=cpu_seconds,
        dispatched=seconds(log.dispatched) - up,
        causes=log.causes,
        retried=log.retried,
        client=client,
    )
    return WorkerResults(trace, log.answers)


def _language_answers(task: WorkerTask, log: Log, status: NDArray[np.int32]) -> list[LanguageAnswer]:
    """Every answer, in the order of rows; `status` becomes that of what is not one."""
    answers: list[LanguageAnswer] = []
    counter = None
    with suppress(CaseError, InputError):  # on another host it may be missing: the chunks are still counted
        counter = TokenCounter.of(Path(task.tokenizer)) if task.tokenizer else None
    for row in range(log.number):
        answer = answer_of(task, log, row, int(status[row]))
        if counter is not None and answer.output_tokens == UNKNOWN and answer.text:
            answer.output_tokens = counter(answer.text)
        if status[row] == OK and answer.problem:
            status[row] = answer.status
            log.add_cause(answer.problem)
        elif status[row] >= FIRST_REFUSAL and (why := error_in(log.bodies.get(row, b""))):
            log.add_cause(why)
        answers.append(answer)
    return answers


def answer_of(task: WorkerTask, log: Log, row: int, status: int) -> LanguageAnswer:
    """What came for this row, as far as there is anything."""
    answer, body = LanguageAnswer(), log.bodies.get(row, b"")
    if task.endpoint.is_language and task.endpoint.wire not in TEXT_WIRES:
        return read_vectors(body, task.endpoint.wire, int(task.samples[log.kind(row)])) if status == OK else answer
    if task.streaming and (log.events[row] or status == OK):
        answer = read_stream(log.events[row] or [], body)
    elif status == OK:
        answer = read_whole(body)
    if task.json_keys is not None and status == OK and (wrong := json_problem(answer.said, task.json_keys)):
        answer.fail(WRONG, wrong)
    return answer


ANY = -1  # length of an axis where it is not known


def decode(body: bytes, wire: Wire) -> dict[str, Array]:
    """The outputs in an answer."""
    if wire == "kserve-grpc":
        return kserve_grpc.decode_response(body)
    if wire == "kserve-json":
        return kserve.decode_response(body)
    # The header that says where the JSON ends is not stored; the JSON itself shows it too.
    _, length = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    return kserve.decode_response(body, length if length < len(body) else None)


def problem(wire: Wire, body: bytes, samples: int, shapes: Sequence[Sequence[int]]) -> str:
    """Why this does not answer a request of so many samples; `shapes` are of one sample, none where not known."""
    try:
        outputs = decode(body, wire)
    except (ProtocolError, ValueError) as error:
        return f"{_reported(body) or error}"
    if not outputs:
        return _reported(body) or "the answer has no outputs"
    if shapes and len(outputs) != len(shapes):
        return f"the answer has {len(outputs)} outputs instead of {len(shapes)}"
    if not shapes:
        return ""
    wrong = {name: list(one.shape) for name, one in outputs.items() if not _fits_any(one.shape, samples, shapes)}
    expected = " or ".join(str([samples, *shape]) for shape in dict.fromkeys(map(tuple, shapes)))
    return "; ".join(f"output '{name}' has the shape {shape} instead of {expected}" for name, shape in wrong.items())


def _fits_any(shape: Sequence[int], samples: int, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether it is one of the shapes: a server may name or order its outputs in its own way."""
    wanted = [(samples, *one) for one in shapes]
    return any(
        len(one) == len(shape) and all(want in (ANY, size) for want, size in zip(one, shape, strict=True))
        for one in wanted
    )


def _reported(body: bytes) -> str:
    """What a body of JSON says went wrong, if it does."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return f"not an answer of the protocol: {shown(body)}"
    message = error_of(document) if isinstance(document, dict) else ""
    return f"the server reports an error: {message}" if message else ""


class TokenCounter:
    """The number of tokens in a text."""

    def __init__(self, name: str, count: Callable[[str], int]) -> None:
        self.name = name
        self._count = count

    def __call__(self, text: str) -> int:
        return self._count(text)

    @classmethod
    def of(cls, path: Path | None) -> TokenCounter | None:
        """The tokenizer of a file or a folder; None without one."""
        if path is None:
            return None
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingDependency("tokenizers", "install it with: pip install tokenizers") from None
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more special
            message = f"tokenizer = {path}: it is not a tokenizer.json or a folder with one: {error}"
            raise InputError("not-a-tokenizer", message, key="requests.tokenizer", value=str(path)) from None
        return cls(path.name, lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))

"""What a worker hands back: the log of its requests as a trace, with answers read that were kept until the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import CaseError, InputError
from paceline.load.kserve_answers import problem
from paceline.load.language import (
    UNKNOWN,
    LanguageAnswer,
    error_in,
    json_problem,
    read_stream,
    read_vectors,
    read_whole,
)
from paceline.load.request import TEXT_WIRES
from paceline.load.server_timing import read_stages
from paceline.load.task import WorkerTask
from paceline.load.tokenizer import TokenCounter
from paceline.load.trace import BROKEN, OK, TOKEN_COLUMNS, UNSENT, WRONG, Log, Times, Trace, WorkerResults

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

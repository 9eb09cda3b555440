"""Jobs and followers in the scheduler's words: what a job needs, what a machine has, how long it will take."""

from __future__ import annotations

import re

from paceline.core.case import Case
from paceline.core.errors import PacelineError
from paceline.core.suite import Here, Suite, expand
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import Job
from paceline.service.scheduler.predict import History, together
from paceline.service.scheduler.state import Device, Follower, Needs, Task

CPU, GPU = "cpu", "gpu"
_UNKNOWN_SECONDS, _UNKNOWN_ERROR = 60.0, 1.5


def follower_of(state: FollowerState) -> Follower:
    """A machine: its processor is a device as well, which a job without GPUs measures."""
    labels = frozenset(word.casefold() for word in state.labels)
    devices = [Device(CPU, int(state.memory_gib), labels)]
    for name, memory in zip(state.gpus, state.gpu_memory_gib, strict=True):
        devices.append(Device(GPU, memory, labels | _words(name)))
    return Follower(state.id, tuple(devices))


def needs_of(job: Job) -> Needs:
    """What a job needs; one that measures the processor has the machine to itself, as it would disturb any other."""
    labels = frozenset(label.casefold() for label in job.needs.labels)
    if not job.needs.gpus and not job.needs.gpu:
        return Needs(
            kind=CPU,
            memory_gib=0,
            labels=labels,
            whole_node=True,
            nodes=job.needs.nodes,
            cpu_heavy=True,
        )
    return Needs(
        kind=GPU,
        count=job.needs.gpus or 1,
        memory_gib=job.needs.memory_gib,
        labels=labels | _words(job.needs.gpu),
        whole_node=job.needs.whole_node,
        nodes=job.needs.nodes,
    )


def task_of(job: Job, history: History, machine: str) -> Task:
    """A job as the scheduler sees it, with the time that it will probably take."""
    seconds, error = _UNKNOWN_SECONDS, _UNKNOWN_ERROR
    cases = cases_of(job)
    if cases:
        seconds, error = together(history.predict(case, machine) for case in cases)
    return Task(
        id=job.id,
        needs=needs_of(job),
        seconds=max(seconds, 1.0),
        submitted_at=job.submitted_at.timestamp(),
        priority=job.priority,
        error=error,
        attempt=job.attempt + 1,
    )


def cases_of(job: Job) -> list[Case]:
    """What the job will probably expand to where it runs; nothing if that cannot be known here."""
    from paceline.benchmarks import registry

    try:
        suite = Suite.read(job.suite, "the job", origin="network")
        return expand(suite, registry().get, Here(gpus=job.needs.gpus or bool(job.needs.gpu)), job.overrides)
    except PacelineError:
        return []


def gpus_among(devices: tuple[int, ...]) -> tuple[int, ...]:
    """Indices of the GPUs among a follower's devices, the first of which is its processor."""
    return tuple(device - 1 for device in devices if device > 0)


def _words(name: str) -> frozenset[str]:
    """The parts of a model's name that people know it by: nvidia, h200."""
    return frozenset(re.findall(r"[a-z0-9]+", name.casefold()))

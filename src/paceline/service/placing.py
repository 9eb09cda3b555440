"""Jobs and followers in the scheduler's words: what a job needs, what a machine has, and what it lacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from paceline.core.case import Case
from paceline.core.errors import PacelineError
from paceline.core.only import only
from paceline.core.suite import Here, Suite, expand
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import Job, MachineNeeds
from paceline.service.scheduler.state import Device, Follower, Needs, Task

CPU, GPU = "cpu", "gpu"
_REACHABLE = "reached by the others of a gang"  # a label of its own, as not every engine knows its followers' addresses
_UNKNOWN_SECONDS, _UNKNOWN_ERROR = 60.0, 1.5


def follower_of(state: FollowerState) -> Follower:
    """A machine: its processor is a device as well, which a job without GPUs measures."""
    labels = frozenset(word.casefold() for word in state.labels)
    labels |= {_REACHABLE} if state.address else frozenset()
    devices = [Device(CPU, labels=labels)]  # its memory does not count: of two that are alike, one may show less
    for name, memory in zip(state.gpus, state.gpu_memory_gib, strict=True):
        devices.append(Device(GPU, memory, labels | _words(name)))
    return Follower(state.id, tuple(devices))


def needs_of(job: Job) -> Needs:
    """What a job needs; one that measures the processor has the machine to itself, as it would disturb any other."""
    labels = frozenset(label.casefold() for label in job.needs.labels)
    labels |= {_REACHABLE} if job.needs.nodes > 1 else frozenset()
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


def task_of(job: Job, predicted: tuple[float, float] | None) -> Task:
    """A job as the scheduler sees it, with the time that it will probably take, and by how much that may be off."""
    seconds, error = predicted or (_UNKNOWN_SECONDS, _UNKNOWN_ERROR)
    return Task(
        id=job.id,
        needs=needs_of(job),
        seconds=max(seconds, 1.0),
        submitted_at=job.submitted_at.timestamp(),
        priority=job.priority,
        error=error,
        attempt=job.attempt + 1,
    )


def could_run(state: FollowerState, job: Job) -> bool:
    """Whether a machine has what a job needs of each of its machines."""
    return follower_of(state).shape.match(needs_of(job)) is not None


def lacks(state: FollowerState, job: Job) -> list[str]:
    """What keeps a machine from running a job, in words."""
    needs = needs_of(job)
    devices = [device for device in follower_of(state).devices if device.kind == needs.kind]
    if not devices:
        return ["has no GPU"]  # whatever else it lacks: a machine with one is nearer
    found = []
    if strange := min((needs.labels - device.labels for device in devices), key=len):
        found.append(f"is not {', '.join(sorted(strange))}")
    if (largest := max(device.memory_gib for device in devices)) < needs.memory_gib:
        found.append(f"has GPUs of {largest} GiB, not {needs.memory_gib}")
    if (most := max(devices.count(device) for device in devices)) < needs.count:
        found.append(f"has {most} of the {needs.count} GPUs")
    return found or ([] if could_run(state, job) else ["has no GPUs that are all of that together"])


def why_it_waits(job: Job, here: Sequence[FollowerState], known: Iterable[FollowerState]) -> str:
    """Why a job cannot run on the machines that are here, and what would help; empty if it only waits for its turn."""
    able = _most_alike(job, here)
    if able >= job.needs.nodes:
        return ""
    if able:
        alike = f"{job.needs.nodes} machines with the same GPUs and labels"
        return f"it needs {alike} at once, and {able} of them can be had now"
    present = {state.id for state in here}
    away = [state.id for state in known if state.id not in present and could_run(state, job)]
    if away:
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        return f"none of the machines here can run it; it waits for {', '.join(away[:3])}{more} to return"
    if not here:
        return "no machine is here"
    nearest = min(here, key=lambda state: (not state.gpus, len(lacks(state, job))))
    among = "none of the machines here can run it; the nearest, " if len(here) > 1 else "the only machine here, "
    return f"{among}{nearest.id}, {' and '.join(lacks(nearest, job))}"


def is_unheard_of(job: Job, known: Iterable[FollowerState]) -> bool:
    """Whether a job could run on no machines that were ever seen."""
    return _most_alike(job, known) < job.needs.nodes


def _most_alike(job: Job, states: Iterable[FollowerState]) -> int:
    """How many machines that could run a job are alike, as those of a gang must be."""
    return max(Counter(follower_of(state).devices for state in states if could_run(state, job)).values(), default=0)


def cases_of(job: Job) -> list[Case]:
    """What the job will probably expand to where it runs; nothing if that cannot be known here."""
    from paceline.benchmarks import registry

    try:
        suite = Suite.read(job.suite, "the job", origin="network")
        return only(expand(suite, registry().get, where(job.needs), job.overrides), job.only, suite.name)
    except PacelineError:
        return []


def where(needs: MachineNeeds) -> Here:
    """What a suite finds where these needs are just met."""
    gpus = needs.gpus or (1 if needs.gpu else 0)
    return Here(gpus=gpus, world=needs.nodes * max(1, gpus) if needs.nodes > 1 else 1, nodes=needs.nodes)


def gpus_among(devices: tuple[int, ...]) -> tuple[int, ...]:
    """Indices of the GPUs among a follower's devices, the first of which is its processor."""
    return tuple(device - 1 for device in devices if device > 0)


def _words(name: str) -> frozenset[str]:
    """The parts of a model's name that people know it by: nvidia, h200."""
    return frozenset(re.findall(r"[a-z0-9]+", name.casefold()))

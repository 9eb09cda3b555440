"""Which runs belong to one session: on one machine, less than an hour apart, nothing about the machine changed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from paceline.core.environment import Environment
from paceline.core.run import Run

GAP = timedelta(hours=1)  # between the end of one run and the start of the next


def machine_key(environment: Environment) -> str:
    """The same for all runs of one machine; empty where that is unknown."""
    # A GPU is one of a kind wherever it is; a container's name is a new one each time.
    gpus = sorted(gpu.uuid for gpu in environment.gpus if gpu.uuid)
    return " ".join(gpus) if gpus else "; ".join(filter(None, (environment.host, environment.cpu.model)))


def continues(earlier: Run, later: Run) -> bool:
    """Whether the later run belongs to the session of the earlier one."""
    gap = later.started_at - (earlier.ended_at or earlier.started_at)
    if gap >= GAP or earlier.started_at > later.started_at:
        return False
    machine = machine_key(later.environment)
    before, after = _settings(earlier.environment), _settings(later.environment)
    is_same = all(one == other or None in (one, other) for one, other in zip(before, after, strict=True))
    return bool(machine) and machine == machine_key(earlier.environment) and is_same


def session_of(run: Run, earlier: Iterable[Run]) -> str:
    """The session of a run, which is named after its first one; `earlier` ones come the newest first."""
    return next((one.session or one.id for one in earlier if continues(one, run)), run.id)


def sessions_of(runs: Iterable[Run]) -> dict[str, str]:
    """The session of each run by its id; runs that were stored without one get theirs from the others."""
    assigned: list[Run] = []
    for run in sorted(runs, key=lambda run: run.started_at):
        session = run.session or session_of(run, reversed(assigned))
        assigned.append(run if run.session else run.model_copy(update={"session": session}))
    return {run.id: run.session for run in assigned}


def _settings(of: Environment) -> tuple[object, ...]:
    """What a session has one value of; None is unknown."""
    clocks = sorted(
        (gpu.uuid or "", str(gpu.power_limit_watts), str(gpu.sm_clock_max_mhz), str(gpu.memory_clock_max_mhz))
        for gpu in of.gpus
    )
    return of.boot, of.driver and of.driver.version, clocks or None, of.cpu.governor, of.cpu.boost

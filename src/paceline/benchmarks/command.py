"""Times any command of the user's own, from its start to its end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.errors import CaseError, InputError
from paceline.core.metric import Better, Metric
from paceline.core.network import COMMAND_LINE, PROGRAM
from paceline.core.parameters import MeasuringParameters
from paceline.core.quantity import Duration
from paceline.core.record import Measurement, Result
from paceline.devices.timeline import ReportedTimeline, monotonic
from paceline.measure import loop

TIME = Metric(name="time", unit="s", better=Better.LOWER, description="from the start of the command to its end")
USER_TIME = Metric(
    name="user_time", unit="s", better=Better.LOWER, description="CPU time of its processes in user mode"
)
SYSTEM_TIME = Metric(
    name="system_time", unit="s", better=Better.LOWER, description="CPU time that the kernel spent on it"
)
MEMORY = Metric(
    name="peak_memory", unit="B", better=Better.LOWER, description="most resident memory of one process of it"
)

PLACE = "{value}"
SHELL = "/bin/sh"
_FOR_THE_SHELL = re.compile(r"[|&;<>()$`*?~\n\\]|^\s*\w+=")
_LAST_WORDS = 2_000  # bytes of what a command said that failed


class CommandParameters(MeasuringParameters):
    """A command, and how often it runs."""

    exec: Annotated[str, COMMAND_LINE] = Field(min_length=1)
    """The command, in quotes; given several times, each is measured. {value} in it stands for each of --value"""
    value: Annotated[str | None, PROGRAM] = None
    """What {value} stands for in the command: a list such as 8,16,32 measures each"""
    prepare: Annotated[str | None, COMMAND_LINE] = None
    """A command to run before each run, untimed: to clear a cache, for example"""
    ignore_failure: bool = False
    """Go on when the command ends with another exit code than 0"""
    budget: Duration = Field(default=60.0, gt=0)
    """Time to spend on measured runs, at most"""
    warm_up: Duration = 0.0
    """Time to spend on warming up, at most; at least one run is not counted"""
    span: Duration = 0.0
    """Time to be under load, at least, of which a quarter is warm-up; 0 does not look for slow settling"""

    @property
    def line(self) -> str:
        """The command as it runs."""
        return self.exec if self.value is None else self.exec.replace(PLACE, self.value)


@dataclass(frozen=True)
class Usage:
    """What one run took."""

    seconds: float
    user: float
    system: float
    memory: float  # bytes
    code: int


class Command(Benchmark[CommandParameters]):
    """One run of a command after the other."""

    name = "command"
    category = "other"
    summary = "time any command: its wall time with intervals, CPU times, memory"
    metrics = (TIME, USER_TIME, SYSTEM_TIME, MEMORY)

    @classmethod
    def title(cls, parameters: CommandParameters) -> str:
        return " ".join(parameters.line.split())

    @classmethod
    def check(cls, parameters: CommandParameters, case: Case) -> None:
        """Refuse a command that cannot be started, and a value without a place."""
        if (PLACE in parameters.exec) != (parameters.value is not None):
            message = (
                f"exec = '{parameters.exec}' and value go together: write {PLACE} in the command, and --value 8,16"
            )
            raise InputError("value-without-place", message, key="value", value=parameters.value)
        if case.origin == "local":
            for line in (parameters.line, *([parameters.prepare] if parameters.prepare else [])):
                _check_program(line)

    def measure(self, parameters: CommandParameters, context: Context) -> Result:
        timeline = ReportedTimeline(f"host clock, each run from its start to its end; {_how(parameters.line)}")
        usages: list[Usage] = []

        def step() -> None:
            if parameters.prepare:
                _run(parameters.prepare, is_checked=True)
            usages.append(_run(parameters.line, is_checked=not parameters.ignore_failure))
            timeline.tell([usages[-1].seconds])

        def report(phase: str, samples: list[float]) -> None:
            metric = TIME.name if phase == "measuring" else ""
            context.report(Progress(phase=phase, metric=metric, unit="s", samples=tuple(samples)))

        warm = loop.warm_up(step, timeline, parameters, report=report)
        usages.clear()
        timed = loop.measure(step, timeline, parameters, report=report)
        codes = sorted({usage.code for usage in usages})
        return Result(
            measurements=[
                Measurement.of_samples(TIME, timed.samples),
                Measurement.of_samples(USER_TIME, [usage.user for usage in usages]),
                Measurement.of_samples(SYSTEM_TIME, [usage.system for usage in usages]),
                Measurement.of_value(MEMORY, max(usage.memory for usage in usages)),
            ],
            facts={
                "command": parameters.line,
                "timing": timeline.description,
                "stopped": timed.stopped.value,
                "warm_up": {"steps": len(warm.samples), "seconds": warm.seconds, "steady": warm.steady},
                "exit_codes": codes,
            },
            warnings=loop.warnings(warm, timed, parameters),
        )


def _needs_shell(line: str) -> bool:
    return _FOR_THE_SHELL.search(line) is not None


def _how(line: str) -> str:
    return f"by way of {SHELL}, whose start is part of it" if _needs_shell(line) else "without a shell"


def _check_program(line: str) -> None:
    if _needs_shell(line):
        return
    try:
        words = shlex.split(line)
    except ValueError as error:
        message = f"exec = '{line}': {error}"
        raise InputError("not-a-command", message, key="exec", value=line) from None
    if not words or shutil.which(words[0]) is None:
        program = words[0] if words else ""
        hint = ": make it executable with chmod +x" if Path(program).is_file() else ": there is no such program"
        message = f"exec = '{line}': '{program}' cannot be started{hint}; as in --exec './train.sh --epochs 1'"
        raise InputError("no-such-program", message, key="exec", value=line)


def _run(line: str, *, is_checked: bool) -> Usage:
    """One run; what it prints goes nowhere, but for the last words of one that fails."""
    words = [SHELL, "-c", line] if _needs_shell(line) else shlex.split(line)
    with tempfile.TemporaryFile() as said:
        begun = monotonic()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        seconds = monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)  # it is waited for already
        if is_checked and process.returncode != 0:
            said.seek(max(0, said.seek(0, os.SEEK_END) - _LAST_WORDS))
            error = CaseError(
                f"'{line}' ended with exit code {process.returncode}; --ignore-failure goes on all the same"
            )
            error.detail = said.read().decode(errors="replace").strip()
            raise error
    return Usage(seconds, used.ru_utime, used.ru_stime, used.ru_maxrss * 1024.0, process.returncode)

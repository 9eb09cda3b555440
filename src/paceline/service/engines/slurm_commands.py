"""Calls of Slurm's programs, and how their output is parsed: nodes, jobs, a submission, a cancellation.

The formats are given explicitly, which gives the same output in every version; neither JSON nor accounting is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import InputError, unknown
from paceline.devices import visible_variables

PROGRAMS = ("sinfo", "squeue", "sbatch", "scancel")
_PATIENCE = 30.0  # seconds for one answer: a controller with many jobs takes its time
_NODE_FIELDS, _NODE_FORMAT = 8, "%N|%P|%a|%T|%c|%m|%G|%b"
_JOB_FIELDS, _JOB_FORMAT = 4, "%i|%T|%r|%Z"
_ABSENT = ("", "(null)", "N/A", "n/a")

_READY = frozenset({"idle", "allocated", "mixed", "completing", "planned", "reserved"})
_NOT_READY_MARKS = frozenset("*$@^")  # silent, in maintenance, about to be started again, being started again
_MARKS = "*$@^~#!%+-"  # that Slurm puts behind the state of a node
_GPUS = re.compile(r"(?:^|,)gpu(?::(?P<type>[^:,()]+))?:(?P<count>\d+)")

_OVER = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED"),
        *("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    }
)
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})

# A submission that fails with one of these may succeed later, or has succeeded without saying so.
_LATER = ("Unable to contact", "imed out", "temporarily", "onnection refused", "MaxSubmit", "communication")
_OWN_SETTINGS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")  # of a user, where others are of a job


class SlurmError(Exception):
    """Slurm did not answer, or its answer cannot be parsed; the message has the call and the answer."""


class SlurmSilent(SlurmError):
    """It may answer later."""


@dataclass(frozen=True)
class SlurmNode:
    """A node as sinfo shows it."""

    name: str
    partitions: tuple[str, ...]
    state: str
    cpus: int
    memory_mib: int
    gpus: tuple[str, ...] = ()  # their types, empty where Slurm has none
    features: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether it starts jobs, now or once those of others are over."""
        return self.state.rstrip(_MARKS) in _READY and not _NOT_READY_MARKS.intersection(self.state)


@dataclass(frozen=True)
class SlurmJob:
    """A job as squeue shows it."""

    id: str
    state: str
    reason: str
    folder: str  # that it was submitted with, which identifies the attempt

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left on any node."""
        return self.state in _OVER  # in an unknown state it is rather waited for

    @property
    def is_waiting(self) -> bool:
        """Whether it has not started yet."""
        return self.state in _WAITING


def require_programs() -> None:
    """Refuse to go on without Slurm."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        need = "--engine slurm needs a machine from which Slurm jobs can be submitted"
        message = f"{' and '.join(missing)} not found: {need}"
        raise InputError("missing-programs", message, key="--engine", value="slurm")


def list_nodes(partitions: Sequence[str]) -> list[SlurmNode]:
    """The nodes of these partitions, or of the default one."""
    return read_nodes(_ask("sinfo", "--Node", "--noheader", f"--format={_NODE_FORMAT}"), partitions)


def list_jobs() -> list[SlurmJob]:
    """This user's jobs, those that ended a few minutes ago too."""
    options = ("--noheader", "--states=all", f"--user={os.geteuid()}", f"--format={_JOB_FORMAT}")
    return read_jobs(_ask("squeue", *options))


def submit(options: Sequence[str], script: Path) -> str:
    """Hand a script over; its job's number."""
    output = _ask("sbatch", "--parsable", *options, str(script)).strip()
    number = output.partition(";")[0]  # what follows is the name of the cluster
    if not number.isdecimal():
        raise SlurmSilent(f"`sbatch --parsable` answered {output[:200]!r}, which is not the number of a job")
    return number


def cancel(numbers: Iterable[str]) -> None:
    """End jobs; those that are over already stay as they are."""
    _ask("scancel", *numbers)


def read_nodes(output: str, partitions: Sequence[str]) -> list[SlurmNode]:
    """Nodes from what sinfo printed, a line for each partition that a node is in; closed ones do not count."""
    rows = [_fields("sinfo", line, _NODE_FIELDS) for line in output.splitlines() if line.strip()]
    existing = {row[1].removesuffix("*") for row in rows}
    chosen = set(partitions) or {row[1][:-1] for row in rows if row[1].endswith("*")}
    for name in partitions:
        if name not in existing:
            raise unknown("partition", name, sorted(existing), key="--slurm-partition")
    if not chosen:
        names = ", ".join(sorted(existing)) or "none at all"
        message = f"Slurm has no default partition: choose one with --slurm-partition ({names})"
        raise InputError("no-default-partition", message, key="--slurm-partition")
    nodes: dict[str, SlurmNode] = {}
    for row in rows:
        name, partition, is_open, state, cpus, memory, gres, features = row
        partition = partition.removesuffix("*")
        if partition not in chosen or is_open != "up":
            continue
        before = nodes[name].partitions if name in nodes else ()
        nodes[name] = SlurmNode(
            name=name,
            partitions=(*before, partition),
            state=state.lower(),
            cpus=_number(row, cpus),
            memory_mib=_number(row, memory),
            gpus=read_gpus(gres),
            features=tuple(features.split(",")) if features not in _ABSENT else (),
        )
    return list(nodes.values())


def read_gpus(gres: str) -> tuple[str, ...]:
    """`gpu:h200:2(S:0-1),gpu:a100:1,nvme:4` as h200, h200, a100; a type that Slurm does not give is empty."""
    return tuple(gpu["type"] or "" for gpu in _GPUS.finditer(gres) for _ in range(int(gpu["count"])))


def read_jobs(output: str) -> list[SlurmJob]:
    """Jobs from what squeue printed."""
    rows = [_fields("squeue", line, _JOB_FIELDS) for line in output.splitlines() if line.strip()]
    return [
        SlurmJob(number, state, "" if reason in (*_ABSENT, "None") else reason, folder)
        for number, state, reason, folder in rows
    ]


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for Slurm's programs, which jobs inherit: without that of a job which the leader may run in."""
    hidden = visible_variables()
    return {
        name: value
        for name, value in environment.items()
        if (not name.startswith("SLURM_") or name in _OWN_SETTINGS) and name not in hidden
    }


def _fields(program: str, line: str, count: int) -> list[str]:
    fields = line.rstrip("\n").split("|", count - 1)
    if len(fields) != count:
        raise SlurmError(f"`{program}` answered {line[:200]!r}, where {count} fields were expected")
    return fields


def _number(row: Sequence[str], word: str) -> int:
    digits = word.rstrip("+")
    if not digits.isdecimal():
        raise SlurmError(f"`sinfo` answered {'|'.join(row)[:200]!r}, where {word!r} is not a number")
    return int(digits)


def _ask(program: str, *words: str) -> str:
    try:
        done = subprocess.run(
            [program, *words],
            env=environment_of(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmSilent(f"`{program}` did not answer within {_PATIENCE:g} s") from None
    except OSError as error:
        raise SlurmSilent(f"`{program}` could not be started: {error}") from None
    if done.returncode:
        message = " / ".join(line.strip() for line in done.stderr.splitlines() if line.strip()) or "no message"
        kind = SlurmSilent if any(word in message for word in _LATER) else SlurmError
        raise kind(f"`{program}` failed: {message[:500]}")
    return done.stdout

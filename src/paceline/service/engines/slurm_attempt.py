"""One attempt at a job as a job of Slurm: its folder, which the nodes share, and what is to be done and reported.

The folder is a follower's spool. It is the folder that the Slurm job was submitted with, so that any leader finds the
job again by it, whatever happened between a submission and its answer. Should it be submitted twice all the same, the
process that measures refuses to be the second.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.files import write_atomic
from paceline.devices import visible_variables
from paceline.service.engines.base import Assignment, Attempt, Item, Progress, Report
from paceline.service.engines.slurm_commands import SlurmJob, SlurmNode
from paceline.service.follower.spool import OUTPUT, Spool
from paceline.service.jobs import FailureKind, JobFailure

LEASE_SECONDS = 180.0  # at least: other nodes may see for a minute that a shared file was not touched
_NOTE, _SCRIPT, _ITEMS = "slurm.json", "job.sh", "items.jsonl"
_RENEW_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 30.0  # before a job that does not stop is cancelled once more
_MOST_ITEMS = 500  # in one report

# What another attempt would only repeat, each with what helps.
_REPEATING = {
    "TIMEOUT": (FailureKind.TIMEOUT, "set SBATCH_TIMELIMIT for the leader, or split the suite"),
    "DEADLINE": (FailureKind.TIMEOUT, "give it a later one"),
    "OUT_OF_MEMORY": (FailureKind.MEMORY, "choose smaller cases, or nodes with more memory"),
}


@dataclass(frozen=True)
class Todo:
    """What Slurm is to be told of an attempt."""

    submit: bool = False
    cancel: tuple[str, ...] = ()  # numbers of jobs


@dataclass
class SlurmAttempt:
    """An attempt that was begun; `see` takes what Slurm says, `report` gives what the leader is to know."""

    spool: Spool
    assignment: Assignment
    node: str
    number: str = ""  # of the Slurm job, once that is known
    stopping: str = ""  # why it is to end, if it is
    doing: str = "being handed to Slurm"  # before anything is measured
    is_forsaken: bool = False  # its node went out of service before it started there
    _over: SlurmJob | None = None  # what Slurm said last
    _over_since: float | None = None
    _is_completing: bool = False
    _asked_to_stop_at: float | None = None
    _renewed_at: float = field(default_factory=time.monotonic)

    @classmethod
    def make(cls, folder: Path, node: SlurmNode, assignment: Assignment) -> SlurmAttempt:
        """A new one, in a folder that is complete before the assignment is there."""
        lasting = max(assignment.lease_seconds, LEASE_SECONDS)
        assignment = assignment.model_copy(update={"lease_seconds": lasting})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _ITEMS).touch()  # before anybody looks: that a file is missing is remembered for long elsewhere
        write_atomic(folder / _SCRIPT, script_of(folder, assignment.devices))
        attempt = cls(Spool(folder), assignment, node.name)
        attempt._note()
        attempt.spool = Spool.make(folder, assignment)
        return attempt

    @classmethod
    def find(cls, folder: Path) -> SlurmAttempt | None:
        """The one that an earlier leader made there, if it came to that."""
        spool = Spool(folder)
        assignment = spool.assignment
        if assignment is None:
            return None
        try:
            note = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
            return cls(spool, assignment, str(note["node"]), str(note["number"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def key(self) -> tuple[str, Attempt]:
        """Its node, and whose attempt it is."""
        return self.node, (self.assignment.job_id, self.assignment.attempt)

    @property
    def folder(self) -> Path:
        """Where everything about it lies."""
        return self.spool.folder

    @property
    def script(self) -> Path:
        """What Slurm is to run."""
        return self.folder / _SCRIPT

    @property
    def has_started(self) -> bool:
        """Whether there is something on its node, or was."""
        return not self.doing and not self.is_forsaken

    @property
    def is_settled(self) -> bool:
        """Whether Slurm has nothing more to say about it."""
        return self._over_since is not None and self.spool.has_ended

    def options(self, node: SlurmNode) -> list[str]:
        """What sbatch is told besides the script."""
        return [
            f"--job-name=paceline-{self.folder.name}",
            f"--chdir={self.folder}",
            f"--output={OUTPUT}",  # there; a per cent sign in the whole path would mean something
            "--open-mode=append",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={node.name}",
            f"--partition={','.join(node.partitions)}",
            "--no-requeue",  # whether it is tried again is the leader's choice
            *share_of(node, self.assignment.devices),
        ]

    def submitted(self, number: str) -> None:
        """Slurm has it."""
        self.number = number
        self._note()

    def refused(self, why: str, kind: FailureKind = FailureKind.LOST) -> None:
        """Slurm will not have it."""
        self._end(JobFailure(kind=kind, message=why))
        self._over_since = time.monotonic()

    def see(self, jobs: Sequence[SlurmJob], *, is_offered: bool) -> Todo:
        """Take what Slurm says about its jobs, usually one, and say what is to be done."""
        live = [job for job in jobs if not job.is_over]
        if live:
            return self._see_live(live, is_offered=is_offered)
        if jobs:
            self._see_over(max(jobs, key=lambda job: int(job.id)))
        elif self.number:
            self._see_over(SlurmJob(self.number, "", "", str(self.folder)))
        elif self.spool.process is not None or self.spool.has_ended:
            self._see_over(SlurmJob("", "", "", str(self.folder)))
        elif not is_offered:
            self._forsake()
            self.refused(self.stopping)
        elif self.stopping:
            self.refused(f"{self.stopping} before Slurm had it")
        else:
            return Todo(submit=True)
        return Todo()

    def report(self, acknowledged: int | None) -> Report | None:
        """What is not acknowledged yet, which renews the lease; None once all of it is."""
        if (
            acknowledged is not None
            and self._over_since is None
            and time.monotonic() - self._renewed_at > _RENEW_SECONDS
        ):
            self.spool.renew()
            self._renewed_at = time.monotonic()
        items = self.spool.items(acknowledged or 0)[:_MOST_ITEMS]
        if items and items[-1].kind == "ended":
            if self._is_released(items[-1]):
                items[-1] = self._explained(items[-1])
            else:
                items.pop()
        elif not items and acknowledged is not None and self.is_settled:
            return None
        progress = Progress(title=self.doing) if self.doing else self.spool.progress
        _, (job_id, number) = self.key
        place = self.assignment.place
        return Report(job_id=job_id, attempt=number, place=place, items=tuple(items), progress=progress)

    def _see_live(self, live: Sequence[SlurmJob], *, is_offered: bool) -> Todo:
        waiting = [job for job in live if job.is_waiting]
        self._is_completing = all(job.state == "COMPLETING" for job in live)
        if not self.number:
            self.submitted(live[0].id)
        why = f": {live[0].reason}" if live[0].reason else ""
        self.doing = f"waiting in Slurm's queue as job {live[0].id}{why}" if len(waiting) == len(live) else ""
        if self.spool.has_ended:
            return Todo(cancel=tuple(job.id for job in waiting))  # submitted once too often
        if self.doing and not is_offered:
            self._forsake()
        if self.stopping and self._may_ask_to_stop():
            return Todo(cancel=tuple(job.id for job in live))
        return Todo()

    def _forsake(self) -> None:
        self.is_forsaken = True
        self.stopping = f"node {self.node} went out of service"

    def _may_ask_to_stop(self) -> bool:
        now, asked_at = time.monotonic(), self._asked_to_stop_at
        if asked_at is not None and now - asked_at < _ASK_AGAIN_SECONDS:
            return False
        self._asked_to_stop_at = now
        return True

    def _see_over(self, job: SlurmJob) -> None:
        """Speak for a process that ended without a word."""
        self.doing, self._over = "", job
        now = time.monotonic()
        self._over_since = now if self._over_since is None else self._over_since
        with suppress(OSError), self.spool.exclusively() as is_silent:
            # A node that is cut off may go on until its lease is over, and a dead one leaves its lock behind.
            is_gone = is_silent or now - self._over_since > 2 * self.assignment.lease_seconds
            if is_gone and not self.spool.has_ended:
                self._end(self._death(job))

    def _is_released(self, ended: Item) -> bool:
        """Whether the end may be reported: not while it measures, and an end by force not before Slurm says why."""
        if self._over_since is not None:
            return True
        is_plain = ended.failure is None or ended.failure.kind is not FailureKind.LOST
        return is_plain and self._is_completing

    def _explained(self, ended: Item) -> Item:
        """What was told to stop does not know why; Slurm does."""
        is_lost = ended.failure is not None and ended.failure.kind is FailureKind.LOST
        if not is_lost or self._over is None or self._over.state in ("", "COMPLETED", "FAILED"):
            return ended
        return ended.model_copy(update={"failure": self._death(self._over)})

    def _death(self, job: SlurmJob) -> JobFailure:
        called = f"Slurm's job {job.id}".strip()
        if self.stopping:
            return JobFailure(kind=FailureKind.LOST, message=f"{self.stopping}; {called} on {self.node} was cancelled")
        if not job.state:
            why = f"{called} on {self.node} ended, and Slurm no longer knows how"
            return JobFailure(kind=FailureKind.LOST, message=f"{why}{self._last_words()}")
        reason = f" ({job.reason})" if job.reason else ""
        what = f"{called} on {self.node} ended: {job.state}{reason}"
        if job.state in _REPEATING:
            kind, remedy = _REPEATING[job.state]
            return JobFailure(kind=kind, message=what, remedy=remedy)
        return JobFailure(kind=FailureKind.LOST, message=f"{what}{self._last_words()}")

    def _last_words(self) -> str:
        words = self.spool.last_words()
        if words is not None:
            return words
        shared = self.folder.parent
        return f"; it wrote nothing: if the nodes do not see {shared}, give --slurm-folder one that they share"

    def _end(self, failure: JobFailure) -> None:
        if not self.spool.has_ended:
            self.spool.append("ended", failure=failure)
        self.doing = ""

    def _note(self) -> None:
        write_atomic(self.folder / _NOTE, json.dumps({"node": self.node, "number": self.number}))


def script_of(folder: Path, devices: Sequence[int]) -> str:
    """The script of an attempt."""
    shown = ",".join(map(str, devices))
    # Slurm says which GPUs a job has, unless it only counts them.
    variable = visible_variables()[0]
    visible = f': "${{{variable}={shown}}}"' if devices else f"{variable}="
    command = shlex.join([sys.executable, "-P", "-m", "paceline.service.follower.measuring", str(folder)])
    return "\n".join(["#!/bin/sh", visible, f"export {variable}", f"exec {command}", ""])


def share_of(node: SlurmNode, devices: Sequence[int]) -> list[str]:
    """What of a node an attempt has to itself: all of it, or its GPUs beside nothing but other attempts."""
    counts = Counter(node.gpus[device] for device in devices)
    gres = [":".join(filter(None, ("gpu", kind, str(count)))) for kind, count in counts.items()]
    gpus = [f"--gres={','.join(gres)}"] if gres else []
    if len(devices) in (0, len(node.gpus)):
        return ["--exclusive", "--mem=0", *gpus]
    part, whole = len(devices), len(node.gpus)
    share = [
        f"--cpus-per-task={max(1, node.cpus * part // whole)}",
        f"--mem={max(1, node.memory_mib * part // whole)}M",
    ]
    return ["--exclusive=user", *share, *gpus]

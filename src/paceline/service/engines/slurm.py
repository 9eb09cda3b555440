"""Followers on the nodes of a Slurm cluster: each attempt is a job of Slurm, which outlives the leader.

One thread calls Slurm, as that may take its time, and sees to it that what was begun is submitted, and what is to stop
is cancelled. The calls of the leader only use its results, and the spools in the folder that the nodes share. While
Slurm does not answer nothing is given up: jobs go on without its controller.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import re
import shlex
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from paceline.core.errors import InputError
from paceline.core.files import private_directory, write_atomic
from paceline.devices import visible_variables
from paceline.service.engines import EngineKind, EngineOptions, slurm_commands
from paceline.service.engines.base import (
    Assignment,
    AttemptKey,
    AttemptProgress,
    AttemptReport,
    FollowerGone,
    FollowerState,
)
from paceline.service.engines.slurm_commands import SlurmError, SlurmJob, SlurmNode, SlurmSilent
from paceline.service.follower.spool import OUTPUT, Spool
from paceline.service.jobs import STOPPED, FailureKind, JobFailure

LEASE_SECONDS = 180.0  # at least: on other nodes, a shared file may look untouched for a minute
_NOTE, _SCRIPT, _ITEMS = "slurm.json", "job.sh", "items.jsonl"
_RENEW_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 30.0  # before a job that does not stop is cancelled once more
_MOST_ITEMS = 500  # in one report
_LOOK_SECONDS = 2.0  # between two looks at the jobs, while there are any
_NODES_SECONDS = 15.0  # between two looks at the nodes
_MIB_PER_GIB = 1024

_log = logging.getLogger(__name__)

# What another attempt would only repeat, each with what helps.
_REPEATING = {
    "TIMEOUT": (FailureKind.TIMEOUT, "set SBATCH_TIMELIMIT for the leader, or split the suite"),
    "DEADLINE": (FailureKind.TIMEOUT, "give it a later one"),
    "OUT_OF_MEMORY": (FailureKind.MEMORY, "choose smaller cases, or nodes with more memory"),
}


@dataclass(frozen=True)
class Todo:
    """What Slurm is to do for an attempt."""

    submit: bool = False
    cancel: tuple[str, ...] = ()  # numbers of jobs


@dataclass
class SlurmAttempt:
    """An attempt that was begun; `see` takes Slurm's answers, `report` makes the report to the leader."""

    spool: Spool
    assignment: Assignment
    node: str
    number: str = ""  # of the Slurm job, once it has one
    stopping: str = ""  # why it is to end, if it is
    doing: str = "being handed to Slurm"  # before anything is measured
    is_forsaken: bool = False  # its node went out of service before it started there
    _over: SlurmJob | None = None  # as Slurm showed it last
    _over_since: float | None = None
    _is_completing: bool = False
    _asked_to_stop_at: float | None = None
    _renewed_at: float = field(default_factory=time.monotonic)

    @classmethod
    def make(cls, folder: Path, node: SlurmNode, assignment: Assignment) -> SlurmAttempt:
        """A new one, in a folder that is complete before it has the assignment."""
        lease = max(assignment.lease_seconds, LEASE_SECONDS)
        assignment = assignment.model_copy(update={"lease_seconds": lease})
        private_directory(folder)
        (folder / _ITEMS).touch(0o600)  # before anybody looks: other nodes cache for long that a file is missing
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
    def key(self) -> tuple[str, AttemptKey]:
        """Its node, and whose attempt it is."""
        return self.node, (self.assignment.job_id, self.assignment.attempt)

    @property
    def folder(self) -> Path:
        """Where everything about it lies."""
        return self.spool.folder

    @property
    def has_started(self) -> bool:
        """Whether there is something on its node, or was."""
        return not self.doing and not self.is_forsaken

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing more to ask Slurm about it."""
        return self._over_since is not None and self.spool.has_ended

    def options(self, node: SlurmNode) -> list[str]:
        """The options of sbatch."""
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
        """Slurm has taken it."""
        self.number = number
        self._note()

    def refused(self, why: str, kind: FailureKind = FailureKind.LOST) -> None:
        """Slurm does not take it."""
        self._end(JobFailure(kind=kind, message=why))
        self._over_since = time.monotonic()

    def see(self, jobs: Sequence[SlurmJob], *, is_offered: bool) -> Todo:
        """Take the state of its Slurm jobs, usually one, and return what is to be done."""
        live = [job for job in jobs if not job.is_over]
        if live:
            return self._see_live(live, is_offered=is_offered)
        if jobs:
            self._see_over(max(jobs, key=lambda job: int(job.id)))
        elif self.number or self.spool.process is not None or self.spool.has_ended:
            self._see_over(SlurmJob(self.number, "", "", str(self.folder)))
        elif not is_offered:
            self._forsake()
            self.refused(self.stopping)
        elif self.stopping:
            self.refused(f"{self.stopping} before Slurm had it")
        else:
            return Todo(submit=True)
        return Todo()

    def report(self, acknowledged: int | None) -> AttemptReport | None:
        """What is not acknowledged yet, which renews the lease; None once all of it is."""
        is_stale = time.monotonic() - self._renewed_at > _RENEW_SECONDS
        if acknowledged is not None and self._over_since is None and is_stale:
            self.spool.renew()
            self._renewed_at = time.monotonic()
        items = self.spool.items(acknowledged or 0)[:_MOST_ITEMS]
        if items and items[-1].kind == "ended":
            # Its end is reported neither while it measures, nor, if it was ended by force, before Slurm says why.
            failure = items[-1].failure
            is_lost = failure is not None and failure.kind is FailureKind.LOST
            if self._over_since is None and (is_lost or not self._is_completing):
                items.pop()
            elif is_lost and self._over is not None and self._over.state not in ("", "COMPLETED", "FAILED"):
                items[-1] = items[-1].model_copy(update={"failure": self._death(self._over)})
        elif not items and acknowledged is not None and self.is_settled:
            return None
        return AttemptReport(
            job_id=self.assignment.job_id,
            attempt=self.assignment.attempt,
            place=self.assignment.place,
            items=tuple(items),
            progress=AttemptProgress(title=self.doing) if self.doing else self.spool.progress,
        )

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
        asked_at, now = self._asked_to_stop_at, time.monotonic()
        if self.stopping and (asked_at is None or now - asked_at >= _ASK_AGAIN_SECONDS):
            self._asked_to_stop_at = now
            return Todo(cancel=tuple(job.id for job in live))
        return Todo()

    def _forsake(self) -> None:
        self.is_forsaken = True
        self.stopping = f"node {self.node} went out of service"

    def _see_over(self, job: SlurmJob) -> None:
        """Report the end of a process that did not report it itself."""
        self.doing, self._over = "", job
        now = time.monotonic()
        self._over_since = now if self._over_since is None else self._over_since
        with suppress(OSError), self.spool.exclusively() as is_silent:
            # A node that is cut off may go on until its lease is over, and a dead one leaves its lock behind.
            is_gone = is_silent or now - self._over_since > 2 * self.assignment.lease_seconds
            if is_gone and not self.spool.has_ended:
                self._end(self._death(job))

    def _death(self, job: SlurmJob) -> JobFailure:
        name = f"Slurm's job {job.id}".strip() + f" on {self.node}"
        if self.stopping:
            return JobFailure(kind=FailureKind.LOST, message=f"{self.stopping}; {name} was cancelled")
        message = f"{name} ended, and Slurm no longer knows how"
        if job.state:
            message = f"{name} ended: {job.state}" + (f" ({job.reason})" if job.reason else "")
        if job.state in _REPEATING:
            kind, remedy = _REPEATING[job.state]
            return JobFailure(kind=kind, message=message, remedy=remedy)
        last = self.spool.last_words()
        if last is None:
            hint = f"if the nodes do not see {self.folder.parent}, give --slurm-folder one that they share"
            last = f"; it wrote nothing: {hint}"
        return JobFailure(kind=FailureKind.LOST, message=f"{message}{last}")

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
    """The part of a node that an attempt gets: all of it, or its GPUs next to nothing but other attempts."""
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


class SlurmEngine:
    """The nodes of one or more partitions; what they are to do lies in a folder that all of them see."""

    invitation = ""

    def __init__(self, options: EngineOptions) -> None:
        slurm_commands.require_programs()
        self._folder = (options.shared or options.folder / "slurm").resolve()
        self._partitions = tuple(filter(None, options.partition.split(",")))
        self._claimed = _claim(self._folder)
        self._lock = threading.Lock()  # of all that follows; nobody holds it while Slurm is asked
        self._attempts: dict[tuple[str, AttemptKey], SlurmAttempt] = {}  # each by its node, as gangs share one
        self._trouble = ""
        try:
            self._keep_nodes(slurm_commands.list_nodes(self._partitions))
        except SlurmError as error:
            raise InputError("no-answer-from-slurm", f"Slurm does not list its nodes: {error}") from None
        # Those that an earlier leader has begun; a folder that it left unfinished is taken when it is begun again.
        for folder in sorted(path for path in self._folder.iterdir() if path.is_dir()):
            attempt = SlurmAttempt.find(folder)
            if attempt is not None:
                self._attempts[attempt.key] = attempt
        self._closing = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="slurm", daemon=True)
        self._thread.start()

    def followers(self) -> Sequence[FollowerState]:
        """The nodes that start jobs or still have something to report; while Slurm is away, those of before."""
        with self._lock:
            return [_follower(node, self._nodes_at) for node in self._offered().values()]

    def begin(self, follower: str, assignment: Assignment) -> None:
        """Note what is to be submitted; it is submitted soon."""
        key = (follower, (assignment.job_id, assignment.attempt))
        with self._lock:
            if key in self._attempts:
                return
            node = self._node(follower)
            name = assignment.folder_name + (f".{assignment.place}" if assignment.place else "")
            attempt = SlurmAttempt.make(self._folder / name, node, assignment)
            self._attempts[key] = attempt
            if assignment.peers:
                why = "a leader of Slurm measures on one node at a time: submit it for one, or use --engine ray"
                attempt.refused(why, FailureKind.REFUSED)
        self._woken.set()

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        """What lies in the spools of this node's attempts."""
        reports = []
        with self._lock:
            self._node(follower)
            for (node, key), attempt in list(self._attempts.items()):
                if node != follower:
                    continue
                report = attempt.report(acknowledged.get(key))
                if report is not None:
                    reports.append(report)
                else:
                    self._drop(attempt)
        return reports

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        """Have it cancelled soon."""
        with self._lock:
            begun = self._attempts.get((follower, (job_id, attempt)))
            if begun is None or begun.stopping:
                return
            begun.stopping = STOPPED
        self._woken.set()

    def close(self) -> None:
        """Call Slurm no more; its jobs go on, and report to the next leader."""
        self._closing = True
        self._woken.set()
        self._thread.join(_LOOK_SECONDS)
        self._claimed.close()

    def _attend(self) -> None:
        while not self._closing:
            try:
                self._look()
                self._trouble = ""
            except (SlurmError, InputError, OSError) as error:
                if str(error) != self._trouble:  # once, not at every look
                    self._trouble = str(error)
                    _log.warning("%s", error)
            except Exception:  # a defect must not end the one thread that submits and cancels
                _log.exception("a look at Slurm failed")
            self._woken.wait(_LOOK_SECONDS)
            self._woken.clear()

    def _look(self) -> None:
        """Bring nodes and jobs up to date, and do what follows from that."""
        if time.monotonic() - self._looked_at > _NODES_SECONDS:
            nodes = slurm_commands.list_nodes(self._partitions)
            with self._lock:
                self._keep_nodes(nodes)
        with self._lock:
            unsettled = [attempt for attempt in self._attempts.values() if not attempt.is_settled]
        if not unsettled:
            return
        jobs: dict[str, list[SlurmJob]] = {}
        for job in slurm_commands.list_jobs():
            jobs.setdefault(job.folder, []).append(job)
        for attempt in unsettled:
            if self._closing:
                return
            with self._lock:
                is_offered = attempt.node in self._offered()
                todo = attempt.see(jobs.get(str(attempt.folder), []), is_offered=is_offered)
                if attempt.is_forsaken and attempt.is_settled:  # the leader has given it up with the node
                    self._drop(attempt)
            if todo.cancel:
                slurm_commands.cancel(todo.cancel)
            if todo.submit:
                self._submit(attempt)

    def _submit(self, attempt: SlurmAttempt) -> None:
        try:
            node = self._nodes.get(attempt.node)
            if node is None or max(attempt.assignment.devices, default=-1) >= len(node.gpus):
                raise SlurmError(f"node {attempt.node} has gone, or lost GPUs that it had")
            number = slurm_commands.submit(attempt.options(node), attempt.folder / _SCRIPT)
        except SlurmSilent:
            raise  # it may have been submitted: the next look shows it
        except SlurmError as error:
            with self._lock:
                attempt.refused(str(error))
        else:
            with self._lock:
                attempt.submitted(number)
                attempt.doing = f"waiting in Slurm's queue as job {number}"

    def _keep_nodes(self, nodes: Sequence[SlurmNode]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._nodes_at, self._looked_at = datetime.now(UTC), time.monotonic()

    def _offered(self) -> dict[str, SlurmNode]:
        reporting = {attempt.node for attempt in self._attempts.values() if attempt.has_started}
        return {name: node for name, node in self._nodes.items() if node.is_usable or name in reporting}

    def _drop(self, attempt: SlurmAttempt) -> None:
        """Forget it, with everything that lies in its folder."""
        self._attempts.pop(attempt.key, None)
        shutil.rmtree(attempt.folder, ignore_errors=True)

    def _node(self, follower: str) -> SlurmNode:
        node = self._nodes.get(follower)
        if node is None:
            raise FollowerGone(f"Slurm has no node '{follower}'")
        return node


def _follower(node: SlurmNode, seen_at: datetime) -> FollowerState:
    # Slurm does not know the memory of a GPU, but some names contain it, as in nvidia_h100_80gb_hbm3.
    sizes = [re.search(r"(\d+)gb", kind.casefold()) for kind in node.gpus]
    return FollowerState(
        id=node.name,
        host=node.name,
        gpus=tuple(kind or "GPU" for kind in node.gpus),
        gpu_memory_gib=tuple(int(size[1]) if size else 0 for size in sizes),
        cpus=float(node.cpus),
        memory_gib=round(node.memory_mib / _MIB_PER_GIB, 1),
        labels=tuple(dict.fromkeys((*node.partitions, *node.features))),
        seen_at=seen_at,
        draining=not node.is_usable,
    )


def _claim(folder: Path) -> TextIO:
    """Lock the folder against other leaders for as long as this file is open."""
    try:
        private_directory(folder)
        claimed = (folder / "leader").open("a", encoding="utf-8")
    except OSError as error:
        code, reason = "cannot-write", f"cannot be written to: {error.strerror}"
    else:
        try:
            fcntl.lockf(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return claimed
        except OSError as error:
            claimed.close()
            code, reason = "cannot-lock", f"is on a disk where files cannot be locked: {error.strerror}"
            if error.errno in (errno.EACCES, errno.EAGAIN):
                code, reason = "folder-in-use", "is used by another leader: give each its own folder"
    raise InputError(code, f"--slurm-folder {folder} {reason}", key="--slurm-folder", value=str(folder))


ENGINE = EngineKind("slurm", SlurmEngine)

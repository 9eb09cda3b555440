"""Followers on the nodes of a Slurm cluster: each attempt is a job of Slurm, which outlives the leader.

One thread speaks to Slurm, as that may take its time, and sees to it that what was begun is submitted, and what is to
stop is cancelled. The calls of the leader only look at what it found, and at the spools in the folder that the nodes
share. While Slurm does not answer nothing is given up: jobs go on without its controller.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import re
import shutil
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from paceline.core.errors import InputError
from paceline.service.engines import EngineKind, EngineOptions, slurm_commands
from paceline.service.engines.base import Assignment, Attempt, FollowerGone, FollowerState, Report
from paceline.service.engines.slurm_attempt import SlurmAttempt, Todo
from paceline.service.engines.slurm_commands import SlurmError, SlurmJob, SlurmNode, SlurmSilent
from paceline.service.jobs import STOPPED, FailureKind

_LOOK_SECONDS = 2.0  # between two looks at the jobs, while there are any
_NODES_SECONDS = 15.0  # between two looks at the nodes
_MIB_PER_GIB = 1024
_FOLDER_FLAG = "--slurm-folder"

_log = logging.getLogger(__name__)


class SlurmEngine:
    """The nodes of one or more partitions; what they are to do lies in a folder that all of them see."""

    name = "slurm"
    invitation = ""

    def __init__(self, options: EngineOptions) -> None:
        slurm_commands.require_programs()
        self._folder = (options.shared or options.folder / "slurm").resolve()
        self._partitions = tuple(filter(None, options.partition.split(",")))
        self._claimed = _claim(self._folder)
        self._lock = threading.Lock()  # of all that follows; nobody holds it while Slurm is asked
        self._attempts: dict[tuple[str, Attempt], SlurmAttempt] = {}  # each by its node, as gangs share one
        self._trouble = ""
        try:
            self._keep_nodes(slurm_commands.list_nodes(self._partitions))
        except SlurmError as error:
            raise InputError("no-answer-from-slurm", f"Slurm does not say which nodes there are: {error}") from None
        self._find_attempts()
        self._closing = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="slurm", daemon=True)
        self._thread.start()

    def followers(self) -> Sequence[FollowerState]:
        """The nodes that start jobs or still have something to tell; while Slurm is away, those of before."""
        with self._lock:
            return [_follower(node, self._nodes_at) for node in self._offered().values()]

    def begin(self, follower: str, assignment: Assignment) -> None:
        """Keep what is to be submitted; it is submitted soon."""
        key = (follower, (assignment.job_id, assignment.attempt))
        with self._lock:
            if key in self._attempts:
                return
            node = self._node(follower)
            attempt = SlurmAttempt.make(self._folder / _folder_name(assignment), node, assignment)
            self._attempts[key] = attempt
            if assignment.peers:
                why = "a leader of Slurm measures on one node at a time: submit it for one, or use --engine ray"
                attempt.refused(why, FailureKind.REFUSED)
        self._woken.set()

    def poll(self, follower: str, acknowledged: dict[Attempt, int]) -> Sequence[Report]:
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
            wanted = self._attempts.get((follower, (job_id, attempt)))
            if wanted is None or wanted.stopping:
                return
            wanted.stopping = STOPPED
        self._woken.set()

    def close(self) -> None:
        """Ask Slurm nothing more; its jobs go on, and tell the next leader."""
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
            self._do(attempt, todo)

    def _do(self, attempt: SlurmAttempt, todo: Todo) -> None:
        if todo.cancel:
            slurm_commands.cancel(todo.cancel)
        if not todo.submit:
            return
        try:
            node = self._nodes.get(attempt.node)
            if node is None or max(attempt.assignment.devices, default=-1) >= len(node.gpus):
                raise SlurmError(f"node {attempt.node} has gone, or lost GPUs that it had")
            number = slurm_commands.submit(attempt.options(node), attempt.script)
        except SlurmSilent:
            raise  # it may have been submitted: the next look tells
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
        telling = {attempt.node for attempt in self._attempts.values() if attempt.has_started}
        return {name: node for name, node in self._nodes.items() if node.is_usable or name in telling}

    def _drop(self, attempt: SlurmAttempt) -> None:
        """Forget it, with everything that lies in its folder."""
        self._attempts.pop(attempt.key, None)
        shutil.rmtree(attempt.folder, ignore_errors=True)

    def _node(self, follower: str) -> SlurmNode:
        node = self._nodes.get(follower)
        if node is None:
            raise FollowerGone(f"Slurm has no node '{follower}'")
        return node

    def _find_attempts(self) -> None:
        """Those that an earlier leader has begun; a folder that it left unfinished is taken when it is begun again."""
        for folder in sorted(path for path in self._folder.iterdir() if path.is_dir()):
            attempt = SlurmAttempt.find(folder)
            if attempt is not None:
                self._attempts[attempt.key] = attempt


def _follower(node: SlurmNode, seen_at: datetime) -> FollowerState:
    return FollowerState(
        id=node.name,
        host=node.name,
        gpus=tuple(kind or "GPU" for kind in node.gpus),
        gpu_memory_gib=tuple(map(_memory_gib, node.gpus)),
        cpus=float(node.cpus),
        memory_gib=round(node.memory_mib / _MIB_PER_GIB, 1),
        labels=tuple(dict.fromkeys((*node.partitions, *node.features))),
        seen_at=seen_at,
        draining=not node.is_usable,
    )


def _memory_gib(kind: str) -> int:
    """Slurm does not know the memory of a GPU, but some names tell it, as in nvidia_h100_80gb_hbm3."""
    size = re.search(r"(\d+)gb", kind.casefold())
    return int(size[1]) if size else 0


def _folder_name(assignment: Assignment) -> str:
    place = f".{assignment.place}" if assignment.place else ""
    return f"{re.sub(r'[^A-Za-z0-9-]', '_', assignment.job_id)}.{assignment.attempt}{place}"


def _claim(folder: Path) -> TextIO:
    """Keep other leaders out of the folder for as long as this file is open."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claimed = (folder / "leader").open("a", encoding="utf-8")
    except OSError as error:
        message = f"{_FOLDER_FLAG} {folder} cannot be written to: {error.strerror}"
        raise InputError("cannot-write", message, key=_FOLDER_FLAG, value=str(folder)) from None
    try:
        fcntl.lockf(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        claimed.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            message = f"{_FOLDER_FLAG} {folder} is another leader's: give each one of its own"
            raise InputError("folder-in-use", message, key=_FOLDER_FLAG, value=str(folder)) from None
        message = f"{_FOLDER_FLAG} {folder}: files cannot be locked there: {error.strerror}"
        raise InputError("cannot-lock", message, key=_FOLDER_FLAG, value=str(folder)) from None
    return claimed


ENGINE = EngineKind("slurm", SlurmEngine)

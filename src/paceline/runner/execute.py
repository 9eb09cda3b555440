"""Runs a case, or several at once: ranks in processes of their own, watched until they end or their time is over."""

from __future__ import annotations

import math
import os
import select
import selectors
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from paceline.core.benchmark import Progress
from paceline.core.case import Case
from paceline.core.errors import Unsupported
from paceline.core.interrupt import check_interrupts, signal_name
from paceline.core.metric import Metric
from paceline.core.network import free_port
from paceline.core.probe import ROOT, read_table
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, RecordWarning, Result, merge_ranks
from paceline.core.watch import Watched
from paceline.machine import container
from paceline.runner import stacks
from paceline.runner.case_log import CaseLog
from paceline.runner.channel import Channel
from paceline.runner.control_group import ControlGroup, MemoryWatch
from paceline.runner.device_limits import held_limits
from paceline.runner.fork_client import ServerLost, ServerTimeout, WarmServer
from paceline.runner.fork_server import kill_groups

KERNEL = "the kernel"
MOST_NAMES = 10  # of processes in a warning


@dataclass(frozen=True)
class MemoryKills:
    """How often the kernel has killed for lack of memory; it counts a kill before it sends the signal."""

    group: int | None  # in the control group of this process and its children; None where it is not counted
    machine: int  # anywhere on this machine; 0 where it is not counted

    def killer_since(self, before: MemoryKills) -> str:
        """Who has killed a process here that was ended by SIGKILL, for a message; empty if it was not for memory."""
        if self.group is not None and before.group is not None:
            return KERNEL if self.group > before.group else ""
        return "probably the kernel" if self.machine > before.machine else ""


def kills_for_memory(root: Path = ROOT, group: ControlGroup | None = None) -> MemoryKills:
    """The counts as they are now; those of the cases' own group, where they have one."""
    machine = read_table(root / "proc/vmstat").get("oom_kill", "")
    count = group.memory_kills() if group is not None and group.folders else None
    return MemoryKills(
        container.memory_kills(root) if count is None else count, int(machine) if machine.isdecimal() else 0
    )


LINGER_SECONDS = 10.0  # a rank that has sent its result may take this long to leave
AFTERMATH_SECONDS = 1.0  # how long to listen, after a failure, for the failure that caused it
LOOK_SECONDS = 0.2
CUT_SECONDS = 0.02  # between two looks at a log that grows fast

# What a rank says when another one is gone: a consequence, not a cause.
_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "socket closed",
    "remote process",
    "caused pair closure",
    stacks.WAITING,
)


@dataclass(frozen=True)
class Failure:
    """How a rank failed, and when."""

    rank: int
    outcome: Outcome
    cause: Cause
    at: float  # on one clock for all that are compared

    @property
    def order(self) -> tuple[bool, float]:
        """Causes before consequences, then by time."""
        text = self.cause.message.lower()
        return any(words in text for words in _CONSEQUENCES), self.at


@dataclass
class CaseEnd:
    """What came of a case, or of those of its ranks that ran here."""

    results: dict[int, Result] = field(default_factory=dict)  # by rank
    failure: Failure | None = None
    samples: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # of the first rank: metric, unit
    startup_seconds: float | None = None  # from the order to the first line of the case's own code
    warnings: list[RecordWarning] = field(default_factory=list)  # of what a case did besides measuring
    watched: list[Watched] = field(default_factory=list)  # of the machine meanwhile, on each host

    def keep(self, progress: Mapping[str, Any]) -> None:
        """Remember what was measured, in case there will be no result."""
        if progress["metric"] and progress["samples"]:
            self.samples.setdefault((progress["metric"], progress["unit"]), []).extend(progress["samples"])

    def words(self) -> dict[str, Any]:
        """For another process; without the samples, which it has heard of as they came."""
        end: dict[str, Any] = TypeAdapter(CaseEnd).dump_python(self, mode="json", exclude={"samples"})
        return end | {"now": time.monotonic()}

    @classmethod
    def of_words(cls, words: Mapping[str, Any], at: float | None = None) -> CaseEnd:
        """What came of a case in another process, whose clock is another; `at` is better than clocks for a failure."""
        end = TypeAdapter(CaseEnd).validate_python(words)
        if end.failure is not None:
            when = end.failure.at + time.monotonic() - words["now"] if at is None else at
            end.failure = replace(end.failure, at=when)
        return end

    def result(self) -> Result:
        """Everything measured: the ranks' results merged, or what a failed case had measured until then."""
        found = self.results.get(self.failure.rank) if self.failure is not None else None
        if found is not None:  # it was measured to its end, and fails because of what was found
            merged = found
        elif self.failure is None:
            merged = merge_ranks([self.results[rank] for rank in sorted(self.results)])
        else:
            series = self.samples.items()
            partial = [Measurement.of_samples(Metric(name=name, unit=unit), values) for (name, unit), values in series]
            merged = Result(measurements=partial)
        if self.startup_seconds is not None:
            merged.facts["startup_seconds"] = self.startup_seconds
        merged.warnings += self.warnings
        if self.watched:
            seen = [one.model_dump(mode="json", exclude_defaults=True) for one in self.watched]
            merged.facts["conditions"] = merged.facts.get("conditions", {}) | {"watched": seen}
        return merged


class _Failed(BaseModel):
    outcome: Outcome
    cause: Cause
    at: float


class _RankMessage(BaseModel):
    """What the process of a rank may send: one of these."""

    model_config = ConfigDict(extra="forbid")

    started: float | None = None
    progress: Progress | None = None
    kept: Result | None = None
    result: Result | None = None
    failed: _Failed | None = None


@dataclass
class _Rank:
    rank: int
    pid: int
    channel: Channel
    log: Path
    fallback: Result | None = None  # what counts if it does not live to send its result
    result: Result | None = None
    result_at: float = 0.0
    failure: Failure | None = None
    ended: bool = False
    killed: bool = False
    started_at: float = 0.0
    strange: int = 0  # messages that cannot be read

    def __post_init__(self) -> None:
        self.output = CaseLog(self.log)

    @property
    def is_open(self) -> bool:
        """Whether it has neither a result nor a failure yet."""
        return self.result is None and self.failure is None


@dataclass
class CaseExecution:
    """One case on this machine."""

    server: WarmServer
    case: Case
    _: KW_ONLY
    ranks: Mapping[int, Mapping[str, str]]  # global rank: its environment (LOCAL_RANK, MASTER_PORT, ...)
    world_size: int
    on_progress: Callable[[dict[str, Any]], None]
    abort: Callable[[], bool] = lambda: False
    on_failure: Callable[[], None] = lambda: None  # of the first rank that fails here, as soon as it is known
    deadline: float = field(default=math.inf, init=False)  # on the monotonic clock
    limit_warnings: Sequence[RecordWarning] = field(default=(), init=False)
    _ranks: list[_Rank] = field(default_factory=list, init=False)
    _end: CaseEnd = field(default_factory=CaseEnd, init=False)
    _memory_kills: MemoryKills = field(init=False)
    _memory: MemoryWatch = field(init=False)  # from the start of the ranks on

    def run(self, imports: tuple[str, ...]) -> CaseEnd:
        """Start the ranks, watch them, and return when all of them are gone."""
        return run_at_once([self], imports)[0]

    def start(self, folder: Path, memory: MemoryWatch) -> None:
        """Fork the ranks."""
        self._memory = memory
        self._memory_kills = kills_for_memory(group=self.server.group)
        for rank, environment in self.ranks.items():
            log = folder / f"rank{rank}.log"
            ordered_at = time.monotonic()
            pid, channel = self.server.fork(
                {
                    "case": self.case.model_dump(mode="json"),
                    "rank": rank,
                    "world_size": self.world_size,
                    "local_rank": int(environment.get("LOCAL_RANK", rank)),
                    "environment": {**self.case.env, **environment},
                    "folder": str(Path.cwd()),
                    "log": str(log),
                },
                self.deadline,
            )
            self._ranks.append(_Rank(rank=rank, pid=pid, channel=channel, log=log, started_at=ordered_at))

    @property
    def is_over(self) -> bool:
        """Whether all its ranks are gone."""
        return all(rank.ended for rank in self._ranks)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have its ranks listened to."""
        for rank in self._ranks:
            selector.register(rank.channel, selectors.EVENT_READ, (self, rank))

    def look(self, now: float, *, takes_too_much: bool) -> bool:
        """Enforce what a case must keep to; whether a log grows so fast that the next look is to be soon."""
        self._enforce(now, takes_too_much=takes_too_much)
        cuts = [rank.output.cut() for rank in self._ranks]  # all of them, whatever the first says
        return any(cuts)

    def note_ends(self, ends: Mapping[int, int]) -> None:
        """Processes have ended, some of them perhaps its own."""
        for rank in (rank for rank in self._ranks if rank.pid in ends):
            # The end may be heard of before the last message. Grandchildren may still hold the other end, so this never
            # waits.
            while rank.is_open and select.select([rank.channel], [], [], 0)[0] and self.hear(rank):
                pass
            rank.ended = True
            if rank.is_open and not rank.killed:
                self._fail(rank, self._death(rank, ends[rank.pid]))

    def finish(self) -> None:
        """End what is left of it."""
        kill_groups({rank.pid for rank in self._ranks if not rank.ended})
        for rank in self._ranks:
            rank.channel.close()

    def end(self) -> CaseEnd:
        """What came of it."""
        failures = [rank.failure for rank in self._ranks if rank.failure is not None]
        if failures:
            self._end.failure = min(failures, key=lambda failure: failure.order)
            self._end.failure = self._blame_memory(self._end.failure)
        self._end.results = {rank.rank: rank.result for rank in self._ranks if rank.result is not None}
        self._end.warnings = [*self._warnings(), *self.limit_warnings]
        return self._end

    def note_watched(self, seen: Watched, others: Set[str]) -> None:
        """What was seen of the machine, without the devices of other cases."""
        series = [one for one in seen.series if one.of not in others]
        self._end.watched = [seen.model_copy(update={"series": series})]

    def hear(self, rank: _Rank) -> bool:
        """Take one packet of a rank; False when it has closed its end."""
        try:
            received = rank.channel.read_packet()
        except EOFError:
            return False
        if received is not None:
            message, descriptors = received
            for descriptor in descriptors:
                os.close(descriptor)
            try:
                self._take(rank, _RankMessage.model_validate(message))
            except ValidationError:
                rank.strange += 1
        return True

    def _take(self, rank: _Rank, message: _RankMessage) -> None:
        if message.started is not None and self._end.startup_seconds is None:
            self._end.startup_seconds = message.started - rank.started_at
        if message.progress is not None and rank is self._ranks[0]:
            self._end.keep(vars(message.progress))
            self.on_progress(vars(message.progress))
        if message.kept is not None:
            rank.fallback = message.kept
        if message.result is not None:
            rank.result = message.result
            rank.result_at = time.monotonic()
        if message.failed is not None:
            cause = message.failed.cause.model_copy(update={"rank": self._shown(rank.rank)})
            self._fail(rank, Failure(rank.rank, message.failed.outcome, cause, message.failed.at))

    def _fail(self, rank: _Rank, failure: Failure) -> None:
        if rank.failure is not None:  # a sleep that ends because the rank was asked where it is, say
            return
        if rank.fallback is not None:  # all was measured; what was lost is what came after
            rank.result = rank.fallback
            rank.result_at = time.monotonic()
            if failure.cause.kind is not CauseKind.CORRUPTION:
                rank.result.facts["cut_short"] = failure.cause.message
                return
        is_first = all(other.failure is None for other in self._ranks)
        rank.failure = failure
        if is_first:
            self.on_failure()

    def _death(self, rank: _Rank, status: int) -> Failure:
        """A process that ended without a message."""
        outcome, kind = Outcome.FAILED, CauseKind.CRASHED
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            message = f"the process was ended by {signal_name(number)}"
            killer = self._killer_for_memory() if number == signal.SIGKILL else ""
            if killer:
                outcome, kind = Outcome.OUT_OF_MEMORY, CauseKind.HOST_MEMORY
                message = f"{killer} killed the process because {self._memory.reason()}"
            elif number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                kind = CauseKind.INTERRUPTED
                message += " from outside; --resume measures it again"
            elif number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
                message += ": native code crashed; the last lines it wrote are below"
        else:
            message = f"the process exited with code {os.WEXITSTATUS(status)} before it had a result"
        cause = Cause(kind=kind, message=message, detail=rank.output.excerpt(), rank=self._shown(rank.rank))
        return Failure(rank.rank, outcome, cause, time.monotonic())

    def _enforce(self, now: float, *, takes_too_much: bool) -> None:
        """Kill what is late, and what waits for a rank that will never come."""
        deadline = self.deadline
        failures = [rank.failure for rank in self._ranks if rank.failure is not None]
        if now >= deadline:
            late = [rank for rank in self._ranks if rank.is_open]
            # Say of each rank what it was doing, so that those that wait for another one are not taken for the cause.
            positions = stacks.ask({rank.pid: rank.log for rank in late if not rank.ended})
            for rank in late:
                where = positions.get(rank.pid)
                doing = f": {where}" if where is not None else ""
                remedy = "raise it with --timeout, or make the case smaller"
                message = f"not done after {self.case.timeout:g} s{doing}; {remedy}"
                detail = "\n".join(text for text in (where.stack if where else "", rank.output.excerpt()) if text)
                cause = Cause(kind=CauseKind.TIMEOUT, message=message, detail=detail, rank=self._shown(rank.rank))
                self._fail(rank, Failure(rank.rank, Outcome.TIMEOUT, cause, now))
            self._kill(self._ranks)
            if now >= deadline + LINGER_SECONDS:  # not even SIGKILL ends a process inside the kernel
                for rank in self._ranks:
                    rank.ended = True
        elif takes_too_much:
            message = f"it was ended because {self._memory.reason()}"
            for rank in (rank for rank in self._ranks if rank.is_open):
                cause = Cause(kind=CauseKind.HOST_MEMORY, message=message, rank=self._shown(rank.rank))
                self._fail(rank, Failure(rank.rank, Outcome.OUT_OF_MEMORY, cause, now))
            self._kill(self._ranks)
        elif self.abort() or (failures and now >= min(f.at for f in failures) + AFTERMATH_SECONDS):
            self._kill(self._ranks)
        else:
            self._kill([r for r in self._ranks if r.result is not None and now >= r.result_at + LINGER_SECONDS])

    def _kill(self, ranks: list[_Rank]) -> None:
        victims = [rank for rank in ranks if not rank.ended]
        for rank in victims:
            rank.killed = True
        kill_groups({rank.pid for rank in victims})

    def fail_all(self, outcome: Outcome, kind: CauseKind, message: str) -> None:
        def failure(rank: int) -> Failure:
            return Failure(rank, outcome, Cause(kind=kind, message=message, rank=self._shown(rank)), time.monotonic())

        if not self._ranks:  # none was started yet
            self._end.failure = failure(min(self.ranks))
            self.on_failure()
        for rank in self._ranks:
            if rank.is_open:
                self._fail(rank, failure(rank.rank))
            rank.ended = True

    def _killer_for_memory(self) -> str:
        return kills_for_memory(group=self.server.group).killer_since(self._memory_kills)

    def _blame_memory(self, failure: Failure) -> Failure:
        """A case fails in many ways when the kernel has killed not its rank, but something that this had started."""
        is_ours = bool(self.server.group.folders)  # otherwise it may have been a process of somebody else
        if failure.outcome is not Outcome.FAILED or not is_ours or self._killer_for_memory() != KERNEL:
            return failure
        message = f"{KERNEL} killed one of its processes because {self._memory.reason()}: {failure.cause.message}"
        cause = failure.cause.model_copy(update={"kind": CauseKind.HOST_MEMORY, "message": message})
        return replace(failure, outcome=Outcome.OUT_OF_MEMORY, cause=cause)

    def _warnings(self) -> list[RecordWarning]:
        warnings = []
        if escaped := self.server.escaped:
            names = ", ".join(f"{name} (pid {pid})" for pid, name in sorted(escaped.items())[:MOST_NAMES])
            more = f" and {len(escaped) - MOST_NAMES} more" if len(escaped) > MOST_NAMES else ""
            message = f"{len(escaped)} processes that it started lived on after it, and were ended: {names}{more}"
            remedy = "have it end what it starts: what lives on takes time and memory from its last steps on"
            warnings.append(RecordWarning(kind="escaped", message=message, remedy=remedy))
        if rubbish := sum(rank.channel.rubbish + rank.strange for rank in self._ranks):
            message = f"it wrote {rubbish} times into the runner's connection, which was passed over"
            remedy = "have it write only to descriptors that it has opened itself"
            warnings.append(RecordWarning(kind="stray-writes", message=message, remedy=remedy))
        return warnings

    def _shown(self, rank: int) -> int | None:
        return rank if self.world_size > 1 else None


def run_at_once(executions: Sequence[CaseExecution], imports: tuple[str, ...]) -> list[CaseEnd]:
    """Run cases at the same time in processes of one warm server; what came of each, when all of them are gone."""
    server = executions[0].server
    for one in executions:
        one.deadline = time.monotonic() + one.case.timeout
    with ExitStack() as folders:
        try:
            server.warm(imports, executions[0].deadline)
            server.escaped.clear()
            targets = {one.case.target for one in executions}
            if is_first_here := any(ranks.get("LOCAL_RANK", "0") == "0" for ranks in executions[0].ranks.values()):
                for one in executions:
                    one.limit_warnings = folders.enter_context(held_limits(one.case))
                server.watch(sorted(targets))
            memory = _memory_watch(server, executions)
            for one in executions:
                # A compiler's helper may still write while the folder goes; that must not end the run.
                folder = tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True)
                one.start(Path(folders.enter_context(folder)), memory)
            _watch(server, executions, memory)
            if is_first_here and (seen := server.watched()) is not None:
                for one in executions:
                    one.note_watched(seen, targets - {one.case.target})
        except Unsupported as error:
            for one in executions:
                one.fail_all(Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED, str(error))
        except ServerTimeout as error:
            for one in executions:
                one.fail_all(Outcome.TIMEOUT, CauseKind.TIMEOUT, str(error))
        except ServerLost as error:
            kind = CauseKind.CRASHED if error.is_importing else CauseKind.INTERRUPTED
            for one in executions:
                one.fail_all(Outcome.FAILED, kind, str(error))
        finally:
            for one in executions:
                one.finish()
    return [one.end() for one in executions]


def _memory_watch(server: WarmServer, executions: Sequence[CaseExecution]) -> MemoryWatch:
    """One for all of them, as they are in one control group."""
    first, limits = executions[0], [one.case.memory_limit for one in executions]
    shares = int(next(iter(first.ranks.values())).get("LOCAL_WORLD_SIZE", len(first.ranks)))
    limit = None if None in limits else sum(limit for limit in limits if limit is not None)
    return MemoryWatch(server.group, limit, len(first.ranks) / shares, is_local=first.case.origin == "local")


def _watch(server: WarmServer, executions: Sequence[CaseExecution], memory: MemoryWatch) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(server.control, selectors.EVENT_READ)
        for one in executions:
            one.register(selector)
        while open_ones := [one for one in executions if not one.is_over]:
            check_interrupts()
            now = time.monotonic()
            takes_too_much = memory.is_exceeded(now, server.pid)
            cuts = [one.look(now, takes_too_much=takes_too_much) for one in open_ones]
            soon = CUT_SECONDS if any(cuts) else LOOK_SECONDS
            left = min(max(0.0, one.deadline - now) for one in open_ones)
            for key, _ in selector.select(timeout=min(soon, left + 0.001)):
                if key.data is not None:
                    execution, rank = key.data
                    if not execution.hear(rank):
                        selector.unregister(key.fileobj)
            ends = server.poll_ends()
            for one in executions:
                one.note_ends(ends)


def local_ranks(count: int) -> dict[int, dict[str, str]]:
    """The environment of each rank of a case that runs on this machine alone, as torchrun would set it."""
    if count == 1:
        return {0: {}}
    port = str(free_port(""))
    return {rank: rank_environment(rank, rank, count, count, "127.0.0.1", port) for rank in range(count)}


def rank_environment(rank: int, local_rank: int, size: int, local_size: int, address: str, port: str) -> dict[str, str]:
    """The variables of one rank, as torchrun would set them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }

"""A suite on every host at once, a run for each: what comes is kept as it comes, and what is missing can be resumed.

`Fleet` enters the hosts itself; `JobFleet` gives each follower of a leader a job.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from paceline.analysis.diagnose.table import ballots_of, count_votes
from paceline.analysis.summary import headline_of
from paceline.api import running
from paceline.api.cases import expand_here, left_out_there
from paceline.api.client import Client
from paceline.api.jobs import FINAL, PATIENCE_WAITING, POLL, read_needs, resend, send
from paceline.core.case import Case
from paceline.core.errors import InputError, PacelineError
from paceline.core.files import data_directory, private_directory, write_atomic
from paceline.core.metric import Better
from paceline.core.quantity import show_duration
from paceline.core.record import Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.suite import Suite
from paceline.remote.hosts import SSH, HostTrouble, RemoteShell
from paceline.report.diagnose import sentence
from paceline.runner.hosts import Host, NodeLost, RemoteNode
from paceline.runner.run import Listener

if TYPE_CHECKING:
    from paceline.analysis.diagnose.early import DefectRules
    from paceline.store.store import Store


PREFIX = "fleet-"
SLOW = 2.0  # a node that takes so many times as long as the others do is named
LOOK_SECONDS = 0.2
LOOKING = 0.1  # the part of the time that may go into judging while nodes measure: this machine may be one of them

State = Literal["waiting", "measuring", "finished", "accused", "unreachable", "lost", "refused", "interrupted"]


def new_fleet_id() -> str:
    """A name for one round over a fleet, which all of its runs are tagged with."""
    return f"{PREFIX}{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class Plan(BaseModel):
    """What is to be measured where, and the run of each host that has one; kept in a file, for `--resume`."""

    id: str = Field(default_factory=new_fleet_id)
    suite: Suite
    overrides: dict[str, Any] = {}
    filters: list[str] = []
    tags: list[str] = []
    hosts: list[str]
    remote_shell: str = SSH
    remote_python: str = Field(default_factory=lambda: sys.executable)
    strict: bool = False  # a host refuses a config of SuperBench's that it cannot measure as it says
    runs: dict[str, str] = {}

    @property
    def shell(self) -> RemoteShell:
        """How the hosts are entered."""
        return RemoteShell(self.remote_shell, self.remote_python)

    def save(self) -> None:
        """Keep it as it is now."""
        write_atomic(_folder() / f"{self.id}.json", self.model_dump_json(indent=1), private=True)

    @classmethod
    def load(cls, name: str) -> Plan:
        """That of an earlier run over a fleet."""
        path = _folder() / f"{name}.json"
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            known = sorted(file.stem for file in _folder().glob(f"{PREFIX}*.json"))
            latest = f"; the latest is {known[-1]}" if known else ""
            message = f"no run over a fleet has the name '{name}' here{latest}"
            raise InputError("unknown-fleet", message, key="--resume", value=name) from None
        except (OSError, ValidationError) as error:
            message = f"the plan of '{name}' in {path} cannot be read: {str(error).splitlines()[0]}"
            raise InputError("unreadable-fleet", message, key="--resume", value=name) from None


def _folder() -> Path:
    return private_directory(data_directory() / "fleets")


@dataclass
class NodeRun:
    """How one host does."""

    host: str
    state: State = "waiting"
    cause: str = ""  # why it did not finish
    run_id: str = ""
    cases: int = 0
    seconds: float = 0.0
    began: float = field(default_factory=time.monotonic)
    records: dict[int, Record] = field(default_factory=dict)  # by case, without those of before it was resumed
    before: list[Record] = field(default_factory=list)  # those of before it was resumed
    planned: Run | None = None
    result: RunRecords | None = None
    accused: str = ""  # of what, by what was measured so far
    is_late: bool = False  # and was said to be

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes from it."""
        return self.state not in ("waiting", "measuring")

    @property
    def latest(self) -> Sequence[Record]:
        """What it has measured, as far as it is known here."""
        return self.result.records if self.result is not None else list(self.records.values())

    @property
    def ok(self) -> bool:
        """Whether all that was asked of it succeeded."""
        return self.state == "finished" and self.result is not None and self.result.all_ok and not self.accused


class FleetListener:
    """Hears of every node; does nothing with it."""

    def changed(self, node: NodeRun) -> None:
        """A node has another state."""

    def case_ended(self, node: NodeRun, record: Record) -> None:
        """A case has ended on a node."""

    def accused(self, node: NodeRun) -> None:
        """A node is accused by what it and the others have measured; it measures no further case."""

    def late(self, node: NodeRun, usual: float) -> None:
        """A node goes on although half of the nodes have long ended, after so many seconds."""

    def trouble(self, node: NodeRun, message: str) -> None:
        """Something went wrong that ends no case."""


class _OfNode(Listener):
    """Passes on what one node does; one node at a time."""

    def __init__(self, node: NodeRun, listener: FleetListener, lock: threading.Lock) -> None:
        self._node, self._listener, self._lock = node, listener, lock

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        with self._lock:
            self._node.state, self._node.run_id, self._node.cases = "measuring", run.id, len(run.cases)
            self._node.planned = run
            self._listener.changed(self._node)

    def case_ended(self, record: Record) -> None:
        with self._lock:
            self._node.records[record.case.index] = record
            self._listener.case_ended(self._node, record)

    def trouble(self, message: str) -> None:
        with self._lock:
            self._listener.trouble(self._node, message)


class Fleet:
    """One plan being carried out."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        listener: FleetListener,
        *,
        retry_failed: bool = False,
        until: DefectRules | None = None,  # what ends the check of a node early
    ) -> None:
        self._plan, self._store, self._listener, self._retry_failed = plan, store, listener, retry_failed
        self._until, self._next_look = until, 0.0  # on the monotonic clock
        self._judged = (0, 0)  # records, and nodes that had or will have some
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.nodes = [NodeRun(host) for host in plan.hosts]

    def go(self) -> list[NodeRun]:
        """Measure on all hosts at once; KeyboardInterrupt once every host has stopped."""
        self._plan.save()
        threads = [threading.Thread(target=self._measure, args=(node,), daemon=True) for node in self.nodes]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                time.sleep(LOOK_SECONDS)
                self._name_late_ones()
                if time.monotonic() >= self._next_look:
                    begun = time.monotonic()
                    self._accuse()
                    self._next_look = time.monotonic() + (time.monotonic() - begun) / LOOKING
            except KeyboardInterrupt:
                self._is_over.set()
        if self._is_over.is_set():
            raise KeyboardInterrupt
        self._accuse()
        return self.nodes

    def _accuse(self) -> None:
        """Judge every node by what all have measured so far; one that is accused measures no further case."""
        if self._until is None:
            return
        with self._lock:
            there = {
                node.host: RunRecords(run=node.planned, records=[*node.before, *node.records.values()])
                for node in self.nodes
                if node.planned is not None
            }
            still = sum(not node.is_over or node.state == "finished" for node in self.nodes)
        measured = sum(len(one.records) for one in there.values()), still
        if measured == self._judged:
            return
        self._judged = measured
        try:
            found = self._until.accused_so_far(there, still)
        except PacelineError as error:  # which is no reason to stop measuring
            self._until = None
            with self._lock:
                self._listener.trouble(self.nodes[0], f"no check ends early any more: {error}")
            return
        for node in self.nodes:
            if node.host in found and not node.accused:
                node.accused = sentence(found[node.host])
                with self._lock:
                    self._listener.accused(node)

    def _measure(self, node: NodeRun) -> None:
        """All of one host, in a thread of its own."""
        state: State = "finished"
        try:
            if self._measure_there(node):
                state, node.cause = "accused", node.accused
        except HostTrouble as error:
            state, node.cause = "unreachable", str(error)
        except NodeLost as error:
            state, node.cause = "lost", str(error)
        except KeyboardInterrupt:
            self._is_over.set()  # an interrupt may reach any thread that waits, and is meant for all
            state, node.cause = "interrupted", "it was interrupted"
        except PacelineError as error:
            state, node.cause = "refused", str(error)
        except Exception as error:  # a mistake of ours must not be taken for a node that still measures
            state, node.cause = "lost", f"{type(error).__name__}: {error}"
        with self._lock:
            node.state, node.seconds = state, time.monotonic() - node.began
            self._listener.changed(node)

    def _measure_there(self, node: NodeRun) -> bool:
        """All cases of a host; whether it ended early because it was accused."""
        plan, run_id = self._plan, self._known_run(node)
        if run_id is not None and (done := self._finished(run_id)) is not None:
            node.run_id, node.cases, node.result = run_id, len(done.run.cases), done
            node.planned, node.before = done.run, done.records
            return False
        with closing(RemoteNode(Host(node.host), plan.shell, self._is_over.is_set)) as there:
            if run_id is not None:
                todo = running.reopen(self._store, run_id, there, retry_failed=self._retry_failed)
                again = {case.index for case in todo.cases}
                stored = self._store.glances([run_id])[run_id].records
                node.before = [record for record in stored if record.case.index not in again]
            else:
                self._say_what_is_left_out(node, there)
                cases = expand_here(plan.suite, plan.overrides, there, None, plan.filters)
                todo = running.begin(self._store, plan.suite.name, cases, there, [plan.id, *plan.tags])
                with self._lock:
                    plan.runs[node.host] = todo.run.id
                    plan.save()
            listener = _OfNode(node, self._listener, self._lock)
            measured = running.measure(self._store, todo, listener, there, enough=lambda: node.accused)
            node.result = measured.records
            return bool(measured.ended_early)

    def _known_run(self, node: NodeRun) -> str | None:
        """The host's run, if it has one that was not deleted meanwhile."""
        run_id = self._plan.runs.get(node.host)
        if run_id is None or self._store.has(run_id):
            return run_id
        with self._lock:
            del self._plan.runs[node.host]
            self._plan.save()
            self._listener.trouble(node, f"the store does not have its run {run_id} any more: it measures anew")
        return None

    def _say_what_is_left_out(self, node: NodeRun, there: RemoteNode) -> None:
        notes = left_out_there(self._plan.suite, there)
        if not notes:
            return
        more = f"; and {len(notes) - 1} more like this" if len(notes) > 1 else ""
        message = f"it does not measure as the config says: {notes[0]}{more}"
        if self._plan.strict:
            raise InputError("no-counterpart", f"--strict: {message}", key="--strict")
        with self._lock:
            self._listener.trouble(node, message)

    def _finished(self, run_id: str) -> RunRecords | None:
        """The run, if nothing of it is left to do."""
        done = self._store.load(run_id)
        is_left = self._retry_failed and any(record.outcome is not Outcome.OK for record in done.records)
        return None if done.missing or is_left else done

    def _name_late_ones(self) -> None:
        with self._lock:
            ended = [node.seconds for node in self.nodes if node.state == "finished" and node.records]
            if 2 * len(ended) <= len(self.nodes):
                return
            usual = statistics.median(ended)
            for node in self.nodes:
                if not (node.is_over or node.is_late) and time.monotonic() - node.began > SLOW * usual:
                    node.is_late = True
                    self._listener.late(node, usual)


def slow_nodes(nodes: Sequence[NodeRun]) -> dict[str, str]:
    """The hosts that do the same cases much slower than others, each with how much and what they say of it."""
    slow = {}
    for words, slowness in ((_LONGER, _seconds), (_WORSE, _figure)):  # a case may end after a time, whatever it did
        times: dict[tuple[Any, ...], dict[str, float]] = {}
        for node in nodes:
            for record in node.latest:
                if value := slowness(record):
                    times.setdefault((record.case.key, record.case.repeat), {})[node.host] = value
        for node in nodes:
            ratios = []
            for by_host in times.values():
                others = [seconds for host, seconds in by_host.items() if host != node.host]
                if node.host in by_host and others:
                    ratios.append(by_host[node.host] / statistics.median(others))
            if ratios and (ratio := statistics.median(ratios)) >= SLOW and node.host not in slow:
                slow[node.host] = f"{words.format(ratio)} the others{_complaint(node)}"
    return slow


def outvoted_nodes(nodes: Sequence[NodeRun]) -> tuple[dict[str, str], list[str]]:
    """The hosts whose fingerprints most of the like devices contradict, each with how; and what no majority decides."""
    ballots = [
        one
        for node in nodes
        for one in ballots_of(node.host, node.latest, [f"{r.case.benchmark} {r.case.title}" for r in node.latest])
    ]
    votes = count_votes(ballots)
    wrong = {ballot.node: f"{ballot.case}: {text}" for vote in votes for ballot, text in vote.outvoted.items()}
    return wrong, [vote.undecided for vote in votes if vote.undecided]


def nodes_without_gpus(nodes: Sequence[NodeRun]) -> dict[str, str]:
    """The hosts that have fewer GPUs than most: where a driver has lost one, nothing that is measured fails."""
    counts = {node.host: len(node.result.run.environment.gpus) for node in nodes if node.result is not None}
    usual = Counter(counts.values()).most_common(1)
    if not usual or 2 * usual[0][1] <= len(counts):
        return {}
    return {
        host: f"it has {count or 'no'} GPUs, but most nodes have {usual[0][0]}"
        for host, count in counts.items()
        if count < usual[0][0]
    }


_LONGER, _WORSE = "its cases take {:.1f} times as long as on", "its figures are {:.1f} times worse than those of"


def _seconds(record: Record) -> float:
    return record.seconds


def _figure(record: Record) -> float | None:
    """What leads the record, so that more is worse; None where that is not known."""
    figure = headline_of(record)
    if figure is None or figure.value <= 0 or figure.metric.better is Better.NEITHER:
        return None
    return figure.value if figure.metric.better is Better.LOWER else 1 / figure.value


def _complaint(node: NodeRun) -> str:
    """What most of its records warn of."""
    warnings = [warning for record in node.latest for warning in record.warnings]
    if not warnings:
        return ""
    kind, count = Counter(warning.kind for warning in warnings).most_common(1)[0]
    message = next(warning.message for warning in warnings if warning.kind == kind)
    return f"; {count} of its records say {kind}: {message}"


def progress_of(node: NodeRun) -> str:
    """How far a node is."""
    return f"{len(node.latest)} of {node.cases} cases after {show_duration(time.monotonic() - node.began)}"


AWAY_SECONDS = 10.0  # a follower may take so long to come back before its job is no longer waited for
_MEASURED = ("cases", "timeout", "out-of-memory")  # failures of jobs whose cases were measured
MISSED = timedelta(days=1)  # a machine that was here since then, and is not, is one of the fleet that is missing


class JobFleet:
    """One round over the followers of a leader."""

    def __init__(self, client: Client, listener: FleetListener) -> None:
        self.id = new_fleet_id()
        self.nodes: list[NodeRun] = []
        self.jobs: dict[str, str] = {}  # by follower
        self._client, self._listener = client, listener

    def submit(
        self, what: str, overrides: Mapping[str, Any], *, tags: Sequence[str], machines: str, **more: Any
    ) -> None:
        """A job for each follower that is here and has what `machines` asks for; those that are missing are named."""
        more |= {"tags": [self.id, *tags], "machines": machines}
        for view in self._followers(read_needs(machines)):
            if self._is_here(view):
                self._add(view, send(self._client, what, overrides, follower=view, **more))
        if not self.jobs:
            message = "no follower that could run it is here; 'paceline leader' says how machines become followers"
            raise InputError("no-follower", message, key="--each")

    def resume(self, fleet: str) -> None:
        """Go on with an earlier round: a job for each follower that has none by now, or whose last came to nothing."""
        self.id, latest = fleet, self._latest_jobs(fleet)
        if not latest:
            message = f"the leader has no jobs of '{fleet}'; 'paceline jobs' shows their tags"
            raise InputError("unknown-fleet", message, key="--resume", value=fleet)
        newest = next(iter(latest.values()))
        of_any = newest["needs"] | {"follower": "", "whole_node": False, "gpus": 0}  # these are one follower's own
        for view in self._followers(of_any):
            job = latest.get(view["id"])
            if job is not None and not _came_to_nothing(job):
                self._add(view, job)
            elif self._is_here(view):
                whole = self._client.get(f"/jobs/{(job or newest)['id']}")
                self._add(view, resend(self._client, whole, view))

    def _followers(self, needs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The leader's followers that have what is needed."""
        from paceline.service.engines.base import FollowerState
        from paceline.service.jobs import MachineNeeds
        from paceline.service.placement import could_run

        required, known = MachineNeeds.model_validate(needs), set(FollowerState.model_fields)
        views: list[dict[str, Any]] = self._client.get("/followers")["followers"]
        states = [FollowerState.model_validate({name: view[name] for name in view.keys() & known}) for view in views]
        return [view for view, state in zip(views, states, strict=True) if could_run(state, required)]

    def _is_here(self, view: Mapping[str, Any]) -> bool:
        """Whether a follower can be given a job; one that cannot is named, unless it is gone for long."""
        if view["present"] and not view["refused"]:
            return True
        seen_at = datetime.fromisoformat(view["seen_at"])
        if view["refused"] or seen_at > datetime.now(UTC) - MISSED:
            why = view["refused"] or f"it was seen last at {seen_at:%Y-%m-%d %H:%M} UTC"
            self.nodes.append(NodeRun(view["id"], "refused" if view["refused"] else "unreachable", why))
        return False

    def _add(self, view: Mapping[str, Any], job: Mapping[str, Any]) -> None:
        self.nodes.append(NodeRun(view["id"]))
        self.jobs[view["id"]] = job["id"]

    def _latest_jobs(self, fleet: str) -> dict[str, dict[str, Any]]:
        """The last job of each follower that has this tag, as it is listed."""
        latest: dict[str, dict[str, Any]] = {}
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            page = self._client.get("/jobs", **({"cursor": page["next"]} if page["next"] else {}))
            for job in (job for job in page["jobs"] if fleet in job["tags"]):
                latest.setdefault(job["needs"]["follower"], job)
        return latest

    def wait(self) -> Sequence[NodeRun]:
        """Until every job has ended, or waits for a follower that has gone; such a job goes on when that returns."""
        self._client.be_patient(PATIENCE_WAITING)
        for missing in [node for node in self.nodes if node.is_over]:
            self._listener.changed(missing)
        seen_at = dict.fromkeys(self.jobs, time.monotonic())
        while not all(node.is_over for node in self.nodes):
            now = time.monotonic()
            here = {view["id"] for view in self._client.get("/followers")["followers"] if view["present"]}
            seen_at |= dict.fromkeys(here, now)
            for node in [node for node in self.nodes if not node.is_over]:
                job = self._client.get(f"/jobs/{self.jobs[node.host]}")
                is_away = job["state"] == "queued" and now - seen_at[node.host] > AWAY_SECONDS
                self._look(node, job, is_away=is_away)
            time.sleep(POLL)
        return self.nodes

    def _look(self, node: NodeRun, job: Mapping[str, Any], *, is_away: bool) -> None:
        state: State = "measuring" if job["state"] == "running" else node.state
        node.cases, node.run_id = job["progress"]["cases"] or node.cases, job["run_id"] or ""
        if is_away:
            state, node.cause = "lost", f"{job['waits_for'] or 'it has gone'}; job {job['id']} waits for it"
        elif job["state"] in FINAL:
            node.result = self._result(node.run_id)
            node.cases = len(node.result.run.cases) if node.result is not None else node.cases
            state, node.cause = "finished", ""
            if job["state"] == "cancelled":
                state, node.cause = "interrupted", f"job {job['id']} was cancelled"
            elif (failure := job["failure"]) is not None and failure["kind"] not in _MEASURED:
                state, node.cause = "lost" if failure["kind"] == "follower-lost" else "refused", failure["message"]
        if state != node.state:
            node.state, node.seconds = state, time.monotonic() - node.began
            self._listener.changed(node)

    def _result(self, run_id: str) -> RunRecords | None:
        try:
            return RunRecords.model_validate(self._client.get(f"/runs/{run_id}", samples="true")) if run_id else None
        except InputError:  # its attempt has not even begun
            return None


def _came_to_nothing(job: Mapping[str, Any]) -> bool:
    """Whether a job is over, and another one could do better."""
    failure = job["failure"]
    return job["state"] == "cancelled" or (failure is not None and failure["kind"] not in _MEASURED)

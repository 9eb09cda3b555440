"""The leader: takes jobs, places them on followers, and brings what they measure into the store.

The store is the truth. A change is kept there before it is acted on, and acting twice does no harm, so that a leader
that was killed at any moment goes on from what the store says. One whose store failed does the same: it forgets what it
thought, and reads again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nsmallest

from paceline.core.errors import InputError, StoreError
from paceline.service.engines.base import Engine, FollowerGone, FollowerState, Item, Progress, Report
from paceline.service.jobs import (
    LEASE,
    Began,
    Cancelled,
    Ended,
    FailureKind,
    Job,
    JobEvent,
    JobState,
    Lost,
    Placed,
    Renewed,
    change,
)
from paceline.service.keeping import assignment_of, keep_item, row_of, save
from paceline.service.placing import CPU, follower_of, task_of
from paceline.service.scheduler import turns
from paceline.service.scheduler.cluster import Cluster
from paceline.service.scheduler.predict import History
from paceline.service.scheduler.state import Placement, Task
from paceline.store.queue import Conflict, EventRow, FollowerRow
from paceline.store.store import Store

PAUSE = 0.2  # seconds between two looks at the followers
_SPEAKERS = 16  # followers that are spoken to at once
_RENEW_PART = 3  # a lease is renewed in the store when a third of it is over, not at every look

Attempt = tuple[str, int]  # job, number of the attempt

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """What a follower is to be told of an attempt: to begin it, or to stop."""

    follower: str
    attempt: Attempt
    job: Job | None  # None to stop


class Leader:
    """One leader on one store; a second one on the same store is noticed and refused by the store."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        lease: timedelta = LEASE,
    ) -> None:
        self._store = store
        self._engine = engine
        self._now = now
        self._lease = lease
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._closing = False
        self._is_leading = threading.Lock()
        self._speakers = ThreadPoolExecutor(_SPEAKERS, thread_name_prefix="follower")
        self._history = History()
        self._strangers: set[str] = set()  # jobs that followers tell of and this store does not know
        self.trouble = ""  # why nothing is accepted just now
        self._start_over()

    # What people ask for

    def submit(self, job: Job) -> tuple[Job, bool]:
        """Take a job; the same id again gives the one that was taken, and False."""
        with self._lock:
            event = EventRow(job.submitted_at, "submitted", {"by": job.submitted_by})
            with self._store.queue.writing(f"take job '{job.id}'") as writing:
                is_new = writing.submit(row_of(job), event)
            if not is_new:
                standing = self.job(job.id)
                if (standing.suite, standing.overrides) != (job.suite, job.overrides):
                    raise InputError(
                        f"job '{job.id}' exists already with another suite; give this one an id of its own"
                    )
                return standing, False
            self._jobs[job.id] = job
            with self._or_start_over():  # the job is kept, whatever happens to its place
                if self._is_fresh:
                    self._enqueue(job)
        self._woken.set()
        return job, True

    def cancel(self, job_id: str, by: str = "") -> Job:
        """Stop a job, whether it waits or runs; one that is over stays as it is."""
        with self._lock:
            job = self.job(job_id)
            if job.state.is_final or job.stop_asked:
                return job
            job = self._change(job, Cancelled(at=self._now(), by=by))
            task = self._tasks.pop(job_id, None) if job.state.is_final else None
            if task is not None:
                with self._or_start_over():
                    if self._is_fresh:
                        self._start(turns.cancelled(self._cluster, task, self._seconds()))
        self._woken.set()
        return job

    def job(self, job_id: str) -> Job:
        """A job as it is now."""
        with self._lock:
            known = self._jobs.get(job_id)
        if known is not None:
            return known
        row = self._store.queue.job(job_id)
        if row is None:
            raise InputError(f"there is no job '{job_id}': `paceline jobs` lists them")
        return Job.model_validate(row.document)

    def progress(self, job_id: str) -> Progress:
        """What a running job is doing."""
        with self._lock:
            return self._progress.get(job_id, Progress())

    def followers(self) -> list[FollowerState]:
        """Who is there now."""
        with self._lock:
            return list(self._followers.values())

    def expected_end(self, job_id: str) -> datetime | None:
        """When a running job is expected to be through."""
        with self._lock:
            followers = self._cluster.running.get(job_id, ())
            ends = [follower.running[job_id].ends_at for follower in followers]
        return datetime.fromtimestamp(max(ends), UTC) if ends else None

    def waiting(self, limit: int) -> list[Task]:
        """What waits, in the order of its turns, as far as one machine could run all of it."""
        now = self._seconds()

        def turn(task: Task) -> tuple[float, ...]:
            due_at = self._cluster.queue_of(task.needs).due_at(task)
            return (0, due_at) if due_at <= now else (1, -task.priority, task.seconds)

        with self._lock:
            return nsmallest(limit, self._cluster.waiting, key=turn)

    def drained(self) -> dict[str, str]:
        """Followers that start nothing long, each with the job that they are kept free for."""
        with self._lock:
            reserved = self._cluster.reserved
            return {follower.id: follower.reservation.task.id for follower in reserved if follower.reservation}

    # What happens by itself

    def run(self) -> None:
        """Lead until closed."""
        with self._is_leading:
            while not self._closing:
                try:
                    self.step()
                    self.trouble = ""
                except StoreError as error:  # a full disk, a lost database: nothing is lost, nothing is taken
                    self._is_fresh = False
                    self.trouble = str(error)
                    _log.warning("%s", error)
                    self._hold_on()
                except Exception as error:  # a defect must not end the one thread that brings results in
                    self._is_fresh = False
                    self.trouble = f"the leader met a defect of its own: {type(error).__name__}: {error}"
                    _log.exception("a look at the followers failed")
                self._woken.wait(PAUSE)
                self._woken.clear()

    def close(self) -> None:
        """Stop leading; what runs goes on by itself and tells the next leader."""
        self._closing = True
        self._woken.set()
        with self._is_leading:  # nobody is spoken to any more
            self._speakers.shutdown(wait=False, cancel_futures=True)
            self._engine.close()

    def step(self) -> None:
        """Look once at every follower, take what they tell, and place what can be placed.

        Followers are spoken to without the lock: one that is slow to answer delays nobody who asks for something.
        """
        present = self._engine.followers()
        with self._lock:
            if not self._is_fresh:
                self._start_over()
            self._see(present)
            asked = {follower: self._expected(follower) for follower in self._followers}
        answers = list(self._speakers.map(lambda one: self._heard(*one), asked.items()))
        with self._lock:
            if not self._is_fresh:  # since a change that somebody asked for meanwhile was not kept
                return
            for follower, reports in zip(asked, answers, strict=True):
                if reports is not None:
                    self._heard_at[follower] = self._now()
                    self._forget(asked[follower], reports)
                    for report in reports:
                        self._take(follower, report)
            self._give_up_silent()
            self._welcome()
            orders = [order for job in self._active() if (order := self._look_after(job))]
            orders += [Order(follower, attempt, None) for attempt, follower in self._strays.items()]
        list(self._speakers.map(self._tell, orders))

    @contextmanager
    def _or_start_over(self) -> Iterator[None]:
        """What follows from a change that is kept; if that fails, the next look makes up for it."""
        try:
            yield
        except StoreError as error:
            self._is_fresh = False
            _log.warning("%s", error)

    def _hold_on(self) -> None:
        """Let what is measured go on while the store takes nothing: followers hear of us, and keep what they tell."""
        with self._lock:
            asked: dict[str, dict[Attempt, int]] = {follower: {} for follower in self._followers}
            for attempt, follower in self._told_by.items():
                if follower in asked:
                    asked[follower][attempt] = self._acknowledged.get(attempt, 0)
        list(self._speakers.map(lambda one: self._heard(*one), asked.items()))

    def _start_over(self) -> None:
        """Remember only what the store says, with everything that is under way as if it had just been heard of."""
        unfinished = [state.value for state in JobState if not state.is_final]
        jobs = [Job.model_validate(row.document) for row in self._store.queue.jobs(unfinished, limit=None)]
        with self._store.queue.writing("take up the jobs") as writing:
            for place, job in enumerate(jobs):
                if job.state.is_active:
                    event = Renewed(at=self._now())
                    jobs[place] = change(job, event, lease=self._lease)
                    save(writing, jobs[place], event)
                    writing.reopen_run(job.run_ids[-1])
        self._is_fresh = True
        self._jobs: dict[str, Job] = {job.id: job for job in reversed(jobs)}  # those that are not over
        self._tasks: dict[str, Task] = {}
        self._acknowledged: dict[Attempt, int] = {}
        self._told_by: dict[Attempt, str] = {}
        self._strays: dict[Attempt, str] = {}  # attempts that were given up and are measured all the same
        self._progress: dict[str, Progress] = {}
        self._followers: dict[str, FollowerState] = {}  # those that the engine sees
        self._heard_at: dict[str, datetime] = {}
        self._cluster = Cluster()  # of followers that answer
        for job in list(self._jobs.values()):
            if job.state is JobState.QUEUED:
                self._enqueue(job)

    # Followers that come and go

    def _see(self, present: Iterable[FollowerState]) -> None:
        """Give up those that are gone; one that is new is spoken to before it gets anything."""
        self._followers = {state.id: state for state in present}
        gone = set(self._cluster.followers) - set(self._followers)
        self._part_with({follower: f"follower {follower} is gone" for follower in gone})
        for follower in set(self._heard_at) - set(self._followers):
            del self._heard_at[follower]
        for attempt in [attempt for attempt, teller in self._told_by.items() if teller not in self._followers]:
            if not self._is_current(attempt):
                self._let_go(attempt)

    def _give_up_silent(self) -> None:
        """After they were asked: a leader that was held up itself must not blame those who wait for it."""
        silent = [follower for follower in self._cluster.followers if not self._is_heard(follower)]
        seconds = f"{self._lease.total_seconds():g} s"
        self._part_with({follower: f"follower {follower} was not heard of for {seconds}" for follower in silent})

    def _part_with(self, reasons: Mapping[str, str]) -> None:
        """All at once, so that nothing is given to one that is next to go."""
        lost: dict[str, str] = {}
        starts: dict[str, Placement] = {}
        again: list[str] = []
        for follower, reason in reasons.items():
            _log.warning("%s", reason)
            tasks, begun = turns.lost(self._cluster, follower, self._seconds())
            for task in tasks:
                if starts.pop(task.id, None) is not None:
                    again.append(task.id)
                else:
                    lost[task.id] = reason
            starts |= {placement.task.id: placement for placement in begun}
        self._start(starts.values())
        for job_id in again:
            self._enqueue(self._jobs[job_id])
        for job_id, reason in lost.items():
            self._lose(self._jobs[job_id], reason)

    def _welcome(self) -> None:
        """Let in whoever answers, with what it was given by an earlier leader.

        Not before it has stopped what was given up, nor before the others of its gang are there: until then its
        devices are not free.
        """
        inside, busy = self._cluster.followers, set(self._strays.values())
        ready = {one for one in self._followers if one not in inside and one not in busy and self._is_heard(one)}
        returning = [job for job in self._active() if job.id not in self._cluster.running]
        while alone := self._waiting_for_others(returning, ready):
            ready -= alone
        for follower in sorted(ready):
            state = self._followers[follower]
            with self._store.queue.writing(f"note follower '{follower}'") as writing:
                writing.see_follower(FollowerRow(follower, state.seen_at, state.model_dump(mode="json")))
            self._cluster.join(follower_of(state))
        for job in returning:
            if ready.intersection(job.followers):
                self._tasks[job.id] = task = self._task(job)
                followers = tuple(inside[one] for one in job.followers)
                self._cluster.start(Placement(task, followers, job.devices), self._seconds())
        self._start(turns.settle(self._cluster, [inside[one] for one in sorted(ready)], self._seconds()))

    def _waiting_for_others(self, jobs: Iterable[Job], ready: set[str]) -> set[str]:
        there = ready | self._cluster.followers.keys()
        return {one for job in jobs if not there.issuperset(job.followers) for one in job.followers} & ready

    def _is_heard(self, follower: str) -> bool:
        heard_at = self._heard_at.get(follower)
        return heard_at is not None and self._now() - heard_at <= self._lease

    # What followers are asked and tell

    def _expected(self, follower: str) -> dict[Attempt, int]:
        """What a follower may have to tell of, and up to where it was heard."""
        self._told_by |= {(job.id, job.attempt): follower for job in self._active() if follower == job.followers[0]}
        return {attempt: self._heard_of(attempt) for attempt, teller in self._told_by.items() if teller == follower}

    def _heard(self, follower: str, acknowledged: dict[Attempt, int]) -> list[Report] | None:
        try:
            return list(self._engine.poll(follower, acknowledged))
        except (FollowerGone, OSError) as error:
            _log.warning("follower %s: %s", follower, error)
            return None

    def _tell(self, order: Order) -> None:
        try:
            if order.job is None:
                self._engine.cancel(order.follower, *order.attempt)
            else:
                self._engine.begin(order.follower, assignment_of(order.job, self._lease))
        except (FollowerGone, OSError) as error:
            _log.warning("follower %s: %s", order.follower, error)

    def _forget(self, asked: Iterable[Attempt], reports: Iterable[Report]) -> None:
        """What is over and is no longer told of will never be told of again."""
        told = {(report.job_id, report.attempt) for report in reports}
        for attempt in set(asked) - told:
            if not self._is_current(attempt):
                self._let_go(attempt)

    def _let_go(self, attempt: Attempt) -> None:
        self._told_by.pop(attempt, None)
        self._acknowledged.pop(attempt, None)
        self._strays.pop(attempt, None)

    def _heard_of(self, attempt: Attempt) -> int:
        if attempt not in self._acknowledged:
            self._acknowledged[attempt] = self._store.queue.acknowledged(*attempt)
        return self._acknowledged[attempt]

    def _take(self, follower: str, report: Report) -> None:
        """Keep what a follower told, and do what follows from it."""
        attempt = (report.job_id, report.attempt)
        job = self._job_of(follower, report)
        if job is None:
            return
        self._told_by[attempt] = follower
        items = [item for item in report.items if item.number > self._heard_of(attempt)]
        if not self._is_current(attempt):
            self._keep(job, report.attempt, items, [], is_current=False)
            if any(item.kind == "ended" for item in report.items):
                self._strays.pop(attempt, None)
            else:
                self._strays[attempt] = follower
            return
        job = self._keep(job, report.attempt, items, self._events(job, items), is_current=True)
        for item in items:
            if item.record is not None:
                self._history.add(item.record.case, self._kind(follower), item.record.seconds)
        if job.state.is_active:
            self._progress[job.id] = report.progress
        else:
            self._free(job)
        if job.state is JobState.QUEUED:
            self._enqueue(job)

    def _job_of(self, follower: str, report: Report) -> Job | None:
        try:
            job = self.job(report.job_id)
            if 1 <= report.attempt <= len(job.run_ids):
                return job
        except InputError:
            pass
        if report.job_id not in self._strangers:  # nothing is acknowledged: it may be another store's
            self._strangers.add(report.job_id)
            _log.warning("follower %s tells of job %s, which this store does not know", follower, report.job_id)
        return None

    def _events(self, job: Job, items: Iterable[Item]) -> list[JobEvent]:
        """What happened to a job, seen from what its follower told just now."""
        now = self._now()
        events: list[JobEvent] = []
        if job.lease_until is None or job.lease_until - now < self._lease * (_RENEW_PART - 1) / _RENEW_PART:
            events.append(Renewed(at=now))
        for item in items:
            if item.kind == "began" and job.state is JobState.PLACED:
                events.append(Began(at=now))
            elif item.kind == "ended" and item.failure is not None and item.failure.kind is FailureKind.LOST:
                events.append(Lost(at=now, reason=item.failure.message))
            elif item.kind == "ended":
                events.append(Ended(at=now, failure=item.failure))
        return events

    def _keep(self, job: Job, attempt: int, items: list[Item], events: Iterable[JobEvent], *, is_current: bool) -> Job:
        """The job after these events, kept in one go with what was told: no item counts twice, or for nothing."""
        run_id = job.run_ids[attempt - 1]
        last = items[-1] if items else None
        with self._store.queue.writing(f"take a report on job '{job.id}'") as writing:
            for item in items:
                keep_item(writing, job, attempt, item)
            if last is not None and not writing.acknowledge(job.id, attempt, last.number):
                raise Conflict(f"a report on job '{job.id}' was taken by somebody else: is there a second leader?")
            if last is not None and not is_current:
                writing.close_run(run_id, is_whole=False)  # at once, as there may be no later word
            elif last is not None and last.kind == "ended":
                failure = last.failure
                writing.close_run(run_id, is_whole=failure is None or failure.kind is FailureKind.CASES)
            for event in events:
                job = change(job, event, lease=self._lease)
                save(writing, job, event)
        if last is not None:
            self._acknowledged[job.id, attempt] = last.number
        if is_current:
            self._remember(job)
        return job

    # What becomes of jobs

    def _look_after(self, job: Job) -> Order | None:
        """What its follower is to be told, perhaps again; one that is silent for too long is given up."""
        follower = job.followers[0]
        if job.lease_until is not None and job.lease_until < self._now():
            self._free(job)
            self._lose(job, f"follower {follower} was not heard of for {self._lease.total_seconds():g} s")
        elif follower in self._followers and (job.stop_asked or job.state is JobState.PLACED):
            return Order(follower, (job.id, job.attempt), None if job.stop_asked else job)
        return None

    def _lose(self, job: Job, reason: str) -> None:
        """An attempt came to nothing: what it measured stays, and the job waits again if it may."""
        event = Lost(at=self._now(), reason=reason)
        changed = change(job, event)
        with self._store.queue.writing(f"change job '{job.id}'") as writing:
            writing.close_run(job.run_ids[-1], is_whole=False)
            save(writing, changed, event)
        self._remember(changed)
        self._tasks.pop(job.id, None)
        self._progress.pop(job.id, None)
        if changed.state is JobState.QUEUED:
            self._enqueue(changed)

    def _is_current(self, attempt: Attempt) -> bool:
        """Whether an attempt is the one that decides about its job."""
        job = self._jobs.get(attempt[0])
        return job is not None and job.state.is_active and job.attempt == attempt[1]

    def _active(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.state.is_active]

    def _enqueue(self, job: Job) -> None:
        self._tasks[job.id] = task = self._task(job)
        self._start(turns.submitted(self._cluster, task, self._seconds()))

    def _start(self, placements: Iterable[Placement]) -> None:
        """Keep where jobs go; the followers are told at the next look, again and again until they have heard."""
        for placement in placements:
            job, now = self._jobs[placement.task.id], self._now()
            followers = tuple(follower.id for follower in placement.followers)
            run_id = f"{now:%Y%m%d-%H%M%S}-{job.id}-{job.attempt + 1}"
            self._change(job, Placed(at=now, followers=followers, devices=placement.devices, run_id=run_id))

    def _free(self, job: Job) -> None:
        self._tasks.pop(job.id, None)
        self._progress.pop(job.id, None)
        if job.id in self._cluster.running:
            self._start(turns.ended(self._cluster, job.id, self._seconds()))

    def _change(self, job: Job, event: JobEvent) -> Job:
        """The job after the event, kept before anybody acts on it."""
        changed = change(job, event, lease=self._lease)
        with self._store.queue.writing(f"change job '{job.id}'") as writing:
            save(writing, changed, event)
        self._remember(changed)
        return changed

    def _remember(self, job: Job) -> None:
        if job.state.is_final:
            self._jobs.pop(job.id, None)
        else:
            self._jobs[job.id] = job

    def _task(self, job: Job) -> Task:
        return task_of(job, self._history, job.needs.gpu or CPU)

    def _kind(self, follower: str) -> str:
        state = self._followers.get(follower)
        return state.gpus[0] if state is not None and state.gpus else CPU

    def _seconds(self) -> float:
        return self._now().timestamp()

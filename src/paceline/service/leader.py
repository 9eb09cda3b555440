"""The leader: takes jobs, places them on followers, and brings what they measure into the store.

The store is the truth. A change is stored before it is acted on, and acting twice does no harm, so that a leader that
was killed at any moment goes on from the store. One whose store failed does the same: it drops its state, and reads it
again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from heapq import nsmallest

from paceline.core.errors import InputError, StoreError
from paceline.core.quantity import show_duration
from paceline.service.admission import Quotas, check_quotas, most_running
from paceline.service.engines.base import AttemptProgress, AttemptReport, Engine, FollowerState
from paceline.service.follower_calls import Attempts, FollowerCalls, Order, Presence, next_orders
from paceline.service.idle_checks import IdleChecks
from paceline.service.job_store import JobStore, Policy, Pruning, ReportRefused
from paceline.service.jobs import LEASE, Cancelled, FailureKind, Job, JobFailure, JobState, Lost, Placed, Refused
from paceline.service.placement import DurationPredictor, is_unheard_of, scheduler_follower, why_it_waits
from paceline.service.quiet_log import QuietLog
from paceline.service.scheduler import events
from paceline.service.scheduler.state import ClusterState, Demand, JobPlacement, Needs
from paceline.store.queue import FollowerRow, QuarantineRow
from paceline.store.store import Store

_NO_QUOTAS = Quotas()
_FRESH = 1.0  # seconds for which quotas that were read are used
STALE = 10.0  # seconds after which what the leader knows is older than it should be
DEAD = 60.0  # seconds after which a leader whose thread does not go on has to be started again
WATCHED = 300  # looks at a running job that are kept, about one a second
PAUSE = 0.2  # seconds between two looks at the followers
_SET_SECONDS = 1.0  # by which a clock that runs differs from one that was set, between two looks
PATIENCE = timedelta(hours=24)  # that a job waits for a machine such as was never seen

_log = logging.getLogger(__name__)


class Leader:
    """One leader on one store; a second one on the same store is noticed and refused by the store."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        lease: timedelta = LEASE,
        patience: timedelta = PATIENCE,
        retention: Policy | None = None,
        elapsed: Callable[[], float] | None = None,
        idle_checks: timedelta | None = None,
    ) -> None:
        """`elapsed` seconds never jump; without it `now` does not either."""
        self._store = store
        self._pruning = Pruning(store, retention or Policy())
        self._engine = engine
        self._now = now
        self._elapsed = elapsed or (lambda: now().timestamp())
        self._clock_error = self._seconds() - self._elapsed()
        self._lease = lease
        self._patience = patience
        self._idle_checks = IdleChecks(idle_checks)
        self._leads_since = now()
        self._quiet = QuietLog(_log)
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._closing = False
        self._is_leading = threading.Lock()
        self._calls = FollowerCalls(engine)
        self._jobs = JobStore(store, now, lease)
        self._presence = Presence(now, lease)
        self._durations = DurationPredictor()
        self._durations.load(store)
        self.trouble = ""  # why nothing is accepted just now
        self._quotas_at = time.monotonic()
        self._looked_at = self._turned_at = time.monotonic()
        self._start_over()

    # Requests of people

    def submit(self, job: Job, quotas: Quotas = _NO_QUOTAS) -> tuple[Job, bool]:
        """Take a job, if its owner may have it; the same id again gives the one that was taken, and False."""
        with self._lock:
            if quotas != _NO_QUOTAS and self._store.queue.job(job.id) is None:
                check_quotas(job, quotas, self._store)
            if not self._jobs.submit(job):
                earlier = self.job(job.id)
                if (earlier.suite, earlier.overrides, earlier.only) != (job.suite, job.overrides, job.only):
                    message = f"job '{job.id}' exists already with another suite; give this one an id of its own"
                    raise InputError("duplicate-job", message, key="id", value=job.id)
                return earlier, False
            with self._or_start_over():  # the job is stored, whatever happens to its placement
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
            job = self._jobs.change(job, Cancelled(at=self._now(), by=by))
            if job.state.is_final and self._is_fresh and job_id in self._cluster.demands:
                with self._or_start_over():
                    self._store_placements(events.cancelled(self._cluster, job_id, self._seconds()))
        self._woken.set()
        return job

    def retry_quarantined(self, quarantine_id: int) -> QuarantineRow:
        """Store what could not be stored before; InputError says why it still cannot be."""
        with self._lock:
            return self._jobs.retry(quarantine_id)

    def drop_quarantined(self, quarantine_id: int) -> QuarantineRow:
        """Delete what could not be stored."""
        with self._lock:
            return self._jobs.drop(quarantine_id)

    def job(self, job_id: str) -> Job:
        """A job as it is now."""
        with self._lock:
            return self._jobs.find(job_id)

    def progress(self, job_id: str) -> AttemptProgress:
        """What a running job is doing."""
        with self._lock:
            return self._progress.get(job_id, AttemptProgress())

    def watched(self, job_id: str) -> list[tuple[datetime, AttemptProgress]]:
        """What a running job did lately, the oldest first: each time its figures were new."""
        with self._lock:
            return list(self._watched.get(job_id, ()))

    def followers(self) -> list[FollowerState]:
        """Who is there now."""
        with self._lock:
            return list(self._presence.here.values())

    def recorded(self) -> dict[str, FollowerState]:
        """Everyone that was ever let in, as it was then."""
        with self._lock:
            return dict(self._presence.recorded)

    def refused(self) -> list[FollowerState]:
        """Who is there and not believed, so that nothing is given to it or taken from it."""
        with self._lock:
            return list(self._presence.refused.values())

    def expected_end(self, job_id: str) -> datetime | None:
        """When a running job is expected to be through."""
        with self._lock:
            followers = self._cluster.running.get(job_id, ())
            ends = [follower.running[job_id].ends_at for follower in followers]
        return datetime.fromtimestamp(max(ends), UTC) if ends else None

    def waiting(self, limit: int) -> list[tuple[Job, float]]:
        """The jobs that wait, in their order, as far as one machine could run all of them, with predicted seconds."""
        now = self._seconds()

        def rank(demand: Demand) -> tuple[float, ...]:
            due_at = self._cluster.queue_of(demand.needs).due_at(demand)
            return (0, due_at) if due_at <= now else (1, -demand.priority, demand.seconds)

        with self._lock:
            first = nsmallest(limit, self._cluster.waiting, key=rank)
            jobs = self._jobs.unfinished
            return [(jobs[demand.id], demand.seconds) for demand in first if demand.id in jobs]

    @property
    def unfinished_count(self) -> int:
        """How many jobs wait or run."""
        return len(self._cluster.demands)

    def why_it_waits(self, job_id: str) -> str:
        """Why a job that waits cannot run on the machines that are here; empty if it only waits for its turn."""
        with self._lock:
            demand = self._cluster.demands.get(job_id)
            job = self._jobs.unfinished.get(job_id)
            if demand is None or job is None or job.state is not JobState.QUEUED:
                return ""
            if job_id in self._cluster.held.get(demand.owner, {}):
                most = self._cluster.most_running.get(demand.owner, 0)
                return f"as many jobs of '{demand.owner}' run as may at once, {most}"
            if self._cluster.can_run(demand.needs):
                return ""
            if demand.needs not in self._unmet:
                here = [state for name, state in self._presence.here.items() if name in self._cluster.followers]
                self._unmet[demand.needs] = why_it_waits(job.needs, here, self._presence.recorded.values())
            return self._unmet[demand.needs]

    def drained(self) -> dict[str, str]:
        """Followers that start nothing long, each with the job that they are kept free for."""
        with self._lock:
            reserved = self._cluster.reserved
            return {follower.id: follower.reservation.demand.id for follower in reserved if follower.reservation}

    # What happens by itself

    def run(self) -> None:
        """Lead until closed."""
        with self._is_leading:
            self._looked_at = time.monotonic()
            while not self._closing:
                self._turned_at = time.monotonic()
                try:
                    self.step()
                    self.trouble = ""
                except StoreError as error:  # a full disk, a lost database: nothing is lost, nothing is taken
                    self._is_fresh = False
                    self.trouble = str(error)
                    self._quiet.warning(str(error))
                    # What is measured goes on while the store takes nothing: followers are polled, and keep items.
                    with self._lock:
                        polled = self._attempts.expected(self._presence.here, with_store=False)
                    self._calls.poll(polled)
                except Exception as error:  # a defect must not end the one thread that brings results in
                    self._is_fresh = False
                    self.trouble = f"the leader met a defect of its own: {type(error).__name__}: {error}"
                    self._quiet.warning(self.trouble, error)
                self._woken.wait(PAUSE)
                self._woken.clear()

    def close(self) -> None:
        """Stop leading; what runs goes on by itself and reports to the next leader."""
        self._closing = True
        self._woken.set()
        with self._is_leading:  # nobody is called any more
            self._calls.close()
            self._engine.close()

    def step(self) -> None:
        """Look once at every follower, take their reports, and place what can be placed.

        Followers are called without the lock: one that is slow to answer delays nobody who asks for something.
        """
        present = self._engine.followers()
        with self._lock:
            if not self._is_fresh:
                self._start_over()
            # Give up those that are gone; one that is new has to answer before it gets anything.
            self._presence.see(present)
            for follower in self._presence.refused:
                self._quiet.warning(self._presence.refusal(follower))
            inside = self._cluster.followers
            self._remove_followers(self._presence.leaving(inside, [one for one in inside if not inside[one].running]))
            self._attempts.tidy(self._presence.here)
            expected = self._attempts.expected(self._presence.here)
        answers = self._calls.poll(expected)
        with self._lock:
            if not self._is_fresh:  # since a change that was requested meanwhile was not stored
                return
            for follower in answers:
                self._presence.hear(follower)
            if self._is_clock_set():
                return
            # After they were polled: a leader that was held up itself must not blame those who wait for it. And before
            # their reports are taken: a gang that lost one of them must not be placed there once more.
            self._remove_followers(self._presence.silent(self._cluster.followers))
            for follower, reports in answers.items():
                self._attempts.forget(follower, expected[follower], reports)
                for report in reports:
                    try:
                        self._take_report(follower, report)
                    except ReportRefused as error:  # nothing of it is stored; the others go on
                        self._quiet.warning(str(error))
            self._add_followers()
            self._give_up_stuck()
            self._take_quotas()
            for check in self._idle_checks.due(self._cluster, self._presence.here, self._now()):
                self.submit(check)
            orders: list[Order] = []
            for job in self._jobs.active():
                if self._jobs.unfinished.get(job.id) is not job:  # lost with its follower just now
                    continue
                more, lost = next_orders(job, self._attempts, self._presence, self._lease, self._now())
                first = job.followers[0]
                if lost and first in self._cluster.followers and lost == self._presence.silence(first):
                    # A lease is a little older than the last answer: nothing is given to it before it answers again.
                    self._presence.doubt(first)
                    self._remove_followers({first: lost})
                elif lost:
                    self._lose(job, lost, self._attempts.trouble(job)[1])
                orders += more
            orders += [Order(follower, attempt, None) for follower, attempt in sorted(self._attempts.strays)]
        refused = self._calls.send(orders)
        with self._lock:
            self._attempts.refused_orders = refused
            self._looked_at = time.monotonic()
        self._pruning.look(self._now())

    def _is_clock_set(self) -> bool:
        """Whether the clock was set: leases are then counted anew, as after a restart, and nobody is blamed for it."""
        error = self._seconds() - self._elapsed()
        jump, self._clock_error = error - self._clock_error, error
        if abs(jump) < _SET_SECONDS:
            return False
        _log.warning("the clock was set by %+.0f s: leases are counted anew", jump)
        self._is_fresh = False
        return True

    @property
    def age(self) -> float:
        """Seconds since it last knew of its followers and had their reports in the store; 0 before it leads."""
        return time.monotonic() - self._looked_at if self._is_leading.locked() else 0.0

    @property
    def is_live(self) -> bool:
        """Whether its own thread goes on, be it only to find that the store is away."""
        return not self._is_leading.locked() or time.monotonic() - self._turned_at < DEAD

    @property
    def is_ready(self) -> bool:
        """Whether it takes jobs and knows its followers."""
        return self.is_live and not self.trouble and self.age < STALE

    @property
    def edition(self) -> tuple[int, float, str]:
        """Another one after every change of a job and every look at the followers."""
        return self._jobs.writes, self._looked_at, self.trouble

    @property
    def leases(self) -> list[datetime]:
        """Until when each job that a follower has is its own."""
        with self._lock:
            return [job.lease_until for job in self._jobs.active() if job.lease_until is not None]

    @property
    def store_writes(self) -> tuple[int, float]:
        """How many changes of jobs were stored, and how many seconds that took in all."""
        return self._jobs.writes, self._jobs.write_seconds

    @contextmanager
    def _or_start_over(self) -> Iterator[None]:
        """What follows from a change that is stored; if that fails, the next look makes up for it."""
        try:
            yield
        except StoreError as error:
            self._is_fresh = False
            self._quiet.warning(str(error))

    def _start_over(self) -> None:
        """Read the state from the store."""
        self._jobs.load()
        self._is_fresh = True
        self._attempts = Attempts(self._jobs, self._lease)
        self._progress: dict[str, AttemptProgress] = {}
        self._watched: dict[str, deque[tuple[datetime, AttemptProgress]]] = {}
        self._presence.start_over(FollowerState.model_validate(row.document) for row in self._store.queue.followers())
        self._unmet: dict[Needs, str] = {}  # why jobs of such needs wait, while the followers are the same
        self._cluster = ClusterState()  # of followers that answer
        self._cluster.most_running = most_running(self._store.queue.tokens())
        for job in list(self._jobs.unfinished.values()):
            if job.state is JobState.QUEUED:
                self._enqueue(job)

    # Followers that come and go

    def _remove_followers(self, reasons: Mapping[str, str]) -> None:
        """All at once, so that nothing is given to one that is next to go."""
        why_lost: dict[str, str] = {}
        for follower, reason in reasons.items():
            self._quiet.warning(reason)
            self._unmet.clear()
            going = self._cluster.followers[follower]
            for job_id in list(going.running):
                job = self._jobs.unfinished[job_id]
                # Gangs of a follower that goes end on the others as well; those are not free before they have stopped.
                if any(one.id not in reasons for one in self._cluster.running[job_id]):
                    self._cluster.shrink(job_id, going)
                    self._attempts.blame((job_id, job.attempt), reason)
                else:
                    why_lost.setdefault(job_id, self._attempts.trouble(job)[0] or reason)
        demands, placements = events.lost(self._cluster, reasons, self._seconds())
        self._store_placements(placements)
        for demand in demands:
            self._lose(self._jobs.unfinished[demand.id], why_lost[demand.id])

    def _add_followers(self) -> None:
        """Let in whoever answers, with what it was given by an earlier leader.

        Not before it has stopped what was given up, nor before the others of its gang are there: until then its
        devices are not free.
        """
        inside = self._cluster.followers
        returning = [job for job in self._jobs.active() if job.id not in self._cluster.running]
        ready = self._presence.newcomers(inside, self._attempts.busy, [job.followers for job in returning])
        newcomers = [self._presence.here[follower] for follower in sorted(ready)]
        if newcomers:
            with self._store.queue.writing(f"note {len(newcomers)} followers") as writing:
                for state in newcomers:
                    writing.see_follower(FollowerRow(state.id, state.seen_at, state.model_dump(mode="json")))
        for state in newcomers:
            self._cluster.join(scheduler_follower(state))
            self._presence.recorded[state.id] = state
            self._unmet.clear()
        for job in returning:
            if ready.intersection(job.followers):
                followers = tuple(inside[one] for one in job.followers)
                demand = self._durations.demand(job, self._presence.recorded.values())
                self._cluster.start(JobPlacement(demand, followers, job.devices), self._seconds())
        self._store_placements(events.settle(self._cluster, [inside[one] for one in sorted(ready)], self._seconds()))

    # Reports of followers

    def _take_report(self, follower: str, report: AttemptReport) -> None:
        """Store a report, and do what follows from it."""
        news = self._attempts.take(follower, report)
        if news is None:
            return
        job, items = news
        if items and items[-1].kind == "ended" and set(self._attempts.going(job, self._presence.is_there)) - {follower}:
            items.pop()  # the others of its gang have not ended, so that their devices are not free
        job = self._jobs.take_report(
            job, report.attempt, follower, items, self._attempts.events(job, items, self._now())
        )
        # Learn from the cases that have ended, and correct when the job is expected to end.
        machine = self._presence.recorded.get(follower)
        gpus = machine.gpus if machine is not None else ()
        is_news = self._durations.observe(job, gpus, items) or job.id not in self._progress
        if is_news and job.state is JobState.RUNNING and job.id in self._cluster.running:
            remaining = self._durations.remaining(job, gpus, report.progress.cases_done)
            if remaining is not None:
                self._cluster.retime(job.id, self._seconds() + remaining)
        if job.state.is_active:
            self._watch(job.id, report.progress)
        else:
            self._free(job)
        if job.state is JobState.QUEUED:
            self._enqueue(job)

    def _watch(self, job_id: str, progress: AttemptProgress) -> None:
        if progress.figures and self._progress.get(job_id) != progress:
            self._watched.setdefault(job_id, deque(maxlen=WATCHED)).append((self._now(), progress))
        self._progress[job_id] = progress

    # Changes of jobs

    def _give_up_stuck(self) -> None:
        """End what has waited long enough for a machine such as was never seen."""
        since = self._now() - self._patience
        if since < self._leads_since:  # before that nobody could come
            return
        for demand in self._cluster.stuck():
            job = self._jobs.unfinished[demand.id]
            if job.state_at <= since and is_unheard_of(job.needs, self._presence.recorded.values()):
                waited = show_duration(self._patience.total_seconds())
                message = f"{self.why_it_waits(job.id)}; none that could was seen for {waited}"
                failure = JobFailure(kind=FailureKind.UNPLACEABLE, message=message)
                self._jobs.change(job, Refused(at=self._now(), failure=failure))
                self._store_placements(events.cancelled(self._cluster, job.id, self._seconds()))

    def _take_quotas(self) -> None:
        """Look once a second at what owners may have running: another process may change that."""
        if time.monotonic() - self._quotas_at > _FRESH:
            limits = most_running(self._store.queue.tokens())
            self._quotas_at = time.monotonic()
            if limits != self._cluster.most_running:
                self._store_placements(events.limited(self._cluster, limits, self._seconds()))

    def _lose(self, job: Job, reason: str, cause: FailureKind = FailureKind.LOST) -> None:
        """An attempt came to nothing: what it measured stays, and the job waits again if it may."""
        self._free(job)
        changed = self._jobs.change(job, Lost(at=self._now(), reason=reason, cause=cause))
        if changed.state is JobState.QUEUED:
            self._enqueue(changed)

    def _enqueue(self, job: Job) -> None:
        demand = self._durations.demand(job, self._presence.recorded.values())
        self._store_placements(events.submitted(self._cluster, demand, self._seconds()))

    def _store_placements(self, placements: Iterable[JobPlacement]) -> None:
        """Store where jobs go; the followers get their orders at the next look, again until they take them."""
        for placement in placements:
            job, now = self._jobs.unfinished[placement.demand.id], self._now()
            followers = tuple(follower.id for follower in placement.followers)
            run_id = f"{now:%Y%m%d-%H%M%S}-{job.id}-{job.attempt + 1}"
            self._jobs.change(job, Placed(at=now, followers=followers, devices=placement.devices, run_id=run_id))

    def _free(self, job: Job) -> None:
        self._progress.pop(job.id, None)
        self._watched.pop(job.id, None)
        self._durations.forget(job.id)
        if job.id in self._cluster.running:
            self._store_placements(events.ended(self._cluster, job.id, self._seconds()))

    def _seconds(self) -> float:
        return self._now().timestamp()

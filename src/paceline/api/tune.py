"""Measures what a search for the best setting asks for: every trial is a stored case, and a tuning can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.analysis.tune import LENGTHS, PROOF, Objective, Trial, TuneTrial, Tuning, search, space_of
from paceline.api.running import finish
from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.record import Record
from paceline.core.run import Run, RunStatus
from paceline.runner.fork_client import WarmServer
from paceline.runner.run import Listener, SuiteRun

if TYPE_CHECKING:
    from paceline.store.store import Store


class _KeptServer(WarmServer):
    """A warm server that outlives a batch of trials: each would otherwise pay for the imports again."""

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class Tuner:
    """Settings of one benchmark, and the run that their trials are stored in."""

    store: Store
    run: Run  # that the store has begun
    settings: Sequence[Case]
    objective: Objective
    rounds: int
    seed: int
    listener: Listener = field(default_factory=Listener)
    on_batch: Callable[[Sequence[Trial]], None] = lambda _: None
    records: dict[int, Record] = field(default_factory=dict)  # of trials that were made before, by their number
    trials: list[TuneTrial] = field(default_factory=list)

    def go(self) -> Tuning:
        """Make trials until the search has ended; an interrupt is passed on when the store knows of it."""
        space, labels = space_of(self.settings)
        searching = search(space, self.rounds, self.seed)
        warm = _KeptServer()
        status: RunStatus = "interrupted"
        try:
            batch = next(searching)
            while True:
                batch = searching.send([one.result for one in self._measured(batch, warm)])
        except StopIteration:
            status = "finished"
        finally:
            warm.close()
            self.listener.close()
            finish(self.store, self.run.id, status, self.listener)
        return Tuning(space, labels, self.trials, self.objective)

    def _measured(self, batch: Sequence[Trial], warm: WarmServer) -> list[TuneTrial]:
        first = len(self.trials)
        cases = [self._case(trial, first + place) for place, trial in enumerate(batch)]
        self._plan(cases)
        attempts = {index: record.attempt for index, record in self.records.items()}
        todo = [case for case in cases if case.index not in self.records or not self.records[case.index].is_final]
        self.on_batch(batch)
        if todo:
            of_batch = None if batch[0].rung == PROOF else warm  # repetitions have processes of their own
            SuiteRun(self.run, todo, self.store, self.listener, attempts, warm=of_batch).go()
            stored = self.store.load(self.run.id).records
            self.records |= {record.case.index: record for record in stored}
        made = [TuneTrial(t, self.records[c.index], self.objective) for t, c in zip(batch, cases, strict=True)]
        self.trials += made
        return made

    def _case(self, trial: Trial, index: int) -> Case:
        setting = self.settings[trial.setting]
        benchmark = BENCHMARKS.get(setting.benchmark)
        whole = benchmark.Parameters.read(setting.parameters)
        parameters = benchmark.shortened(whole, LENGTHS[min(trial.rung, PROOF - 1)])
        return setting.model_copy(
            update={
                "index": index,
                "repeat": trial.repeat,
                "parameters": parameters.model_dump(mode="json"),
                "expected": benchmark.expected_seconds(parameters),
                "sends": benchmark.sends(parameters),
            }
        )

    def _plan(self, cases: Sequence[Case]) -> None:
        """Have the store know of them; what is known already must be the same."""
        known = {case.index: case for case in self.run.cases}
        for case in cases:
            if case.index in known and known[case.index].key != case.key:
                message = (
                    f"trial {case.index + 1} of run {self.run.id} was of {known[case.index].title}, and is now of "
                )
                message += f"{case.title}: give the same settings, objective, rounds and seed as before"
                raise InputError("other-tuning", message, key="--resume", value=self.run.id)
        new = [case for case in cases if case.index not in known]
        if new:
            self.store.plan(self.run.id, new)
            self.run.cases.extend(new)

"""A session of pytest as a run of the store: a case for each test that measures, kept as soon as it is measured."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pytest

from paceline.analysis.compare.verdicts import Limit, Side, undecided, violations
from paceline.api.comparison import compared
from paceline.api.result import CaseResult
from paceline.api.running import check_tag, new_run
from paceline.api.sources import read_sources
from paceline.benchmarks._function import TIME
from paceline.benchmarks._micro.parameters import MicroParameters
from paceline.benchmarks._micro.session import MicroSession
from paceline.core.benchmark import Context, usual_description
from paceline.core.case import Case
from paceline.core.device import HOST
from paceline.core.errors import InputError, StoreError
from paceline.core.record import Attempt, Outcome, Record
from paceline.core.suite import Here
from paceline.core.text import clean_all
from paceline.devices import counts, open_device
from paceline.report.compare import document as compare_pages
from paceline.report.compare.words import undecided_words, violation_words
from paceline.report.render import terminal
from paceline.report.run.document import show
from paceline.runner.rank import explain
from paceline.store import open_store

if TYPE_CHECKING:
    from paceline.analysis.compare.verdicts import Comparison
    from paceline.core.run import Run, RunRecords
    from paceline.report.document import Document

NAME = "pytest"  # of the run
LAST = "last"
_PERCENT = re.compile(r"(?:(?:mean|median):)?(\d+(?:\.\d+)?)%")


def check_options(option: Any) -> None:
    """Refuse limits that cannot be read, and a tag that nobody could type."""
    for text in option.paceline_compare_fail:
        limit_of(text)
    if option.paceline_tag is not None:
        check_tag(option.paceline_tag, "--paceline-tag")


def limit_of(text: str) -> Limit:
    """A limit as `paceline compare --fail-on` takes it, or as pytest-benchmark does: `5%`, `mean:5%`, `median:5%`."""
    matched = _PERCENT.fullmatch(text.strip())
    if matched:
        text = f"{TIME.name}>{1 + float(matched[1]) / 100:g}"
    elif ":" in text:
        message = f"--paceline-compare-fail {text}: write how much slower a test may be, as in 5%, or time>1.05"
        raise InputError("not-a-limit", message, key="--paceline-compare-fail", value=text)
    return Limit.parse(text)


class MeasuringSession:
    """The run of a session."""

    def __init__(self, option: Any, tests: Sequence[str]) -> None:
        self._option = option
        self._store = open_store(option.paceline_store)
        self._parameters = MicroParameters.read({"budget": option.paceline_budget}, is_typed=True)
        self._before = self._run_before()
        tags = [option.paceline_tag] if option.paceline_tag else []
        cases = [self._case(index, test) for index, test in enumerate(tests)]
        self.run: Run = new_run(NAME, cases, None, tags, [NAME, *sys.argv[1:]])
        self._cases = dict(zip(tests, cases, strict=True))
        self._troubles: list[str] = []
        self._store.begin(self.run)

    def measure(self, test: str, call: partial[Any]) -> CaseResult:
        """Measure a test's function, and keep its record."""
        case = self._cases[test]
        begun, started_at = time.monotonic(), datetime.now(UTC)
        try:
            call()  # if it uses torch, that is imported now; a first call is none to be measured anyway
            case = case.model_copy(update={"target": _target()})
            device = open_device(case.target)
            with MicroSession(self._parameters, Context(case=case), device) as session:
                point = session.time(call, TIME, each=device.kind.is_accelerator)
        except pytest.skip.Exception:
            raise
        except BaseException as error:
            outcome, cause = explain(error)
            self._keep(case, started_at, begun, outcome=outcome, cause=cause)
            raise
        function = call.func
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
        result = session.result([point.time], {"callable": name, "calls_per_sample": point.calls})
        conditions = result.facts.pop("conditions", {})
        record = self._keep(
            case,
            started_at,
            begun,
            outcome=Outcome.OK,
            measurements=result.measurements,
            facts=clean_all(result.facts),
            warnings=result.warnings,
            conditions=clean_all(conditions),
        )
        return CaseResult(record)

    def finish(self) -> bool:
        """End the run; whether a limit is crossed."""
        try:
            self._store.finish(self.run.id, "finished")
        except StoreError as error:
            self._troubles.append(str(error))
        self.comparison  # noqa: B018  (reads the store, which is closed now)
        self.records  # noqa: B018
        self._store.close()
        return bool(self.comparison and violations(self.comparison, self._limits))

    def text(self, width: int) -> str:
        """What a person reads at the end."""
        written = io.StringIO()
        console = terminal.open_console(written)
        console.width = width
        show(self.records, console)
        lines = [written.getvalue().rstrip(), f"Run:    {self.run.id}"]
        if self.comparison is not None:
            lines += ["", f"Compared with {self._before}", _rendered(compare_pages.document(self.comparison), width)]
            crossed = violations(self.comparison, self._limits)
            is_open = undecided(self.comparison, self._limits)
            lines += [f"FAILED: {violation_words(one)}" for one in crossed]
            lines += [f"cannot decide {undecided_words(one)}" for one in is_open]
        elif self._option.paceline_compare and self._before is None:
            lines += ["", "There is no earlier run of pytest in the store to compare with."]
        return "\n".join([*lines, *self._troubles])

    @cached_property
    def records(self) -> RunRecords:
        """What was measured."""
        return self._store.load(self.run.id)

    @cached_property
    def comparison(self) -> Comparison | None:
        """With the run that was asked for; None where there is none."""
        if self._before is None:
            return None
        store = self._option.paceline_store
        sides = [*read_sources([self._before], store), Side(self.run.id, (self.records,))]
        also = [limit.metric for limit in self._limits if limit.metric != "*"]
        try:
            return compared([self._before, self.run.id], sides, store, also=also)
        except InputError as error:  # no test in common, for example: what was measured stands
            self._troubles.append(f"not compared: {error}")
            return None

    @property
    def _limits(self) -> list[Limit]:
        return [limit_of(text) for text in self._option.paceline_compare_fail]

    def _run_before(self) -> str | None:
        """The run to compare with; an unknown one is refused before anything is measured."""
        given = self._option.paceline_compare
        if given is None:
            return None
        if given != LAST:
            self._store.find_runs(given)
            return str(given)
        return next((row.id for row in self._store.runs(limit=None) if row.name == NAME), None)

    def _case(self, index: int, test: str) -> Case:
        parameters = {"function": test, **self._parameters.model_dump(mode="json")}
        return Case(index=index, benchmark=NAME, parameters=parameters, title=test, target=HOST, category="other")

    def _keep(self, case: Case, started_at: datetime, begun: float, **more: Any) -> Record:
        seconds = time.monotonic() - begun
        attempt = Attempt(run_id=self.run.id, case=case, started_at=started_at, seconds=seconds, **more)
        record = Record(**{name: getattr(attempt, name) for name in Attempt.model_fields})
        description = usual_description(record, TIME.name)
        record = record.model_copy(update={name: getattr(description, name) for name in type(description).model_fields})
        try:
            self._store.add(record)
        except StoreError as error:  # which says where the record is now
            self._troubles.append(str(error))
        return record


def _target() -> str:
    """An accelerator, if there is one that the function may have used: calls are waited for there."""
    return Here(devices=counts()).resolve("auto")[0] if "torch" in sys.modules else HOST


def _rendered(document: Document, width: int) -> str:
    written = io.StringIO()
    console = terminal.open_console(written)
    console.width = width
    terminal.show(document, console)
    return written.getvalue().rstrip()

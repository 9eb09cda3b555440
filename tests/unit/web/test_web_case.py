"""The page of a case, and the form that runs it again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case
from paceline.core.run import Run
from paceline.core.suite import Suite, expand
from paceline.runner.suite_file import load_suite
from paceline.service import admission
from paceline.service.jobs import MachineNeeds
from paceline.web import form_fields
from paceline.web.form_fields import groups_of, read_parameters
from support.records import STARTED, sample_run


@pytest.fixture
def nightly(visited: Any) -> Any:
    for day in range(3):
        records, run_id = sample_run(), f"run-{day}"
        started = STARTED + timedelta(days=day)
        visited.store.begin(
            records.run.model_copy(update={"id": run_id, "status": "running", "ended_at": None, "started_at": started})
        )
        for record in records.records:
            visited.store.add(record.model_copy(update={"run_id": run_id}))
        visited.store.finish(run_id)
    return visited


def test_a_case_has_its_samples_and_its_history(nightly: Any) -> None:
    page = nightly.page("/runs/run-1/cases/0")
    assert "train gpt2-small bf16: throughput" in page
    assert "sample, in the order taken" in page  # the chart of the samples
    assert "The same case in other runs" in page and "too few runs (of 6)" in page
    for run in ("run-0", "run-2"):
        assert f'href="/runs/{run}/cases/0"' in page
    assert 'href="/runs/run-1/cases/1" rel="next"' in page and 'rel="prev"' not in page
    assert any(len(one["samples"]) > 1 for one in nightly.json("/runs/run-1/cases/0")["measurements"])


def test_a_case_that_failed_says_why(nightly: Any) -> None:
    page = nightly.page("/runs/run-1/cases/7")
    assert "the device has 139.8 GiB" in page and "torch.OutOfMemoryError" in page
    assert "No other run measured it" in page


def test_there_is_no_page_of_a_case_that_is_not_there(nightly: Any) -> None:
    assert nightly.get("/runs/run-1/cases/99").status_code == 404
    assert nightly.get("/runs/nobody/cases/0").status_code == 404


def test_a_report_leads_to_its_cases(nightly: Any) -> None:
    page = nightly.page("/runs/run-1")
    for index in range(9):
        assert f'href="/runs/run-1/cases/{index}"' in page


def test_a_case_is_run_again_by_a_form_that_is_filled_in(nightly: Any) -> None:
    page = nightly.page("/submit?run=run-1&case=0")
    assert 'name="kind" value="benchmark"' in page and 'name="benchmark" value="train"' in page
    assert 'name="p.model" value="gpt2-small"' in page
    assert 'name="p.precision" value="bf16" checked' in page and 'value="fp32" checked' not in page
    assert '<option value="NVIDIA H200" selected>NVIDIA H200 (not here)' in page
    assert nightly.json("/submit?run=run-1&case=0")["values"]["gpus"] == "1"
    assert nightly.get("/submit?run=run-1&case=99").status_code == 400


def test_a_whole_run_is_run_again_as_a_suite(nightly: Any) -> None:
    filled = nightly.json("/submit?run=run-1")
    assert filled["kind"] == "yaml" and filled["values"]["gpus"] == "2"
    suite = Suite.read(admission.read_document(filled["values"]["yaml"], "the suite"), "again", origin="network")
    assert len(suite.cases) == 9


CASES = [
    case
    for name in ("quick", "serving-quick")
    for case in expand(load_suite(name), BENCHMARKS.registry().get, MachineNeeds().here())
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.benchmark} {case.title}")
def test_what_is_run_again_is_the_same_case(case: Case) -> None:
    run = Run(id="run", name="again", started_at=STARTED, version="1", cases=[case])
    document = admission.read_document(form_fields.suite_text(run, [case]), "the suite")
    suite = Suite.read(document, "again")
    (again,) = expand(suite, BENCHMARKS.registry().get, MachineNeeds().here())
    assert again.parameters == case.parameters
    typed = form_fields.form_values(case)
    known = {entry.name for group in groups_of(BENCHMARKS.get(case.benchmark).Parameters) for entry in group.entries}
    assert typed.keys() <= known
    assert read_parameters(typed, BENCHMARKS.get(case.benchmark).Parameters)[1] == {}


def test_repetitions_are_one_entry() -> None:
    case = CASES[0]
    run = Run(id="run", name="again", started_at=STARTED, version="1")
    cases = [case.model_copy(update={"index": place, "repeat": place + 1}) for place in range(3)]
    (entry,) = admission.read_document(form_fields.suite_text(run, cases), "the suite")["cases"]
    assert entry["repeat"] == 3

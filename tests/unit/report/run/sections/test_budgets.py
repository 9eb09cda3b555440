"""The budget of a step in the report of a run: of one traced case in full, of several folded, and never twice."""

from __future__ import annotations

import io

from rich.console import Console

from paceline.core.record import Measurement, Record
from paceline.core.subject import StepTrace
from paceline.core.trace_signs import Sign, StepDetails
from paceline.report.run.document import show, to_html, to_markdown
from support.profiled import gpu_spent
from support.records import STEP_TIME, case, record, run_of

HEADINGS = ("Budget of a step", "What takes longest", "What would make it faster")
CAST = Sign(kind="cast", calls=2, seconds=1e-5, detail="fp32 to fp64", where="model.py:3 (forward)")


def traced(index: int, name: str) -> Record:
    trace = StepTrace(spent=gpu_spent(), details=StepDetails(signs=(CAST,)), alternatives=("graph=on",))
    return record(case(index, "train", f"{name} bf16"), [Measurement.of_samples(STEP_TIME, [1e-4] * 5)], trace=trace)


def test_a_run_without_traces_has_none() -> None:
    untraced = record(case(0, "train", "resnet50"), [Measurement.of_samples(STEP_TIME, [1e-4] * 5)])
    for page in (to_html(run_of([untraced])), to_markdown(run_of([untraced]))):
        assert not any(heading in page for heading in HEADINGS)


def test_a_page_has_the_explanation_of_its_one_traced_case() -> None:
    for page in (to_html(run_of([traced(0, "resnet50")])), to_markdown(run_of([traced(0, "resnet50")]))):
        assert [page.count(heading) for heading in HEADINGS] == [1, 1, 1]
        assert "of 100" in page and "remove the cast" in page and "launch and host gaps" in page


def test_of_several_each_is_folded_by_its_name() -> None:
    run = run_of([traced(0, "resnet50"), traced(1, "vgg16"), record(case(2, "gemm", "fp32"))])
    page = to_html(run)
    assert page.count("What takes longest") == 2
    assert page.count("Budget of a step</h2>") == 1
    told = to_markdown(run)
    assert told.count("Budget of a step") == 1
    assert told.count("launch and host gaps") == 2


def test_a_terminal_leaves_it_to_the_verb() -> None:
    console = Console(file=io.StringIO(), width=100)
    show(run_of([traced(0, "resnet50")]), console)
    assert "Budget of a step" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_the_traces_advise_is_said_once() -> None:
    spent = gpu_spent()
    talking = spent.model_copy(update={"shares": spent.shares | {"communication": 0.5}})
    found = record(
        case(0, "train", "resnet50"),
        [Measurement.of_samples(STEP_TIME, [1e-4] * 5)],
        trace=StepTrace(spent=talking),
    )
    assert to_html(run_of([found])).count("communication is waited for") == 1

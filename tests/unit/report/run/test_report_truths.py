"""Sentences of a report that were wrong once: units of sizes, and where to read what went wrong."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.summary import summarize_run
from paceline.core.record import Cause, CauseKind, Outcome
from paceline.report.document import Details, Medium, Pairs, shown
from paceline.report.run.case import case_details
from paceline.report.run.document import to_html, to_markdown
from support.records import RUN_ID, case, record, run_of


def shown_parameters(benchmark: str, **parameters: Any) -> dict[str, Any]:
    (row,) = summarize_run(run_of([record(case(0, benchmark, "", **parameters))])).rows
    details: Details = case_details(row, is_open=True)
    (pairs,) = (item for item in shown(details, Medium.HTML) if isinstance(item, Pairs))
    return dict(pairs.values["Parameters, after defaults"])


@pytest.mark.parametrize(
    ("benchmark", "size", "text"),
    [("gemm", 256, "256"), ("stream", 65536, 65536), ("of-a-missing-plug-in", 256, "256")],
)
def test_the_edge_of_a_matrix_is_not_in_bytes(benchmark: str, size: int, text: object) -> None:
    assert shown_parameters(benchmark, size=size)["size"] == text


def test_a_size_in_bytes_is_shown_as_one_and_an_edge_is_not() -> None:
    assert "256 B" not in to_html(run_of([record(case(0, "gemm", "fp32 256", size=256))]))
    assert "64 KiB" in to_html(run_of([record(case(0, "stream", "64 KiB", size=65536))]))


@pytest.mark.parametrize("kind", [CauseKind.ERROR, CauseKind.CRASHED])
def test_a_page_does_not_send_its_reader_to_itself(kind: CauseKind) -> None:
    cause = Cause(kind=kind, message="it broke", detail="Traceback: it broke")
    run = run_of([record(case(0, "train", "lstm"), outcome=Outcome.FAILED, cause=cause)])
    assert "in its details below, or run this case alone" in to_html(run)
    assert f"(paceline report {RUN_ID} --html), or run this case alone" in to_markdown(run)
    assert "HTML report" not in to_html(run) + to_markdown(run)

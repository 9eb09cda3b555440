"""Where the time went in every report: the sentence, the bar, the kernels, and where the trace is."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from paceline.analysis.explain import TracedRow, traced
from paceline.analysis.summary import summarize_run
from paceline.core.record import Record
from paceline.core.subject import StepTrace
from paceline.core.trace_events import TimeSpent, time_spent
from paceline.report import vega
from paceline.report.run.document import show, to_html, to_markdown
from paceline.report.run.sections import SectionAnswer
from paceline.report.run.sections.traces import sentence, short_name, trace_parts
from support.profiled import events_of, gpu_spent, trace_facts
from support.records import case, literal_run, record, run_of


def cpu_spent() -> TimeSpent:
    spent = time_spent(events_of("cpu-nested.json"), on_device=False, steps_queue=False)
    assert spent is not None
    return spent


def records(*facts: dict[str, Any]) -> list[Record]:
    return [record(case(index, "train", f"model{index} bf16"), facts=one) for index, one in enumerate(facts)]


def parts(*facts: dict[str, Any]) -> list[SectionAnswer]:
    return trace_parts(traced(summarize_run(run_of(records(*facts))).rows))


def test_the_sentence_of_a_gpu() -> None:
    assert sentence(gpu_spent()) == (
        "30 % of the step is convolutions, 30 % matrix products; 16 % waits for communication, and 29 % is hidden "
        "behind work; the device idles 5.0 %."
    )


def test_the_sentence_of_a_cpu() -> None:
    assert sentence(cpu_spent()) == (
        "40 % of the step is matrix products, 10 % copies; 18 % waits for communication, and 20 % is hidden behind "
        "work; no operator runs for 22 %."
    )


def test_what_is_most_comes_first() -> None:
    shares = {"compute": 0.2, "memory": 0.0, "communication": 0.0, "other": 0.0, "idle": 0.8}
    idle = gpu_spent().model_copy(
        update={"shares": shares, "groups": {"matrix products": 0.2}, "hidden_communication": 0.0}
    )
    assert sentence(idle) == "the device idles 80 %; 20 % of the step is matrix products."
    busy = idle.model_copy(update={"shares": {"compute": 1.0, "idle": 0.001}, "groups": {"matrix products": 1.0}})
    assert sentence(busy) == "100 % of the step is matrix products; the device never waits."


def test_one_case_has_its_bar_its_kernels_and_its_file() -> None:
    (part,) = parts(trace_facts(gpu_spent()))
    assert part.sentence.startswith("train model0 bf16: 30 % of the step is convolutions")
    assert part.chart is not None
    assert part.chart.description.endswith("compute 60 %, memory 19 %, communication 16 %, idle 5.0 %")
    assert part.table is not None
    assert part.table.lines[0][1:] == ("communication", "communication", "1", "45 µs", "45.0 %")
    assert part.lines[1] == "~/traces/01.json.gz"
    assert part.notes[0] == (
        "Trace: ~/traces/01.json.gz (87.9 KiB). Based on 6 kernels, in 2 steps of 100 µs after the measured ones."
    )
    assert "ui.perfetto.dev" in part.notes[-1]


def test_several_cases_stand_side_by_side() -> None:
    together, *each = parts(trace_facts(gpu_spent()), trace_facts(cpu_spent()))
    assert together.sentence == "Of 2 traced cases, train model1 bf16 idles most: 22 % of its step."
    assert together.chart is not None
    assert [part.chart for part in each] == [None, None]


def test_a_slowed_trace_says_so() -> None:
    (part,) = parts(trace_facts(gpu_spent(), slowdown=1.38))
    assert part.notes[1].startswith("Traced steps took 1.4 times as long as the measured ones")


def test_why_there_is_no_trace_is_said_once_and_beside_others() -> None:
    (alone,) = parts({"trace": {"missing": "MemoryError: no more"}})
    assert alone.sentence == "train model0 bf16 was to be traced, but was not: MemoryError: no more."
    assert (alone.chart, alone.table) == (None, None)
    (row,) = summarize_run(run_of(records({}))).rows
    (bare,) = trace_parts([TracedRow(row, StepTrace())])
    assert bare.sentence == "train model0 bf16 was to be traced, but was not: nothing was kept of it."
    first, second = parts(trace_facts(gpu_spent()), {"trace": {"missing": "no kernel", "file": "a.json.gz"}})
    assert first.chart is not None
    assert second.lines == ("The measurement stands.", "a.json.gz")


def test_names_lose_their_templates_only_where_they_are_long() -> None:
    assert short_name("void f<int>(float)", 40) == "f<int>(float)"
    long = "void at::native::vectorized_elementwise_kernel<4, Functor<float>, std::array<char*, 3ul> >(int, float)"
    assert short_name(long, 60) == "at::native::vectorized_elementwise_kernel"
    assert short_name("x" * 50, 10) == "x" * 9 + "…"
    assert short_name("## Call CompiledFxGraph fvt6s3ps53e4unugjqxi ##", 90) == "compiled graph fvt6s3"


@pytest.mark.skipif(not vega.is_installed(), reason="needs vl-convert: pip install '.[charts]'")
def test_the_page_shows_all_of_it_once() -> None:
    page = to_html(run_of(records(trace_facts(gpu_spent()), trace_facts(cpu_spent()))))
    assert page.count(">Where the time went</h2>") == 1
    assert "ui.perfetto.dev" in page
    assert "ncclDevKernel_AllReduce_Sum_f32_RING_LL" in page
    assert "kernel names" not in page  # the facts of a case do not list the same again


def test_hostile_names_are_escaped() -> None:
    spent = gpu_spent()
    evil = spent.kernels[0].model_copy(update={"name": "<script>alert(1)</script>\x1b[31m"})
    page = to_html(run_of(records(trace_facts(spent.model_copy(update={"kernels": [evil]})))))
    assert "<script>alert" not in page
    assert "\x1b" not in page


def test_a_terminal_and_markdown_say_the_same() -> None:
    run = run_of(records(trace_facts(gpu_spent())))
    shown = io.StringIO()
    show(run, Console(file=shown, width=100))
    assert "Where the time went" in shown.getvalue()
    assert "the device idles 5.0 %." in " ".join(shown.getvalue().split())
    assert "~/traces/01.json.gz" in shown.getvalue()
    assert max(map(len, shown.getvalue().splitlines())) <= 100
    assert "## Where the time went" in to_markdown(run)


def test_a_run_without_traces_has_no_such_section() -> None:
    assert "Where the time went" not in to_html(literal_run())

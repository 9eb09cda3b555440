"""Reports of micro benchmarks: sections, sweeps, shares of the peak, and what a machine cannot do."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Literal

import pytest
from rich.console import Console

from paceline.analysis.summary import summarize_run
from paceline.cli._running import sentence
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Record
from paceline.core.stats import Interval
from paceline.core.subject import Pace, Subject
from paceline.report import charts
from paceline.report.charts import LINES
from paceline.report.export import csv
from paceline.report.run.columns import case_tables
from paceline.report.run.document import show, to_html, to_markdown
from paceline.report.run.lead import answer
from paceline.report.run.sweeps import sweep_charts, sweep_tables
from paceline.report.text import show_at
from support.micro_records import SIZES, cannot, collective, copy, gemm, memory_latency, micro, micro_run, pairs, times
from support.records import literal_run, record, run_of, sample_run


@pytest.fixture(scope="module")
def page() -> str:
    return to_html(micro_run())


def shown(run: object) -> str:
    file = io.StringIO()
    show(run, Console(file=file, width=100))  # type: ignore[arg-type]
    return file.getvalue()


def headers(run: object) -> dict[str, list[str]]:
    found = case_tables(summarize_run(run))  # type: ignore[arg-type]
    return {section.title: [column.header for column in section.columns] for section in found}


def test_one_table_for_each_category_in_order() -> None:
    found = headers(run_of(list(reversed(micro_run().records))))
    assert list(found) == ["Compute", "Memory", "Communication"]
    assert found["Compute"] == ["Case", "Metric", "Result", "±", "% of peak", "Time", "Samples"]
    assert found["Memory"] == ["Case", "Metric", "Result", "±", "At", "Time", "Samples", "Warnings"]


def skewed(index: int) -> Record:
    """A rate whose interval reaches from 0.9 to 5.3 TFLOP/s around 1.5."""
    one = gemm(index, "fp32", 1.5e12, None, size=64 + index)
    rate, *others = one.measurements
    interval = Interval(low=0.9e12, high=5.3e12, confidence=0.95)
    summary = rate.summary.model_copy(update={"mean": 1.5e12, "mean_interval": interval})
    return one.model_copy(update={"measurements": [replace(rate, summary=summary), *others]})


def test_a_skewed_interval_is_no_half_width_wherever_a_record_is_shown() -> None:
    alone, among = run_of([skewed(0)]), run_of([skewed(0), gemm(1, "bf16", 7e14, None)])
    assert answer(summarize_run(alone)).startswith(
        "1 of 1 case measured; gemm fp32: 1.5 TFLOP/s (900 GFLOP/s to 5.3 TFLOP/s)"
    )
    (table,) = case_tables(summarize_run(among))
    interval = next(column for column in table.columns if column.key == "interval")
    assert interval.header == "Interval"
    first, second = (cell.text for cell in interval.cells)
    assert first == "900 GFLOP/s to 5.3 TFLOP/s"
    assert re.fullmatch(r"± 0\.\d %", second)
    for text in (shown(among), to_markdown(among), to_html(among)):
        assert "900 GFLOP/s to 5.3 TFLOP/s" in text.replace("\u00a0", " ")
        assert "253 %" not in text
    assert sentence(skewed(0)).startswith("1.5 TFLOP/s (900 GFLOP/s to 5.3 TFLOP/s)")


def test_one_skewed_point_of_a_sweep_changes_the_header_of_its_intervals() -> None:
    one = copy(0, "h2d", 5e10)
    last = max(index for index, each in enumerate(one.measurements) if each.at and each.derived_from)
    point = one.measurements[last]
    interval = Interval(low=0.9 * point.value, high=3.0 * point.value, confidence=0.95)
    one.measurements[last] = replace(point, summary=point.summary.model_copy(update={"mean_interval": interval}))
    (row,) = summarize_run(run_of([one])).rows
    (table,) = sweep_tables(row)
    column = next(column for column in table.columns if column.header == "Interval")
    assert [bool(re.fullmatch("± .* %", cell.text)) for cell in column.cells] == [True] * (len(SIZES) - 1) + [False]
    assert " to " in column.cells[-1].text


def paced(index: int, kind: Literal["sustained", "burst", "short"], flops: float = 7e14) -> Record:
    pace = Pace(kind=kind, load_before=2.5, measured=2.0, boost=2.0)
    return gemm(index, "bf16", flops, None, burst=kind == "burst").model_copy(update={"pace": pace})


def test_the_pace_of_each_case_is_in_its_row() -> None:
    run = run_of([paced(0, "sustained"), paced(1, "burst")])
    assert [column.header for column in case_tables(summarize_run(run))[0].columns][-2:] == ["Pace", "Samples"]
    text, page = shown(run), to_html(run)
    assert "sustained" in text
    assert "burst" in text
    assert 'title="2.5 s under load before and 2 s while measured"' in page


def test_on_a_terminal_one_pace_of_all_cases_takes_no_column() -> None:
    run = run_of([paced(0, "short"), paced(1, "short")])
    assert "Pace" not in shown(run)
    assert "Pace" in to_markdown(run)


def test_a_burst_does_not_win_against_a_load_that_lasts() -> None:
    lasting, burst = paced(0, "sustained"), paced(1, "burst", flops=8e14)
    summary = summarize_run(run_of([lasting, burst]))
    assert [len(group.rows) for group in summary.groups] == [1, 1]
    assert [one.row.case.index for one in summary.highlights] == [0]


def test_models_alone_have_one_table_without_a_heading() -> None:
    run = sample_run()
    kinds = {"train": "training", "inference": "inference"}
    sorted_out = [
        one.model_copy(update={"case": one.case.model_copy(update={"category": kinds[one.case.benchmark]})})
        for one in run.records
    ]
    assert headers(run_of(sorted_out)) == headers(run) == {"": headers(run)[""]}
    assert shown(run_of(sorted_out)) == shown(run)


def test_models_come_before_the_single_operations_under_them() -> None:
    trained = [
        one.model_copy(update={"case": one.case.model_copy(update={"category": "training"})})
        for one in literal_run().records
    ]
    found = headers(run_of([*trained, gemm(5, "bf16", 789e12, 79.8)]))
    assert list(found) == ["Training", "Compute"]
    assert "Step time" in found["Training"] and "Step time" not in found["Compute"]


def test_one_category_needs_no_heading() -> None:
    found = headers(run_of([gemm(0, "bf16", 789e12, 79.8), gemm(1, "fp32", 51e12, None)]))
    assert found == {"": ["Case", "Compute rate", "±", "% of peak", "Time", "Samples"]}


def test_an_unknown_device_has_no_share_of_its_peak() -> None:
    lines = shown(run_of([gemm(0, "bf16", 789e12, 79.8), gemm(1, "fp32", 51e12, None)])).splitlines()
    share = lines[2].split("|").index(next(part for part in lines[2].split("|") if "% of peak" in part))
    assert lines[4].split("|")[share].strip().endswith("%")
    assert lines[5].split("|")[share].strip() == ""


def test_the_headline_says_at_which_point_it_was_measured() -> None:
    line = next(line for line in shown(micro_run()).splitlines() if line.startswith("copy h2d"))
    assert line.split("|")[4].strip() == "256 MiB"


def test_a_disk_shows_operations_and_slow_ones() -> None:
    took = times(0.3)
    iops = Metric(name="iops", unit="operations/s", better=Better.HIGHER)
    bandwidth = Metric(name="bandwidth", unit="B/s", better=Better.HIGHER)
    latency = Metric(name="latency", unit="s", better=Better.LOWER)
    found = [
        Measurement.of_rate(bandwidth, 3e8, took),
        Measurement.of_rate(iops, 73_000, took),
        Measurement.of_samples(latency, [1e-4 + 1e-7 * step for step in range(2000)]),
        took,
    ]
    run = run_of([record(micro(0, "storage", "disk", "random-read"), found)])
    assert headers(run)[""] == ["Case", "Bandwidth", "±", "IOPS", "Latency", "p99", "Samples"]


def test_the_answer_names_the_leader_of_each_category() -> None:
    told = answer(summarize_run(micro_run()))
    assert re.fullmatch(
        r"16 of 17 cases measured; at most: compute 7\d\d(\.\d)? TFLOP/s with gemm bf16 \(80 % of peak\), "
        r"memory [\d.]+ TB/s with copy d2d, communication 4\d\d(\.\d)? GB/s with collective all-reduce nccl x8; "
        r"1 with warnings; 1 not possible here\.",
        told,
    )


def test_the_answer_of_one_micro_case_has_its_share() -> None:
    told = answer(summarize_run(run_of([gemm(0, "bf16", 789e12, 79.8)])))
    assert re.search(r"gemm bf16: 7\d\d(\.\d)? TFLOP/s ± 0\.\d % \(80 % of peak\)\.$", told)


def test_what_is_not_possible_is_no_failure() -> None:
    run = micro_run()
    summary = summarize_run(run)
    assert [row.label for row in summary.impossible] == ["ib-loopback write"]
    assert summary.failed == ()
    for text in (shown(run), to_markdown(run), to_html(run)):
        assert "Not possible here" in text
        assert "apt install perftest" in text
        assert text.count("leave the case out on this machine") == 1
        assert "id not succeed" not in text


def test_what_is_required_and_not_possible_is_a_failure() -> None:
    run = run_of([gemm(0, "bf16", 789e12, 79.8), cannot(1, require=True)])
    summary = summarize_run(run)
    assert len(summary.failed) == 1 and summary.impossible == ()
    assert answer(summary).endswith("; 1 did not succeed.")
    assert "Did not succeed" in shown(run)


def test_points_flood_no_table() -> None:
    run = run_of([collective(0, "all-reduce", 400e9)])
    row = summarize_run(run).rows[0]
    assert all(not figure.at for figure in row.figures)
    assert [len(sweep.points) for sweep in row.sweeps] == [len(SIZES)]
    assert len(shown(run).splitlines()) == 5
    assert csv.render(run).count("\n") == 1 + len(run.records[0].measurements)


def test_markdown_has_a_table_for_each_sweep() -> None:
    text = to_markdown(run_of([copy(0, "h2d", 55e9), pairs(1, 3)]))
    assert "**copy h2d, over size: 10 points**\n\n| Size | Time | Bandwidth | ± |\n|---|---:|---:|---:|\n" in text
    assert re.search(r"^\| 256 MiB \| 4\.\d+ ms \| 5\d(\.\d+)? GB/s \| (&lt;)?0\.1 % \|$", text, re.MULTILINE)
    assert re.search(r"^\| 0 \| no case \| [\d.]+ GB/s \| [\d.]+ GB/s \|$", text, re.MULTILINE)


def test_the_page_folds_the_points_of_each_case(page: str) -> None:
    assert page.count('<details class="part sweep">') - page.count("Conditions before and after") == 12
    assert page.count("Over size: 10 points") == 9
    assert "Over from and to: 56 points" in page


def test_the_page_has_a_section_for_each_category_and_no_name_twice(page: str) -> None:
    titles = re.findall(r"<h2[^>]*>([^<]+)</h2>", page)
    assert titles[:3] == ["Compute", "Memory", "Communication"]
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))


def test_the_style_knows_every_colour_of_every_chart(page: str) -> None:
    style = page[page.index("<style>") : page.index("</style>")]
    colours = set(re.findall(r'(fill|stroke)="(#[0-9a-f]{3,6})"', page))
    assert len(colours) > 8
    for role, colour in colours:
        assert f'[{role}="{colour}"]' in style
    for colour in LINES:
        assert f'[stroke="{colour}"]' in style and f'[fill="{colour}"]' in style


def lines_of(run: object) -> list[charts.Chart]:
    return sweep_charts(summarize_run(run).measured)  # type: ignore[arg-type]


def domain(chart: charts.Chart) -> list[str]:
    names: list[str] = chart.spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
    return names


def test_lines_of_one_kind_share_a_chart() -> None:
    drawn = lines_of(micro_run())
    assert [domain(chart) for chart in drawn] == [
        ["h2d", "d2h", "d2d"],
        ["memory-latency"],
        ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all"],
        ["collective all-reduce gloo x2"],
    ]
    assert drawn[2].spec["title"]["subtitle"] == "collective nccl x8; higher is better"


def test_the_backend_that_was_used_divides_charts_rather_than_the_one_asked_for() -> None:
    records = [collective(0, "all-reduce", 400e9, backend="auto"), collective(1, "broadcast", 300e9, backend="auto")]
    used = [
        one.model_copy(update={"subject": Subject(engine=name)})
        for one, name in zip(records, ("nccl", "gloo"), strict=True)
    ]
    assert len(lines_of(run_of(records))) == 1
    assert len(lines_of(run_of(used))) == 2


def test_more_lines_than_colours_make_several_charts() -> None:
    drawn = lines_of(run_of([copy(index, "h2d", 55e9, numa=index) for index in range(10)]))
    assert [len(domain(chart)) for chart in drawn] == [8, 2]
    assert drawn[0].spec["title"]["text"] == "Bandwidth over size (1 of 2)"


def test_axes_read_as_people_write_them() -> None:
    (copies,) = lines_of(run_of([copy(0, "h2d", 55e9)]))
    x, y = (copies.spec["layer"][1]["encoding"][axis] for axis in "xy")
    assert (x["scale"]["type"], x["axis"]["title"]) == ("log", "size")
    assert y["axis"]["title"] == "bandwidth, GB/s"
    assert y["scale"].get("type") is None
    (loads,) = lines_of(run_of([memory_latency(0)]))
    y = loads.spec["layer"][1]["encoding"]["y"]
    assert (y["axis"]["title"], y["scale"]["type"]) == ("latency, ns", "log")
    drawn = charts.draw_svg(copies, "x")
    assert ">256 MiB<" in drawn and ">1e" not in drawn


def test_a_line_far_below_another_is_still_seen() -> None:
    (both,) = lines_of(run_of([copy(0, "h2d", 55e9), copy(1, "d2d", 2e12)]))
    assert both.spec["layer"][1]["encoding"]["y"]["scale"]["type"] == "log"
    assert both.spec["layer"][1]["encoding"]["y"]["axis"]["title"] == "bandwidth, GB/s"


def test_a_slow_link_is_named_by_the_map_of_all_pairs() -> None:
    run = run_of([pairs(0, 4, slow=(2, 1))])
    assert lines_of(run) == []
    text = to_markdown(run)
    assert re.search(r"peer-to-peer is best at \d to \d: [\d.]+ GB/s, [\d.]+ times as good as at 2 to 1", text)
    assert "Bandwidth of peer-to-peer over to and from" in to_html(run)


def test_few_pairs_are_listed() -> None:
    at = {"from": 0, "to": 1}
    took = times(1e-3, at=at)
    rate = Measurement.of_rate(Metric(name="bandwidth", unit="B/s", better=Better.HIGHER), 1e6, took)
    lowest = Measurement.of_value(Metric(name="minimum_bandwidth", unit="B/s", better=Better.HIGHER), 1e9)
    run = run_of([record(micro(0, "communication", "p2p", ""), [lowest, took, rate])])
    (table,) = sweep_tables(summarize_run(run).rows[0])
    assert (table.title, table.headers) == ("Over from and to: 1 point", ("From", "To", "Time", "Bandwidth", "±"))


def test_points_that_are_names_are_listed_but_not_drawn() -> None:
    found = [times(1e-3 * (place + 1), at={"function": name}) for place, name in enumerate(("a", "b"))]
    run = run_of([record(micro(0, "compute", "blas-functions", ""), found)])
    assert lines_of(run) == []
    (table,) = sweep_tables(summarize_run(run).rows[0])
    assert [line[0] for line in table.lines] == ["a", "b"]


def test_the_samples_behind_a_headline_are_those_of_its_point(page: str) -> None:
    run = run_of([copy(0, "h2d", 55e9)])
    record_ = run.records[0]
    without_time = [m for m in record_.measurements if m.at or m.metric.name != "time"]
    run = run_of([record_.model_copy(update={"measurements": without_time})])
    assert "Time at 256 MiB over time, and its distribution" in to_html(run)


def test_a_point_is_said_in_words() -> None:
    assert show_at({"size": 1 << 20}) == "1 MiB"
    assert show_at({"from": 0, "to": 3}) == "0 to 3"
    assert show_at({"streams": 4}) == "streams 4"
    assert show_at({"host": "node-08"}) == "node-08"
    assert show_at({"block": "4k", "depth": 32}) == "block 4k, depth 32"


def test_a_point_that_was_seen_once_has_no_shade() -> None:
    found = [times(1e-3 * (place + 1), at={"size": 1 << place}) for place in range(4)]
    found[1] = Measurement.of_value(found[1].metric, 2e-3, at={"size": 2})
    (chart,) = lines_of(run_of([record(micro(0, "memory", "odd", ""), found)]))
    shades = [value["low"] for value in chart.spec["data"]["values"]]
    assert shades[1] is None and None not in (shades[0], shades[2], shades[3])
    assert "<svg" in charts.draw_svg(chart, "once")


def test_two_points_make_no_line() -> None:
    found = [times(1e-3, at={"streams": count}) for count in (1, 4)]
    assert lines_of(run_of([record(micro(0, "communication", "tcp", ""), found)])) == []


def test_samples_that_wander_have_an_unknown_interval_instead_of_none() -> None:
    one = gemm(0, "fp32", 1.5e12, None)
    rate, *others = one.measurements
    wandering = replace(rate, summary=rate.summary.model_copy(update={"mean_interval": None}))
    run = run_of([one.model_copy(update={"measurements": [wandering, *others]})])
    assert "| gemm fp32 | 1.499 TFLOP/s | unknown |" in to_markdown(run)

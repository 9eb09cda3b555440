"""The page: self-contained, complete, and no text can become more than text."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from paceline.analysis.summary import summarize_run
from paceline.core.record import Measurement, RecordWarning
from paceline.core.run import RunRecords
from paceline.report import charts
from paceline.report.render.html import show_fact
from paceline.report.run import lead
from paceline.report.run.document import to_html, write_html
from paceline.report.run.samples_chart import PLOTTED, distribution, thinned, ticks
from support.records import HOSTILE, STEP_TIME, case, hostile_run, literal_run, record, run_of, sample_run, throughput


class Page(HTMLParser):
    """The tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page() -> str:
    return to_html(sample_run())


def test_it_points_to_nothing_outside(page: str) -> None:
    assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w", page)
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    for tag, attributes in Page(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert (attributes.get("href") or "#").startswith("#")
        assert "src" not in attributes


def test_it_leads_with_the_answer(page: str) -> None:
    text = Page(page).text
    assert text.index("7 of 9 cases measured") < text.index("At a glance") < text.index("Environment")


def test_it_shows_everything(page: str) -> None:
    text = Page(page).text
    for part in (
        "train gpt2-small bf16 x2",
        "improve the cooling",
        "the device has 139.8 GiB, of which 138.9 GiB were in use",
        "Float8_e4m3fn",
        "p99.9",
        "parameter count 124,439,808",
        "device events around forward",
        "rank 1",
        "AMD EPYC 9654",
        "OMP_NUM_THREADS 96",
        "paceline run node-check.yaml --set budget=10s",
        "2,000 of 3,200 samples are drawn",
    ):
        assert part in text, part


def test_every_name_inside_is_unique_and_every_link_lands(page: str) -> None:
    tags = Page(page).tags
    names = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(names) == len(set(names))
    links = {str(attributes["href"])[1:] for tag, attributes in tags if tag == "a"}
    assert links <= set(names)
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(names)


def test_charts_say_what_they_show(page: str) -> None:
    drawn = re.findall(r"<svg[^>]*class=\"chart\"[^>]*role=\"img\"[^>]*><title[^>]*>([^<]+)</title><desc[^>]*>", page)
    assert len(drawn) == 1 + 1 + 7  # all cases, scaling, and the samples of each case
    assert drawn[0] == "Result of each case with its interval"


def test_the_style_knows_every_colour_of_the_charts(page: str) -> None:
    style = page[page.index("<style>") : page.index("</style>")]
    for role, colour in re.findall(r'(fill|stroke)="(#[0-9a-f]{3,6})"', page):
        assert f'[{role}="{colour}"]' in style


def test_hostile_text_stays_text() -> None:
    page = to_html(hostile_run())
    parsed = Page(page)
    assert sum(tag == "script" for tag, _ in parsed.tags) == 1
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "<script>alert('x')</script>" in parsed.text
    assert all(not name.startswith("on") for _, attributes in parsed.tags for name in attributes)


def test_only_our_own_script_may_run(page: str) -> None:
    policy = next(str(a["content"]) for tag, a in Page(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert re.fullmatch(r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[\w+/]+=*'", policy)


def test_without_the_drawing_library_it_is_made_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page = to_html(sample_run())
    assert "pip install &#39;paceline[charts]&#39;" in page or "pip install '.[charts]'" in page
    assert "train gpt2-small bf16" in page
    titles = re.findall(r'<svg[^>]* role="img"[^>]*><title[^>]*>([^<]+)</title>', page)
    # These need no library.
    assert titles[0] == "Result of each case with its interval"
    assert len(titles) > 1 and all(title.endswith("over time, and its distribution") for title in titles[1:])


def test_one_case_shows_its_own_figures_at_once() -> None:
    page = to_html(run_of(literal_run().records[:1]))
    assert re.search(r'<details id="case-0" open>', page)
    assert page.count('<li class="card">') == 2


@pytest.mark.parametrize("records", [[], [record(case(0, "odd", ""))]])
def test_a_run_with_nothing_to_show_still_has_a_page(records: list[object]) -> None:
    page = to_html(run_of(records, environment={}, command=[], ended_at=None, status="running"))  # type: ignore[arg-type]
    assert "No environment was recorded." in page


def test_writing_leaves_the_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    assert write_html(literal_run(), path) == path
    assert path.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(_self: Path, _target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_html(literal_run(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_thinning_keeps_every_spike_and_is_said() -> None:
    samples = [1.0] * 5000
    samples[1234], samples[4321] = 9.0, 0.1
    places = thinned(np.array(samples))
    assert len(places) <= PLOTTED
    assert {1234, 4321} <= set(places)
    assert thinned(np.array([1.0, 2.0])) == [0, 1]
    chart = distribution(Measurement.of_samples(STEP_TIME, samples))
    assert chart is not None and "of 5,000 samples are drawn" in chart.notes[0]


def test_far_outliers_do_not_flatten_the_chart() -> None:
    samples = [0.1 + 0.0001 * (index % 7) for index in range(300)] + [30.0]
    chart = distribution(Measurement.of_samples(STEP_TIME, samples))
    assert chart is not None
    marks = [float(mark) for mark in re.findall(r'text-anchor="end"[^>]*>([\d.]+)<', chart.svg)]
    assert len(marks) >= 2 and 99 < min(marks) < max(marks) < 110
    assert chart.notes == ("1 sample lies beyond the axis, drawn at its edge.",)


def named_run(
    *names: str, units: tuple[str, ...] = ("images/s",), warnings: list[RecordWarning] | None = None
) -> RunRecords:
    times = Measurement.of_samples(STEP_TIME, [0.1] * 20)
    return run_of([
        record(
            case(index, "train", name, model=f"model-{index}"),
            [Measurement.of_rate(throughput(units[index % len(units)]), 32 + index, times), times],
            warnings=warnings or [],
        )
        for index, name in enumerate(names)
    ])  # fmt: skip


def test_names_that_differ_at_their_ends_alone_can_be_told_apart_beside_their_bars() -> None:
    long = "gpt2/nl8_fp8_1x1x1_mb16_gb16_1n1g hidden=4096 heads=32 fp8_recipe="
    chart = lead.overview(summarize_run(named_run(f"{long}rowwise", f"{long}rowwise_with_gw_hp", "short")).measured)
    assert chart is not None
    drawn = charts.draw_svg(chart, "bars").partition("</desc>")[2]
    assert "fp8_recipe=rowwise<" in drawn and "fp8_recipe=rowwise_with_gw_hp<" in drawn
    assert ">train short<" in drawn
    assert "…" not in drawn


def test_what_is_left_out_of_two_charts_is_told_with_their_units() -> None:
    run = named_run(*(f"model-{index}" for index in range(2 * lead.BARS + 4)), units=("images/s", "sequences/s"))
    chart = lead.overview(summarize_run(run).measured)
    assert chart is not None
    assert [note.partition(" by ")[2] for note in chart.notes] == [
        "throughput in images/s are drawn.",
        "throughput in sequences/s are drawn.",
    ]


@pytest.mark.parametrize(("cases", "is_folded"), [(4, False), (5, True)])
def test_a_warning_of_many_cases_is_folded_and_its_remedy_is_not(cases: int, is_folded: bool) -> None:
    warning = RecordWarning(kind="noisy", message="steps lie far from the median", remedy="stop other work")
    page = to_html(named_run(*(f"model-{index}" for index in range(cases)), warnings=[warning]))
    part = page[page.index('id="warnings"') : page.index('id="cases"')]
    folded = part.partition("<details")[2].partition("</details>")[0]
    assert (f"{cases} cases, with what was seen in each" in folded) is is_folded
    assert folded.count(warning.message) == (cases if is_folded else 0)
    assert part.count(warning.message) == cases
    assert part.count(warning.remedy) == 1 and warning.remedy not in folded


def test_columns_of_what_was_not_measured_are_left_out_beside_published_figures() -> None:
    run = named_run("gpt2/nl24_fp16_1x1x1_mb6_gb6_1n1g")
    run = run.model_copy(update={"run": run.run.model_copy(update={"name": "libai"})})
    page = to_html(run)
    heads = re.findall(r"<h2[^>]*>Compared with LiBai.*?</thead>", page, re.DOTALL)
    assert heads and not any("megatron-core" in head for head in heads)
    assert all("Megatron-LM" in head for head in heads)


def test_samples_that_are_no_numbers_or_all_the_same() -> None:
    assert distribution(Measurement.of_samples(STEP_TIME, [1.0, float("nan")])) is None
    assert distribution(Measurement.of_value(STEP_TIME, 1.0)) is None
    same = distribution(Measurement.of_samples(STEP_TIME, [0.0] * 30))
    assert same is not None and "<svg" in charts.draw_svg(same, "same")


def test_the_marks_of_an_axis_are_round_and_within_it() -> None:
    assert ticks(0, 101, 8, whole=True) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert ticks(0, 2, 8, whole=True) == [0, 1, 2]
    assert ticks(0.0993, 0.1021, 5) == pytest.approx([0.0995, 0.1, 0.1005, 0.101, 0.1015, 0.102])
    assert ticks(-3, 12_345, 5) == [0, 2000, 4000, 6000, 8000, 10_000, 12_000]


def test_a_fact_reads_as_a_person_would_write_it() -> None:
    assert show_fact(True) == "yes"
    assert show_fact(150_754_820_096, "memory_total") == "140 GiB"
    assert show_fact([]) == "none"
    assert show_fact(HOSTILE).isprintable()

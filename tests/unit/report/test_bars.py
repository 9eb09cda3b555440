"""Bars with their intervals as a picture: where they begin and end, and that no name is lost."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from paceline.analysis.summary import Reading
from paceline.report import vega
from paceline.report.bars import Bar, Panel, bars, panels
from paceline.report.charts import draw_png, stacked

RATES = [Bar("fast", Reading(200.0, 190.0, 250.0), "200 ± 25 %"), Bar("slow", Reading(50.0), "50")]


def drawn(svg: str, kind: str) -> list[dict[str, str]]:
    return [element.attrib for element in ElementTree.fromstring(svg).iter(kind)]


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("text")]


def test_the_length_of_a_bar_is_its_value_and_the_scale_holds_the_intervals() -> None:
    svg = bars("Throughput", "higher is better", RATES).svg
    fast, slow = drawn(svg, "rect")
    assert float(fast["width"]) == pytest.approx(4 * float(slow["width"]), abs=0.3)  # in tenths of a pixel
    interval = re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", drawn(svg, "path")[0]["d"])
    low, high = (float(end) - float(fast["x"]) for end in interval[0])
    assert low == pytest.approx(0.95 * float(fast["width"]), abs=0.2)
    assert high == pytest.approx(1.25 * float(fast["width"]), abs=0.2)
    assert texts(svg) == ["Throughput", "higher is better", "fast", "200 ± 25 %", "slow", "50"]


def test_a_bar_below_zero_goes_the_other_way() -> None:
    svg = bars("Change", "", [Bar("worse", Reading(-10.0), "-10"), Bar("better", Reading(10.0), "10")]).svg
    worse, better = drawn(svg, "rect")
    assert float(worse["x"]) + float(worse["width"]) == pytest.approx(float(better["x"]), abs=0.2)


def test_bars_that_are_all_zero_have_a_place() -> None:
    svg = bars("Errors", "", [Bar("none", Reading(0.0), "0")]).svg
    assert [rect["width"] for rect in drawn(svg, "rect")] == ["0.0"]


def test_panels_have_scales_of_their_own_and_their_data() -> None:
    chart = panels("All", [Panel("A", "", RATES), Panel("B", "", [Bar("tiny", Reading(1e-6), "1 µs")])])
    widths = [float(rect["width"]) for rect in drawn(chart.svg, "rect")]
    assert widths[2] > widths[0] > widths[1]
    assert chart.rows[0] == {
        "panel": "A", "name": "fast", "value": 200.0, "low": 190.0, "high": 250.0, "text": "200 ± 25 %",
    }  # fmt: skip
    assert [row["panel"] for row in chart.rows] == ["A", "A", "B"]


def test_bars_of_one_name_are_numbered() -> None:
    same = bars("T", "", [RATES[0], RATES[0]])
    assert [row["name"] for row in same.rows] == ["fast", "fast (2)"]


@pytest.mark.parametrize("name", ["W" * 60, "a_long_name_" * 8, "模型" * 25, "<b>&" * 20, "line\x1b[0m" * 12])
def test_a_long_name_is_broken_within_its_room(name: str) -> None:
    svg = bars("T", "", [Bar(name, Reading(1.0), "1")]).svg
    lines = texts(svg)[1:-1]
    assert 1 < len(lines) <= 3
    assert all(line.isprintable() for line in lines)


@pytest.mark.skipif(not vega.is_installed(), reason="needs vl-convert: pip install '.[charts]'")
def test_stacked_charts_are_one_picture_below_each_other() -> None:
    one = bars("T", "", RATES)
    both = stacked([one, one])
    outer, first, second = drawn(both.svg, "svg")
    assert float(second["y"]) > float(first["height"])
    assert float(outer["height"]) == pytest.approx(float(second["y"]) + float(second["height"]))
    assert draw_png(both, scale=0.5).startswith(b"\x89PNG")

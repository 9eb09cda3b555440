"""Every form of a diagnosis leads with the same answer, and is right about units, percentages and text."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from typing import Any

import pytest
from rich.console import Console

from paceline.analysis.baseline import Baseline, Reference, make_baseline
from paceline.analysis.diagnose.judge import Diagnosis, diagnose
from paceline.analysis.diagnose.rules import default_rules, rules_from_text
from paceline.analysis.diagnose.superbench import nodes_results
from paceline.analysis.diagnose.table import assemble
from paceline.report import diagnose as report
from paceline.report import vega
from paceline.report.diagnose import answer, document, strips
from paceline.report.render import html, markdown, terminal
from paceline.report.text import change as show_change
from support.records import HOSTILE
from support.refused import refused

openpyxl: Any = pytest.importorskip("openpyxl", reason="install it with: pip install '.[exports]'")


def made(slow: float = 20.0, *, nodes: int = 8, failed: bool = True, names: str = "node-{:02d}") -> Diagnosis:
    """Nodes of which the third copies slowly and the fifth failed."""
    parts = []
    for place in range(1, nodes + 1):
        values: dict[str, object] = {"mem-bw/h2d_bw:0": 26.0 + 0.01 * (place % 9), "mem-bw/return_code:0": 0}
        values["kernel-launch/event_time:0"] = 0.0055
        if place == 3:
            values["mem-bw/h2d_bw:0"] = slow
        if place == 5 and failed:
            values = {"mem-bw/return_code:0": 4, "kernel-launch/event_time:0": 0.0055}
        parts.append(nodes_results(names.format(place), values))
    return diagnose(assemble(parts), default_rules())


def healthy() -> Diagnosis:
    return made(26.0, failed=False)


def shown(diagnosis: Diagnosis, width: int = 100) -> str:
    output = io.StringIO()
    terminal.show(document(diagnosis), Console(file=output, width=width, highlight=False))
    return output.getvalue()


def test_the_answer_counts_and_names() -> None:
    assert answer(made()) == "2 of 8 nodes are defective: node-03 (memory), node-05 (FailedTest)."
    assert answer(made(failed=False)) == "1 of 8 nodes is defective: node-03 (memory)."
    assert answer(healthy()) == "All 8 nodes are healthy."


def test_many_defective_nodes_are_not_all_named() -> None:
    parts = [nodes_results(f"n{place}", {"mem-bw/h2d_bw": 26.0 if place < 9 else 9.0}) for place in range(16)]
    assert answer(diagnose(assemble(parts), default_rules())).endswith("n12 (memory) and 3 more.")


def test_an_incomplete_node_is_told() -> None:
    rules = rules_from_text(
        "superbench: {rules: {r: {function: value, criteria: 'lambda x: x<0', categories: M, metrics: [mem-bw/.*]}}}",
        "r",
    )
    parts = [nodes_results("a", {"mem-bw/x": 1.0}), nodes_results("b", {"mem-bw/x": None, "mem-bw/y": 1.0})]
    assert answer(diagnose(assemble(parts), rules)) == "No node of 2 is defective; 2 incomplete: a, b."


def test_nodes_that_were_compared_with_nothing_are_not_called_healthy() -> None:
    parts = [nodes_results(node, {"mem-bw/h2d_bw": 1.0}) for node in "ab"]
    other = Baseline(names="superbench", metrics={"kernel-launch/event_time": Reference(value=1.0)})
    assert answer(diagnose(assemble(parts), default_rules(), other)) == "No node of 2 is defective."


def test_the_console_has_the_reasons_within_a_hundred_columns() -> None:
    text = shown(made())
    assert text.splitlines()[0] == answer(made())
    assert "-23.2 %" in text and "20 GB/s" in text and "return code 4" in text
    assert "Healthy: node-01" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "Warnings" not in shown(healthy())


def test_long_names_and_many_reasons_fit() -> None:
    parts = []
    for place in range(12):
        worse = 0.5 if place == 2 else 1.0
        values = {f"mem-bw:{'very-' * 12}{index}/h2d_bw": 26.0 * worse for index in range(30)}
        parts.append(nodes_results(f"a-rather-long-name-of-a-node-{place}", values))
    text = shown(diagnose(assemble(parts), default_rules()))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "and 25 more" in text


@pytest.mark.parametrize(
    ("change", "text"),
    [(-0.231, "-23.1 %"), (15.78, "+1,578 %"), (2e19, "+2e+21 %"), (0.0, "0 %"), (math.inf, "from zero"), (None, "")],
)
def test_changes_are_percentages(change: float | None, text: str) -> None:
    assert show_change(change) == text


def test_json_is_plain_and_complete() -> None:
    data = json.loads(report.as_json(made()))
    assert data["answer"] == answer(made())
    assert data["defective"] == ["node-03", "node-05"]
    finding = data["verdicts"][0]["findings"][0]
    assert (finding["metric"], finding["unit"], finding["value"]) == ("mem-bw/h2d_bw:0", "GB/s", 20.0)
    assert finding["change"] == pytest.approx(-0.2322, abs=1e-3)


def test_a_change_from_zero_is_no_number_in_json() -> None:
    parts = [
        nodes_results(f"n{place}", {"tcp-connectivity/h_failed_count": 3.0 if place == 2 else 0.0})
        for place in range(6)
    ]
    data = json.loads(report.as_json(diagnose(assemble(parts), default_rules())))
    finding = data["verdicts"][0]["findings"][0]
    assert (finding["change"], finding["from_zero"]) == (None, True)


def test_json_lines_have_a_node_each_defective_first() -> None:
    lines = [json.loads(line) for line in report.as_jsonl(made()).splitlines()]
    assert [line["verdict"] for line in lines] == ["defective"] * 2 + ["healthy"] * 6


def test_markdown_shows_values_in_their_unit_and_changes_in_percent() -> None:
    text = markdown.render(document(made()))
    row = next(line for line in text.splitlines() if line.startswith("| node-03"))
    assert row == r"| node-03 | defective | memory | mem-bw/h2d\_bw:0 | 20 GB/s | 26.05 GB/s | -23.2 % |"
    assert text.startswith("**2 of 8 nodes")
    assert "2000" not in text


def test_csv_has_what_the_chart_draws_of_every_node() -> None:
    rows = list(csv.DictReader(io.StringIO(report.as_csv(made()))))
    assert len(rows) == 8 + 7  # the fifth node has no copies
    (slow,) = [row for row in rows if row["defective"] == "yes"]
    assert (slow["node"], slow["metric"], slow["unit"]) == ("node-03", "mem-bw/h2d_bw:0", "GB/s")
    assert float(slow["value"]) == 20.0
    assert -0.05 < float(slow["limit"]) < -0.01
    assert float(slow["change"]) == pytest.approx(-0.2322, abs=1e-3)
    chart = strips(made())
    assert chart is not None
    drawn = [value["at"] for layer in chart.spec["layer"] if layer["mark"].get("size") == 42
             for value in layer["data"]["values"]]  # fmt: skip
    assert sorted(drawn) == pytest.approx(sorted(100 * float(row["change"]) for row in rows if row is not slow))


def test_csv_keeps_names_text_and_leaves_out_what_is_no_number() -> None:
    rows = list(csv.reader(io.StringIO(report.as_csv(made(names="={}")))))
    assert rows[1][6] == "'=1"
    parts = [nodes_results(f"n{place}", {"tcp-connectivity/h_failed_count": 3.0 * (place == 2)}) for place in range(6)]
    of_zero = list(csv.DictReader(io.StringIO(report.as_csv(diagnose(assemble(parts), default_rules())))))
    assert [row["change"] for row in of_zero] == ["0.0", "0.0", "", "0.0", "0.0", "0.0"]


def test_one_node_beside_a_baseline_has_no_spread() -> None:
    (one, *_), good = made().table.nodes, make_baseline(healthy().table)
    alone = assemble([nodes_results(one, {"mem-bw/h2d_bw:0": 26.01})])
    (row,) = csv.DictReader(io.StringIO(report.as_csv(diagnose(alone, default_rules(), good))))
    assert (row["spread"], row["baseline"]) == ("", "26.045")


def test_the_picture_is_drawn_without_a_browser() -> None:
    pytest.importorskip("vl_convert", reason="install it with: pip install '.[charts]'")
    assert report.as_png(made()).startswith(b"\x89PNG")


def test_nothing_to_draw_is_said() -> None:
    rules = rules_from_text("rules: {a: {check: value, when: x > 5, metrics: ['.*_bw']}}", "r")
    found = diagnose(assemble([nodes_results("a", {"mem-bw/h2d_bw": 9.0})]), rules)
    with refused("nothing-to-draw"):
        report.as_png(found)


def test_the_workbook_has_typed_cells_and_says_defective_in_words() -> None:
    book = openpyxl.load_workbook(io.BytesIO(report.as_xlsx(made())))
    assert book.sheetnames == ["Verdicts", "Findings", "Values"]
    verdicts = list(book["Verdicts"].iter_rows(values_only=True))
    assert verdicts[0][0] == answer(made())
    assert verdicts[3][:3] == ("node-03", "DEFECTIVE", "memory")
    assert verdicts[5][1] == "healthy"
    finding = next(row for row in book["Findings"].iter_rows() if row[0].value == "node-03")
    assert finding[6].value == 20.0 and finding[6].data_type == "n"
    assert finding[9].value == pytest.approx(-0.2322, abs=1e-3) and finding[9].number_format == "0.0%"
    values = list(book["Values"].iter_rows())
    place = [cell.value for cell in values[0]].index("mem-bw/h2d_bw:0 [GB/s]")
    slow = next(row for row in values if row[0].value == "node-03")
    assert slow[place].value == 20.0
    assert slow[place].fill.fgColor.rgb == "FFFDECEA"
    missing = next(row for row in values if row[0].value == "node-05")
    assert missing[place].value is None and missing[1].value == "DEFECTIVE"


def test_a_workbook_of_very_many_values_has_those_with_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_CELLS", 10)
    book = openpyxl.load_workbook(io.BytesIO(report.as_xlsx(made())))
    assert [cell.value for cell in list(book["Values"].iter_rows())[1]] == ["Node", "Verdict", "mem-bw/h2d_bw:0 [GB/s]"]


def test_hostile_names_stay_text_everywhere() -> None:
    diagnosis = made(names=f"={HOSTILE}{{}}")
    book = openpyxl.load_workbook(io.BytesIO(report.as_xlsx(diagnosis)))
    cells = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
    assert not [cell for cell in cells if cell.data_type == "f"]
    page = html.render(document(diagnosis))
    assert "<script>alert" not in page
    assert "\x1b" not in page and "\x1b" not in shown(diagnosis)
    assert "<script>" not in markdown.render(document(diagnosis))


def test_without_openpyxl_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.core.errors import MissingDependency

    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingDependency, match=r"\.\[exports\]"):
        report.as_xlsx(made())


def test_the_page_is_whole_and_leads_with_the_answer() -> None:
    page = html.render(document(made()))
    assert page.index("2 of 8 nodes are defective") < page.index('class="chart"') < page.index('id="defects"')
    assert "http" not in page.replace("http-equiv", "")
    assert "-23.2" in page and "return code 4" in page


def test_without_the_drawing_library_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vega, "is_installed", lambda: False)
    page = html.render(document(made()))
    assert 'id="charts-missing"' in page and 'class="chart"' not in page


def test_the_chart_names_defective_nodes_and_thins_healthy_ones() -> None:
    chart = strips(made(nodes=400))
    assert chart is not None
    assert "node-03 -23." in chart.description
    dots = [layer for layer in chart.spec["layer"] if layer["mark"].get("size") == 42]
    assert len(dots[0]["data"]["values"]) <= 2 * 120
    assert any("some between" in note for note in chart.notes)


def test_a_change_far_beyond_the_axis_is_drawn_at_its_edge() -> None:
    chart = strips(made(2600.0, failed=False))  # a hundred times faster is no defect, and must not flatten the rest
    assert chart is not None
    low, high = chart.spec["layer"][1]["encoding"]["x"]["scale"]["domain"]
    assert high - low < 150


def test_nothing_to_compare_has_no_chart() -> None:
    rules = rules_from_text("rules: {a: {check: value, when: x > 5, metrics: ['.*_bw']}}", "r")
    found = diagnose(assemble([nodes_results("a", {"mem-bw/h2d_bw": 9.0})]), rules)
    assert strips(found) is None
    assert "No metric was compared" in html.render(document(found))

"""Reports of served language models: tokens and users lead, never requests per second."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from paceline.analysis.summary import summarize_run
from paceline.api.progress import sentence
from paceline.core.run import RunRecords
from paceline.report import charts
from paceline.report.run import serving_charts
from paceline.report.run.case_page import CasePage, case_of
from paceline.report.run.case_page import document as case_document
from paceline.report.run.columns import CaseTable, case_tables
from paceline.report.run.document import show, to_html, to_markdown
from paceline.report.run.lead import answer, cards
from paceline.report.run_list import RunGlance
from support.records import run_of
from support.token_records import at_rate, of_users, sweep_run, swept, users_run


def table_of(run: RunRecords) -> CaseTable:
    (found,) = case_tables(summarize_run(run))
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return to_html(sweep_run())


def test_a_sweep_is_a_table_with_a_line_for_each_load() -> None:
    table = table_of(sweep_run())
    headers = [column.header for column in table.columns]
    assert headers[:7] == ["Load", "Tokens /s", "Per user", "TTFT p50", "TTFT p95", "ITL p50", "ITL p95"]
    assert [cell.text for cell in table.columns[0].cells] == [
        "1 user", "2 users", "4 users", "8 users", "16 users", "32 users",
    ]  # fmt: skip
    assert {"J /token", "USD /M tokens", "Queue"} <= set(headers)
    assert not any("Throughput" in header or header == "p99" for header in headers)


def test_cases_of_one_server_are_told_apart_by_their_users() -> None:
    table = table_of(users_run())
    assert [cell.text for cell in table.columns[0].cells] == ["1 user", "4 users", "16 users"]
    assert "llama3.2-1b" in table.shared


def test_loads_of_several_servers_keep_their_names() -> None:
    table = table_of(run_of([of_users(0, 4), at_rate(1, 3.0)]))
    assert [column.header for column in table.columns][:2] == ["Case", "Load"]


def test_figures_have_their_intervals_below() -> None:
    table = table_of(sweep_run())
    column = next(column for column in table.columns if column.header == "TTFT p50")
    assert all(cell.text for cell in column.cells)
    assert any(re.search(r"±|to", cell.below) for cell in column.cells)


@pytest.mark.parametrize("run", [sweep_run(), users_run()])
def test_the_answer_is_in_tokens_and_users(run: RunRecords) -> None:
    said = answer(summarize_run(run))
    assert re.search(r"llama3\.2-1b: up to [\d,.]+ tokens/s.* at \d+ users and [\d.]+ tokens/s/user.* at 1 user", said)
    assert "requests/s" not in said


def test_one_load_says_tokens_users_and_both_latencies() -> None:
    words = sentence(of_users(0, 16))
    assert re.match(r"[\d,.]+ tokens/s.* at 16 users, [\d.]+ tokens/s/user", words)
    assert "TTFT p50" in words and "TTFT p99" in words and "ITL p99" in words and "requests/s" not in words
    assert sentence(at_rate(0, 3.0)).split(", ")[0].endswith("at 3/s")


def test_cards_are_tokens_in_total_and_per_user_then_latencies() -> None:
    labels = [card.label for card in cards(summarize_run(sweep_run()))]
    assert labels[:2] == ["tokens in total", "tokens per user"]
    assert labels[2].startswith("time to first token") and labels[3].startswith("time between tokens")
    assert labels[4:] == ["energy per token", "cost of a million tokens"]


def test_a_terminal_shows_tokens_within_its_width() -> None:
    file = io.StringIO()
    show(sweep_run(), Console(file=file, width=100))
    lines = file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 100
    assert any("Tokens /s" in line and "TTFT p50" in line and "ITL p95" in line for line in lines)


def test_markdown_has_intervals_next_to_their_figures() -> None:
    assert re.search(r"\| 8 users \| [\d,.]+ \| [\d.]+ ± ", to_markdown(sweep_run()))


def test_the_page_has_the_trade_off_and_the_latencies(page: str) -> None:
    titles = re.findall(r"<title[^>]*>([^<:]+)", page[page.index("<main>") : page.index('id="cases"')])
    assert titles == [
        "Throughput against speed for each user",
        "Time to first token over load",
        "Time between tokens over load",
        "How long requests took",
        "Energy of a token",
        "Cost of tokens",
        "Latencies and the server over time",
    ]


def test_charts_draw_and_say_what_they_show() -> None:
    rows = summarize_run(sweep_run()).rows
    drawn = [*serving_charts.glance(rows), *serving_charts.details(rows)]
    for place, chart in enumerate(drawn):
        picture = charts.draw_svg(chart, f"chart-{place}")
        assert "NaN" not in picture and "undefined" not in picture
        assert chart.description
    assert "16 users" in drawn[0].description and "not beaten" in drawn[0].description


def test_a_single_load_has_no_curve() -> None:
    rows = summarize_run(run_of([of_users(0, 4)])).rows
    assert serving_charts.glance(rows) == []


def test_without_energy_and_price_there_are_no_such_charts() -> None:
    rows = summarize_run(run_of([swept(joules=None)])).rows
    titles = [chart.title for chart in serving_charts.details(rows)]
    assert not any("Energy" in title or "Cost" in title for title in titles)


def test_a_list_of_runs_knows_a_language_model_by_its_tokens() -> None:
    for run in (sweep_run(), run_of([at_rate(0, 3.0)])):
        headline = RunGlance.of(run).headline
        assert headline is not None and headline.unit == "tokens/s"
        assert headline.more.startswith("at ") and "tokens/s/user" in headline.more and "TTFT" in headline.more


def test_the_page_of_a_case_leads_with_tokens() -> None:
    made = case_document(CasePage(case_of(sweep_run(), 0), ()), every="/runs/{run}/cases/{case}")
    assert "tokens/s" in made.lead and "tokens/s/user" in made.lead
    assert [card.label for card in made.cards][:2] == ["tokens in total", "tokens per user"]

"""What `paceline simulate` answers and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.main import paceline
from paceline.core.errors import InputError
from support.cli import Sandbox

SMALL = ("--jobs", "60", "--seeds", "2", "--workload", "bimodal", "--load", "0.7,90%")


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(paceline, ["simulate", *arguments])


def test_the_answer_leads_and_everything_fits_into_100_columns() -> None:
    result = simulate(*SMALL)
    assert result.exit_code == 0, result.output
    assert re.match(r"Two-tier completes tasks \d\.\d\d", result.output)
    assert all(len(line) <= 100 for line in result.output.splitlines())
    for word in ("bimodal, 0.7", "bimodal, 0.9", "round-robin", "clairvoyant", "Jain", "bound"):
        assert word in result.output


def test_json_has_every_figure_with_its_interval() -> None:
    found = json.loads(simulate(*SMALL, "--json").output)
    assert [cell["load"] for cell in found["cells"]] == [0.7, 0.9]
    ours = found["cells"][0]["policies"][3]
    assert ours["policy"] == "two-tier"
    assert ours["mean"]["low"] <= ours["mean"]["value"] <= ours["mean"]["high"]
    assert ours["gain_over_round_robin"]["value"] > 1
    assert found["cells"][0]["lowest_possible_mean"] <= ours["mean"]["value"]


def test_csv_has_a_row_for_each_policy_and_markdown_a_table() -> None:
    rows = list(csv.DictReader(io.StringIO(simulate(*SMALL, "--csv").output)))
    assert len(rows) == 10 and float(rows[0]["gain"]) == 1.0
    markdown = simulate(*SMALL, "--md").output
    assert "| Workload | Load | round-robin |" in markdown and "| bimodal | 0.7 | two-tier |" in markdown


def test_the_page_is_complete_in_itself(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="install it with: pip install '.[charts]'")
    target = tmp_path / "s.html"
    assert simulate(*SMALL, "-o", str(target)).exit_code == 0
    page = target.read_text()
    assert "<h1" in page and page.count("<svg") == 3 and 'role="img"' in page
    assert not re.search(r"(?:src|href)=[\"']?https?:", page)
    picture = tmp_path / "s.png"
    assert simulate(*SMALL, "-o", str(picture)).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_single_policy_and_seed_are_shown_without_what_they_cannot_tell() -> None:
    result = simulate(*SMALL, "--policy", "two-tier", "--seeds", "1")
    assert result.exit_code == 0
    assert result.output.startswith("Two-tier: mean completion time") and "One seed gives no interval" in result.output
    assert simulate(*SMALL, "--policy", "round-robin", "--seeds", "1", "--md").exit_code == 0


def test_a_trace_is_read(tmp_path: Path) -> None:
    trace = tmp_path / "ours.csv"
    trace.write_text("submitted,seconds\n" + "".join(f"{i},{10 + i % 7}\n" for i in range(40)))
    result = simulate("--workload", str(trace), "--seeds", "2")
    assert result.exit_code == 0 and "ours, " in result.output


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (("--workload", "bimodel"), ("unknown-workload", "--workload", "bimodel", "bimodal")),
        (("--policy", "twotier"), ("unknown-policy", "--policy", "twotier", "two-tier")),
        (("--load", "0"), ("out-of-range", "--load", "0", None)),
        (("--load", "heavy"), ("not-a-fraction", "--load", "heavy", None)),
        (("--load", ","), ("no-loads", "--load", ",", None)),
        (("--workload", "missing.csv"), ("unreadable-file", None, "missing.csv", None)),
        (("--workload", "t.csv", "--load", "0.5"), ("own-load-of-a-trace", "--load", None, None)),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], fields: tuple[str | None, ...]) -> None:
    error = simulate(*arguments).exception
    assert isinstance(error, InputError)
    assert (error.code, error.key, error.value, error.suggestion) == fields


def test_formats_exclude_each_other_and_must_be_told() -> None:
    assert "exclude each other" in simulate("--html", "--md").output
    assert "the format is not clear" in simulate("-o", "x.txt").output


def test_a_trace_is_written_or_refused_in_one_sentence(sandbox: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    made = sandbox.ask("simulate", "trace", "--form", "azure", "--requests", "20", "-o", str(file))
    assert made.returncode == 0 and "20 requests" in made.stdout
    assert file.read_text().startswith("TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:")
    for flags, says in (
        (("--rate", "often", "-o", str(file)), "--rate: 'often' is not a rate"),
        (("--prompt-tokens", "many", "-o", str(file)), "--prompt-tokens: 'many' is not a distribution"),
        (("-o", str(tmp_path / "none" / "trace")), "cannot be written"),
    ):
        refused = sandbox.ask("simulate", "trace", *flags)
        assert refused.returncode == 2 and says in refused.stderr

"""`paceline baseline` and `paceline diagnose` as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.main import paceline
from paceline.core.errors import InputError
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.report.export import jsonl
from paceline.store import open_store
from support.records import case, record, run_of

DATA = Path(__file__).parents[2] / "data" / "superbench"
RESULTS, RULES, BASELINE = (str(DATA / name) for name in ("results-summary.jsonl", "rules.yaml", "baseline.json"))
RATE = Metric(name="compute_rate", unit="FLOP/s", better=Better.HIGHER)


def run(*words: str) -> Result:
    return CliRunner().invoke(paceline, list(words))


def ours(host: str, rate: float) -> RunRecords:
    measured = record(case(0, "gemm", "fp32 4096", precision="fp32", size=4096), [Measurement.of_value(RATE, rate)])
    made = run_of([measured], environment={"host": host}, tags=["fleet"])
    made.run.id = f"20260314-000000-{host}"
    made.records[0].run_id = made.run.id
    return made


@pytest.fixture
def fleet() -> list[RunRecords]:
    return [ours(f"n{place}", 1e12 * (0.9 if place == 4 else 1.0 + 0.001 * place)) for place in range(7)]


@pytest.fixture
def store(tmp_path: Path, fleet: list[RunRecords]) -> str:
    location = str(tmp_path / "paceline.db")
    with open_store(location) as opened:
        for made in fleet:
            opened.begin(made.run)
            for one in made.records:
                opened.add(one)
            opened.finish(made.run.id)
    return location


def test_a_tag_is_diagnosed_without_any_file(store: str) -> None:
    result = run("diagnose", "fleet", "--store", store)
    assert result.exit_code == 1, result.output
    assert result.output.startswith("1 of 7 nodes is defective: n4 (gemm).")
    assert "gemm fp32 4096/compute_rate" in result.output


def test_a_run_that_has_two_of_the_names_is_one_node(store: str, fleet: list[RunRecords]) -> None:
    result = run("diagnose", "fleet", fleet[0].run.id, "last", "--store", store)
    assert result.output.startswith("1 of 7 nodes is defective: n4 (gemm).")


def test_a_wide_spread_of_a_baseline_is_a_percentage_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text("".join(jsonl.render(ours(f"n{rate:g}", rate)) for rate in (1e11, 1e12)), encoding="utf-8")
    assert "121 %" in run("baseline", str(path)).output


def test_healthy_nodes_end_with_zero(tmp_path: Path, fleet: list[RunRecords]) -> None:
    path = tmp_path / "ours.jsonl"
    path.write_text("".join(jsonl.render(made) for made in fleet if "n4" not in made.run.id), encoding="utf-8")
    result = run("diagnose", str(path))
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "All 6 nodes are healthy.")


def test_superbenchs_files_are_taken_as_they_are() -> None:
    result = run("diagnose", RESULTS, "--rules", RULES, "--baseline", BASELINE)
    assert result.exit_code == 1
    assert result.output.startswith("2 of 8 nodes are defective: node-03 (Mem, MemBalance), node-06 (FailedTest).")


def test_runs_of_ours_are_judged_by_superbenchs_rules(store: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "superbench: {rules: {r: {function: variance, criteria: 'lambda x: x < -0.05', categories: Gemm, "
        "metrics: ['gemm-flops/.*_flops']}}}"
    )
    result = run("diagnose", "fleet", "--store", store, "--rules", str(rules), "--json")
    assert result.exit_code == 1, result.output
    document = json.loads(result.output)
    assert document["defective"] == ["n4"]
    assert document["verdicts"][0]["findings"][0]["metric"].startswith("gemm-flops")
    assert document["verdicts"][0]["findings"][0]["value"] == pytest.approx(900.0)  # GFLOP/s, as there


def test_a_baseline_is_made_and_used(store: str, tmp_path: Path) -> None:
    made = tmp_path / "baseline.json"
    result = run("baseline", "fleet", "--store", store, "-o", str(made))
    assert result.exit_code == 0, result.output
    assert "A baseline of 1 metrics from 7 nodes." in result.output
    document = json.loads(made.read_text())
    (reference,) = document["metrics"].values()
    assert reference["value"] == pytest.approx(1.002e12)
    assert (reference["unit"], reference["better"], reference["nodes"]) == ("FLOP/s", "higher", 7)
    result = run("diagnose", "n4", "--store", store, "--baseline", str(made))
    assert isinstance(result.exception, InputError)  # n4 is no run's id
    result = run("diagnose", "20260314-000000-n4", "--store", store, "--baseline", str(made))
    assert result.exit_code == 1
    assert "1 of 1 nodes is defective" in result.output


def test_a_baseline_in_superbenchs_form_merges_a_previous_one(tmp_path: Path) -> None:
    previous = tmp_path / "previous.json"
    previous.write_text('{"gemm-flops/FP32": 18318.4}')
    result = run("baseline", RESULTS, "--superbench", "--extend", str(previous), "-o", "-")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["gemm-flops/FP32"] == 18318.4
    assert found["mem-bw/h2d_bw"] == pytest.approx(26.1, rel=0.01)
    assert all(isinstance(value, int | float) for value in found.values())


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv", "md", "html", "png", "xlsx"])
def test_every_form_is_written(kind: str, tmp_path: Path) -> None:
    target = tmp_path / f"d.{kind}"
    result = run("diagnose", RESULTS, "-o", str(target))
    assert result.exit_code == 1
    assert result.output.strip() == str(target)
    assert target.stat().st_size > 300


def test_formats_exclude_each_other_and_must_be_told(tmp_path: Path) -> None:
    assert "exclude each other" in run("diagnose", RESULTS, "--md", "--html").output
    assert "the format is not clear" in run("diagnose", RESULTS, "-o", str(tmp_path / "d.txt")).output


def test_names_of_both_systems_do_not_mix(store: str, tmp_path: Path) -> None:
    made = tmp_path / "ours.json"
    assert run("baseline", "fleet", "--store", store, "-o", str(made)).exit_code == 0
    for words, code in ((["--rules", RULES], "rules-with-other-names"), ([], "results-with-other-names")):
        result = run("diagnose", RESULTS, "--baseline", str(made), *words)
        assert isinstance(result.exception, InputError)
        assert (result.exception.code, result.exception.value) == (code, str(made))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for words in (
        ["none.jsonl"],
        [RESULTS, "--rules", "none.yaml"],
        [RESULTS, "--baseline", "none.json"],
        [str(tmp_path)],
    ):
        assert isinstance(run("diagnose", *words).exception, InputError), words


def test_torch_is_not_imported() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom paceline.cli.main import paceline\n"
        f"CliRunner().invoke(paceline, ['diagnose', {RESULTS!r}])\n"
        f"CliRunner().invoke(paceline, ['baseline', {RESULTS!r}])\n"
        "print([name for name in ('torch', 'scipy', 'pandas', 'openpyxl') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"

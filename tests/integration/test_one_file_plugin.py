"""A package with one file outside the tree adds things of every kind, and they appear wherever ours do."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import GENEROUS, Sandbox, sandbox_in

ONE_FILE = Path(__file__).parents[1] / "data" / "one_file"
HERE = {"PYTHONPATH": str(ONE_FILE)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A store with a run of a suite that has the plug-in's benchmark in it."""
    with sandbox_in(tmp_path_factory.mktemp("one-file") / "sandbox") as sandbox:
        suite = sandbox.suite({"benchmark": "dot", "length": [100, 200]}, {"benchmark": "gemm", "size": 32, "steps": 3})
        done = sandbox.run("run", suite, "--report", "report.html", env=HERE)
        assert done.returncode == 0, done.stderr
        yield sandbox


def test_it_is_listed_and_explained(sandbox: Sandbox) -> None:
    assert "dot product of two vectors" in sandbox.run("list", "benchmarks", env=HERE).stdout
    assert "--length" in sandbox.run("run", "dot", "--help", env=HERE).stdout
    assert "dot product" in sandbox.run("show", "dot", env=HERE).stdout


def test_its_run_has_a_section_a_roofline_and_other_tools_names(measured: Sandbox) -> None:
    shown = measured.run("report", env=HERE).stdout
    assert "\nVectors\n" in shown
    assert "dot length=200" in shown
    assert "\nDots\n" in shown and "2 dot products." in shown  # the section of its own
    page = (measured.work / "report.html").read_text()
    assert "Vectors" in page and "a pencil" in page
    assert ">Dots</h2>" in page
    assert "fp32 200 GFLOP/s: measured in this run" in page  # a roof of the roofline
    names = json.loads(measured.run("report", "--superbench", "-o", "-", env=HERE).stdout)
    assert names["dot-flops:length=100/dot"] == pytest.approx(100.0)


def test_what_it_shows_of_a_device_is_a_ceiling(measured: Sandbox) -> None:
    code = (
        "from paceline.analysis.roofline import ceilings_of; from paceline.store import open_reader; import sys\n"
        "with open_reader(sys.argv[1]) as store:\n"
        "    found, absent = ceilings_of(store.load(store.find_run('last')))\n"
        "print(sorted({(one.kind, one.name) for one in found}))"
    )
    import sys

    done = measured.call([sys.executable, "-c", code, str(measured.store)], env=HERE)
    assert "('compute', 'fp32')" in done.stdout and "('memory', 'main memory')" in done.stdout, done.stderr


def test_it_is_on_the_leaderboard(measured: Sandbox) -> None:
    assert "dot" in measured.run("leaderboard", "--case", "dot", env=HERE).stdout


def test_its_export_and_its_verb(measured: Sandbox) -> None:
    assert measured.run("report", "--tally", env=HERE).stdout == "3 records\n"
    assert "--tally" in measured.run("report", "--help", env=HERE).stdout
    assert "greet" in measured.run("--help", env=HERE).stdout
    assert measured.run("greet", "Ada", env=HERE).stdout == "hello Ada\n"


@pytest.fixture
def leader(sandbox: Sandbox) -> Iterator[str]:
    """A leader with the plug-in's engine; its address."""
    process = sandbox.start("leader", "--port", "0", "--engine", "sample", env=HERE)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Leading at "):
            yield line.split()[-1]
            break
    else:
        pytest.fail(f"no leader: {process.communicate()[1]}")
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=GENEROUS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def test_its_engine_measures_its_benchmark_and_its_page_is_served(sandbox: Sandbox, leader: str) -> None:
    at = HERE | {"PACELINE_LEADER": leader}
    done = sandbox.run("submit", "dot", "--set", "label=mine", "--wait", env=at)
    assert done.returncode == 0, done.stderr
    refused = sandbox.run("submit", "dot", "--set", "label=../x", env=at)
    assert (refused.returncode, "'label'" in refused.stderr) == (2, True)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{leader}/sample", timeout=60) as answer:
        assert answer.read() == b"1 followers"

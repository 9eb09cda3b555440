"""The pytest plug-in in sessions of its own: what is measured, kept, shown, compared, and left out."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import paceline

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def work(size, *, times=1):
    return sum(range(size)) * times

def test_speed(paceline):
    result = paceline.measure(work, 500, times=2)
    assert result is None or result["time"].interval.low > 0

def test_plain():
    assert True
"""
OTHERS = """
import pytest

def test_failing(paceline):
    with pytest.raises(ZeroDivisionError):
        paceline.measure(lambda: 1 / 0)

def test_twice(paceline):
    paceline.measure(int)
    with pytest.raises(pytest.UsageError, match="measures once"):
        paceline.measure(int)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tested")
    (made / "pytest.ini").write_text("[pytest]\n")
    (made / "test_mine.py").write_text(TESTS)
    return made


def run(folder: Path, *words: str, code: int = 0) -> str:
    ours = ["-p", "no:paceline", "-p", "paceline.api.pytest_plugin"]  # also where the package is not installed
    settings = [f"--paceline-store={folder / 'results.db'}", "--paceline-budget=0.05s", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *ours, *settings, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def first(folder: Path) -> str:
    return run(folder, "--paceline-tag=first")


def test_a_session_is_a_run_of_the_store(folder: Path, first: str) -> None:
    result = paceline.load("first", store=folder / "results.db")
    assert result.name == "pytest"
    assert result.ok
    assert [case.title for case in result.cases] == ["pytest test_mine.py::test_speed"]
    assert result["time"].unit == "s"
    assert result.case.facts["callable"] == "test_mine.work"
    assert result.records.run.command[0] == "pytest"
    assert result.records.run.status == "finished"


def test_a_table_at_the_end_has_intervals(first: str) -> None:
    table = first.partition("paceline ===")[2]
    assert "pytest test_mine.py::test_speed" in table
    assert "Time" in table
    assert "2 passed" in first


def test_a_session_is_compared_with_the_one_before(folder: Path, first: str) -> None:
    said = run(folder, "--paceline-compare", "--paceline-compare-fail=time>1000")
    assert "Compared with 2" in said
    assert "cannot be decided from one run each" in " ".join(said.split())
    assert "Compared with first" in run(folder, "--paceline-compare=first")


@pytest.mark.long
def test_what_is_significantly_slower_fails_the_session(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    text = "import time\n\ndef test_it(paceline):\n    paceline.measure(time.sleep, SECONDS)\n"
    (tmp_path / "test_it.py").write_text(text.replace("SECONDS", "0.005"))
    for _ in range(5):
        run(tmp_path, "--paceline-tag=fast")
    (tmp_path / "test_it.py").write_text(text.replace("SECONDS", "0.2"))
    said = run(tmp_path, "--paceline-compare=fast", "--paceline-compare-fail=50%", code=1)
    assert "FAILED: " in said
    assert "slower" in said


def test_skipping_and_choosing(folder: Path) -> None:
    assert "1 passed, 1 skipped" in run(folder, "--paceline-skip")
    assert "1 passed, 1 deselected" in run(folder, "--paceline-only")
    said = run(folder, "--paceline-disable")
    assert "2 passed" in said
    assert "paceline ===" not in said


def test_failures_are_kept_and_a_test_measures_once(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text(OTHERS)
    run(tmp_path, "--rootdir=.")
    result = paceline.load("last", store=tmp_path / "results.db")
    assert [case.ok for case in result.cases] == [False, True]
    assert result.records.missing == []


FAILING = """
import pytest

CALLS = []

def broken(since):
    CALLS.append(None)
    if len(CALLS) >= since:
        raise ValueError(f"no weights at call {since}")

@pytest.mark.parametrize("since", [1, 3])
def test_broken(paceline, since):
    CALLS.clear()
    paceline.measure(broken, since)

def test_absent(paceline):
    paceline.measure(pytest.skip, "no such device")
"""


def test_a_function_that_raises_fails_its_test_with_the_users_own_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING)
    plugins = ["-p", "no:paceline", "-p", "paceline.api.pytest_plugin", "-p", "no:cacheprovider"]
    store = pytester.path / "results.db"
    done = pytester.runpytest_subprocess(*plugins, f"--paceline-store={store}", "--paceline-budget=0.05s")
    done.assert_outcomes(failed=2, skipped=1)
    for since in (1, 3):
        done.stdout.fnmatch_lines(f"E * ValueError: no weights at call {since}")
    result = paceline.load("last", store=store)
    assert [(case.ok, case.error) for case in result.cases] == [
        (False, f"failed: ValueError: no weights at call {since}") for since in (1, 3)
    ]
    assert len(result.records.missing) == 1  # the test that was skipped


def test_wrong_options_are_refused(folder: Path) -> None:
    assert "exclude each other" in run(folder, "--paceline-skip", "--paceline-only", code=4)
    assert "goes with --paceline-compare" in run(folder, "--paceline-compare-fail=5%", code=4)
    assert "as in 5%" in run(folder, "--paceline-compare", "--paceline-compare-fail=min:5%", code=4)


@pytest.mark.skipif(importlib.util.find_spec("pytest_benchmark") is not None, reason="pytest-benchmark has the names")
def test_the_names_of_pytest_benchmark_work_where_it_is_not_installed(folder: Path, first: str) -> None:
    said = run(folder, "--benchmark-only", "--benchmark-compare", "--benchmark-compare-fail=mean:900%")
    assert "Compared with 2" in said
    assert "1 deselected" in said


def test_where_it_is_installed_both_work(folder: Path, tmp_path: Path) -> None:
    """A package of that name that adds the same options, as pytest-benchmark does."""
    (tmp_path / "pytest_benchmark").mkdir()
    (tmp_path / "pytest_benchmark" / "__init__.py").write_text("")
    (tmp_path / "pytest_benchmark" / "plugin.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--benchmark-skip', action='store_true')\n"
        "    parser.addoption('--benchmark-compare', nargs='?', const='last')\n"
    )
    ini = f"-c={folder / 'pytest.ini'}"
    words = ["-o", f"pythonpath={tmp_path}", ini, "--paceline-skip"]
    chosen = [
        "no:cacheprovider",
        "no:paceline",
        "no:benchmark",
        "paceline.api.pytest_plugin",
        "pytest_benchmark.plugin",
    ]
    plugins = [word for name in chosen for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *words, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout

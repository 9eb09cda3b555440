"""The notebook and the page on Python do what they say: every cell and every example runs, with real effects."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from support.cli import GENEROUS, Sandbox
from support.docs_markdown import ROOT, files

pytest.importorskip("cloudpickle", reason="install it with: pip install '.[python]'")
pytestmark = pytest.mark.long

GUIDE = ROOT / "docs" / "guide"
RUN_CELLS = ROOT / "tests" / "support" / "run_cells.py"


def shown(sandbox: Sandbox, page: Path, **more: str) -> tuple[list[str], str]:
    """What each cell shows, and all that is printed."""
    command = [sys.executable, str(RUN_CELLS), str(page)]
    done = subprocess.run(
        command, cwd=sandbox.work, env=sandbox.environment(more), capture_output=True, text=True, timeout=GENEROUS * 5
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


def test_the_notebook(sandbox: Sandbox) -> None:
    cells, said = shown(sandbox, GUIDE / "python.ipynb")
    result, comparison, picture, submitted = (cell for cell in cells if cell.startswith("<"))
    assert "object:Net" in result
    assert "<table>" in result
    assert "throughput" in said
    assert "__main__.Net" in said
    assert "the mean of the output" in said
    assert "slower" in comparison or "cannot be decided" in comparison
    assert picture.startswith("<svg") == (not _has_matplotlib())
    assert "gemm" in submitted
    assert "cannot be submitted" in said
    store = str(sandbox.store)
    assert paceline.compare("before", "after", store=store).verdict in comparison.replace("\u00a0", " ")


def test_the_examples_of_the_page(sandbox: Sandbox) -> None:
    leader = sandbox.start("leader", "--port", "0")
    assert leader.stdout is not None
    url = next(line.split()[-1] for line in leader.stdout if line.startswith("Leading at "))
    _, said = shown(sandbox, GUIDE / "python.md", PACELINE_LEADER=url)
    leader.terminate()
    leader.communicate(timeout=GENEROUS)
    assert "unknown-key size" in said
    assert "succeeded" in said
    assert (sandbox.work / "sweep.svg").read_text().startswith("<svg")
    assert "<html" in (sandbox.work / "sweep.html").read_text()
    assert paceline.load("products", store=str(sandbox.store)).ok


def test_the_files_of_the_page(sandbox: Sandbox) -> None:
    made = files(GUIDE / "python.md")
    for name in ("bench.py", "test_speed.py"):
        sandbox.write(name, made[name])
    done = sandbox.run("run", "./bench.py", "--count", "100,1000", "--budget", "0.1s", "--no-report")
    assert done.returncode == 0, done.stderr
    assert re.search(r"add-up count=1000\b", done.stdout)
    plugin = ["-p", "no:paceline", "-p", "paceline.api.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--paceline-budget=0.1s", "test_speed.py"]
    tested = subprocess.run(command, cwd=sandbox.work, env=sandbox.environment(), capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert paceline.load("last", store=str(sandbox.store)).name == "pytest"


def test_the_notebook_keeps_no_outputs() -> None:
    cells = json.loads((GUIDE / "python.ipynb").read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if "outputs" in cell)


def _has_matplotlib() -> bool:
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None

"""The notebook and the page on Python do what they say: every cell and every example runs, with real effects."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from support.cli import GENEROUS, Sandbox
from support.docs_markdown import ROOT, files
from support.other_tools import tool_environment

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


def test_the_notebook_in_a_kernel_of_jupyter(sandbox: Sandbox) -> None:
    """The kernel is the tests' interpreter, which finds Jupyter's packages in an environment of their own."""
    jupyter = tool_environment("jupyter", "nbclient", "ipykernel")
    (packages,) = jupyter.folder.glob("lib/python*/site-packages")
    done = sandbox.folder / "done.ipynb"
    command = [sys.executable, str(RUN_CELLS.with_name("run_notebook.py")), str(GUIDE / "python.ipynb"), str(done)]
    path = os.pathsep.join([sandbox.environment()["PYTHONPATH"], str(packages)])
    ran = sandbox.call(command, env={"PYTHONPATH": path}, timeout=GENEROUS * 5)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cells = [cell for cell in json.loads(done.read_text())["cells"] if cell.get("outputs")]
    progress, result = (output["data"] for output in cells[0]["outputs"])
    assert re.match(r"\[1/1\] train object:Net.*: .* samples/s", "".join(progress["text/plain"]))
    assert "<table>" in "".join(result["text/html"])
    shown = [set(output["data"]) for cell in cells for output in cell["outputs"] if "data" in output]
    pictures = [forms for forms in shown if {"image/svg+xml", "image/png"} & forms]
    assert len(pictures) == 1
    assert sum("text/html" in forms for forms in shown if forms not in pictures) == 3  # a run, a comparison, a job


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

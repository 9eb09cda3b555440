"""HPL through xhpl: the system that is asked for, what its table says, and a solution that failed its check."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.compute import hpl
from paceline.benchmarks.compute.hpl import Hpl, HplParameters, grid, order, parse
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, SilentCorruption, Unsupported
from paceline.core.record import Result

# As HPL 2.0 printed it, for two runs.
RESULT = """\
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR11C2R4         400    64     1     2               0.29              1.490e-01
--------------------------------------------------------------------------------
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=        0.0070714 ...... PASSED
================================================================================
"""
# Answers the input file that lies in its folder, as xhpl does.
STAND_IN = """#!{python}
from pathlib import Path
lines = Path("HPL.dat").read_text().splitlines()
runs, size = int(lines[4].split()[0]), lines[5].split()[0]
assert lines[5].split() == [size] * runs
for _ in range(runs):
    print({result!r}.replace(" 400 ", f" {{size}} "))
"""


@pytest.fixture
def xhpl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "xhpl"
    program.write_text(STAND_IN.format(python=sys.executable, result=RESULT))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


def measured(target: str = "cpu", **values: Any) -> Result:
    case = Case(index=0, benchmark="hpl", parameters={}, title="", target=target)
    return Hpl().measure(HplParameters(**values), Context(case=case))


def test_every_run_is_a_sample_and_the_input_is_what_was_asked_for(xhpl: Path) -> None:
    result = measured(n=384, p=1, q=1, runs=3)
    values = {one.metric.name: one for one in result.measurements}
    assert values["compute_rate"].value == pytest.approx(0.149e9)
    assert values["time"].count == 3
    assert result.facts["n"] == 384 and result.facts["grid"] == "1 x 1"
    assert "0.0070714" in result.facts["checked"]


def test_without_an_order_the_matrix_fills_its_share_of_the_memory(xhpl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpl.host, "free_memory", lambda: 10**9)
    size = measured(p=1, q=1, memory_share=0.5).facts["n"]
    assert size % 192 == 0 and 0.4e9 < 8 * size**2 <= 0.5e9
    assert order(1.0, 192) == 192


@pytest.mark.parametrize(
    ("processes", "rows", "columns", "expected"),
    [
        (1, None, None, (1, 1)),
        (12, None, None, (3, 4)),
        (7, None, None, (1, 7)),
        (8, 4, None, (4, 2)),
        (8, 2, 2, (2, 2)),
    ],
)
def test_the_grid_is_the_squarest_that_takes_every_core(
    processes: int, rows: int | None, columns: int | None, expected: tuple[int, int]
) -> None:
    assert grid(processes, rows, columns) == expected


def test_a_wrong_solution_is_silent_corruption() -> None:
    with pytest.raises(SilentCorruption, match=r"scaled residual is 4\.2e\+03"):
        parse(RESULT.replace("0.0070714 ...... PASSED", "4.2e+03 ...... FAILED"), 400, 1)


@pytest.mark.parametrize("text", ["", RESULT.partition("||")[0], RESULT.replace(" 400 ", " 399 ")])
def test_a_table_that_breaks_off_or_is_of_another_system_is_refused(text: str) -> None:
    with pytest.raises(ToolError, match="instead of 1"):
        parse(text, 400, 1)


def test_without_the_program_or_on_a_gpu_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"xhpl.*put it on the PATH \(build it from netlib"):
        measured(n=100)
    with pytest.raises(Unsupported, match="use --target cpu"):
        measured(target="cuda:0")


def test_the_work_is_that_which_hpl_counts(xhpl: Path) -> None:
    result = measured(n=384, p=1, q=1)
    [time] = [one for one in result.measurements if one.metric.name == "time"]
    assert math.isclose(time.value * 0.149e9, 2 / 3 * 384**3 + 1.5 * 384**2)

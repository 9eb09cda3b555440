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
from paceline.benchmarks.compute.hpl import Hpl, HplParameters, grid, operations, order, parse
from paceline.core.benchmark import BENCHMARKS, Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, SilentCorruption, Unsupported
from paceline.core.record import Result
from paceline.core.suite import Here, Suite, expand

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


def measured(target: str = "cpu", timeout: float = 1e7, **values: Any) -> Result:
    case = Case(index=0, benchmark="hpl", parameters={}, title="", target=target, timeout=timeout)
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
    facts = measured(p=1, q=1, memory_share=0.5, budget=1e6).facts
    assert facts["n"] % 192 == 0 and 0.4e9 < 8 * facts["n"] ** 2 <= 0.5e9
    assert facts["n_chosen"] == "fills 50% of the free memory"
    assert order(1.0, 192) == 192


def test_a_matrix_that_would_outlast_the_budget_is_smaller(xhpl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpl.host, "free_memory", lambda: 10**12)
    rate = 0.149e9  # of the stand-in, whatever the size
    facts = measured(p=1, q=1, budget=600.0, runs=2).facts
    assert 0.5 * 600 < 2 * operations(facts["n"]) / rate <= 600
    assert measured(p=1, q=1, timeout=60.0).facts["n"] < facts["n"]  # which the timeout of a case limits too
    assert "ends within 480 s at the 0.149 GFLOP/s of a trial; memory would hold" in facts["n_chosen"]


def test_trials_grow_until_one_lasts_long_enough_to_tell(xhpl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = RESULT.replace("1.490e-01", "1.490e+04")
    xhpl.write_text(STAND_IN.format(python=sys.executable, result=fast))
    monkeypatch.setattr(hpl.host, "free_memory", lambda: 10**12)
    phases: list[str] = []
    case = Case(index=0, benchmark="hpl", parameters={}, title="", target="cpu")
    context = Context(case=case, report=lambda progress: phases.append(progress.phase))
    Hpl().measure(HplParameters(p=1, q=1), context)
    sizes = [int(phase.split()[2]) for phase in phases]
    assert sizes[:6] == [1920, 3840, 7680, 15360, 30720, 61440]
    assert operations(30720) / 14.9e12 < 2.0 <= operations(61440) / 14.9e12
    assert len(sizes) == 7 and sizes[-1] > 61440


def test_a_case_without_an_order_may_take_its_budget_whatever_the_usual_timeout() -> None:
    values = {"benchmark": "hpl", "target": "cpu", "budget": "2h"}
    [chosen] = expand(Suite(name="s", cases=[values]), BENCHMARKS.registry().get, Here())
    assert chosen.expected is not None
    assert chosen.timeout > chosen.expected > 7200
    [given] = expand(Suite(name="s", cases=[{**values, "n": 10_000}]), BENCHMARKS.registry().get, Here())
    assert given.expected is None


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

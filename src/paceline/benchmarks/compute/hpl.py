"""HPL on the host's processors: one dense system of equations, solved by an existing `xhpl` and checked by it."""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import COMPUTE_RATE, TIME, join_words
from paceline.benchmarks._micro.tools import garbled, run_tool
from paceline.benchmarks.memory import host
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.environment import Environment
from paceline.core.errors import MissingDependency, SilentCorruption, Unsupported
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration
from paceline.core.record import Measurement, Record, Result
from paceline.core.subject import Description

WORD = 8  # bytes of a double
TRIAL_BLOCKS = 10  # of the first trial solve
TRIAL_SECONDS = 2.0  # of the trial whose rate decides
FILLED = 0.8  # of the budget: a larger matrix is solved faster per operation, but a hot processor is slower
# A row of HPL's table: the variant, N, NB, P, Q, seconds, GFLOP/s.
_ROW = re.compile(r"^W[RC]\w+\s+(\d+)(?:\s+\d+){3}\s+[\d.]+\s+([\d.eE+-]+)\s*$", re.MULTILINE)
_RESIDUAL = re.compile(r"=\s*([\d.eE+-]+|nan|inf)\s*\.*\s*(PASSED|FAILED)", re.IGNORECASE)
# The usual choices: right-looking panels, one step of look-ahead, rows swapped by spreading and rolling.
_INPUT = """HPLinpack benchmark input file
written by Paceline
HPL.out      output file name
6            device out (6=stdout)
{runs}            # of problems sizes (N)
{sizes}
1            # of NBs
{block}
0            PMAP process mapping (0=Row-major)
1            # of process grids (P x Q)
{rows}
{columns}
16.0         threshold
1            # of panel fact
2            PFACTs (2=Right)
1            # of recursive stopping criterium
4            NBMINs
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (1=Crout)
1            # of broadcast
1            BCASTs (1=1rM)
1            # of lookahead depth
1            DEPTHs
2            SWAP (2=mix)
64           swapping threshold
0            L1 in transposed form
0            U in transposed form
1            Equilibration
8            memory alignment in double
"""


class HplParameters(Parameters):
    """The system of equations, and the processes that solve it."""

    n: int | None = Field(default=None, ge=1)
    """Order of the matrix; unset takes what fills memory_share of the free memory, or less to end within the budget"""
    memory_share: float = Field(default=0.8, gt=0, le=0.95)
    """Part of the free memory that the matrix takes where n is unset: a smaller share ends sooner but reaches
    fewer FLOP/s"""
    nb: int = Field(default=192, ge=1)
    """Columns of a block"""
    p: int | None = Field(default=None, ge=1)
    """Rows of the grid of processes; unset takes the squarest grid of one process for each core"""
    q: int | None = Field(default=None, ge=1)
    """Columns of the grid of processes"""
    runs: int = Field(default=1, ge=1, le=20)
    """How often the system is solved"""
    budget: Duration = Field(default=600.0, gt=0)
    """Time of all runs together where n is unset, judged by trials with small matrices; a large machine wants more"""


class Hpl(Benchmark[HplParameters]):
    """Runs `xhpl`, under mpirun where there are several processes, and takes only a solution that passed its check."""

    name = "hpl"
    summary = "HPL (Linpack) on the CPU through an installed xhpl: FLOP/s, time, residual checked"
    category = "compute"
    metrics = (COMPUTE_RATE, TIME)

    @classmethod
    def title(cls, parameters: HplParameters) -> str:
        grid = f"{parameters.p or '?'}x{parameters.q or '?'}" if parameters.p or parameters.q else ""
        return join_words(f"N {parameters.n}" if parameters.n else "", grid)

    @classmethod
    def describe(cls, record: Record, parameters: HplParameters, environment: Environment) -> Description:
        keys = {"throughput": (COMPUTE_RATE.name, _superbench.GIGA), "time": (TIME.name, 1.0)}
        values = _superbench.means(record, keys) | {"tests_pass": 1.0}
        return Description(aliases=_superbench.alias(record, "cpu-hpl", values))

    @classmethod
    def expected_seconds(cls, parameters: HplParameters) -> float | None:
        return super().expected_seconds(parameters) if parameters.n is None else None

    def measure(self, parameters: HplParameters, context: Context) -> Result:
        if context.target != "cpu":
            raise Unsupported(f"hpl solves on the host's processors, not on {context.target}: use --target cpu")
        rows, columns = grid(host.usable_cpus().default_threads, parameters.p, parameters.q)
        command = [_tool("xhpl", "build it from netlib.org/benchmark/hpl, or install your vendor's")]
        if rows * columns > 1:
            mpirun = _tool("mpirun", "apt install openmpi-bin")
            command = [mpirun, "-np", str(rows * columns), *command]

        def solve(size: int, runs: int) -> tuple[list[float], list[float]]:
            context.report(Progress(phase=f"solving for {size} unknowns on {rows} x {columns} processes"))
            sizes = " ".join([str(size)] * runs)
            text = _INPUT.format(runs=runs, sizes=sizes, block=parameters.nb, rows=rows, columns=columns)
            return parse(_run(command, text), size, runs)

        size, why = parameters.n, "as asked for"
        if size is None:
            size, why = _choose(parameters, context.case.timeout, lambda trial: solve(trial, 1)[0][0])
        rates, residuals = solve(size, parameters.runs)
        work = operations(size)
        time = Measurement.of_samples(TIME, [work / rate for rate in rates])  # of which it prints two places alone
        facts = {
            "n": size,
            "n_chosen": why,
            "nb": parameters.nb,
            "grid": f"{rows} x {columns}",
            "command": [Path(word).name if "/" in word else word for word in command],
            "operations": f"2/3 n^3 + 3/2 n^2 = {work:g}",
            "checked": f"by HPL itself, scaled residual {max(residuals):g}, at most 16",
        }
        return Result(measurements=[Measurement.of_rate(COMPUTE_RATE, work, time), time], facts=facts)


def _run(command: list[str], text: str) -> str:
    """What xhpl prints, given this input file."""
    with tempfile.TemporaryDirectory(prefix="paceline-hpl-") as folder:
        Path(folder, "HPL.dat").write_text(text, encoding="utf-8")
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        as_root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")  # Open MPI's; others do not mind
        environment |= dict.fromkeys(as_root, "1") if os.geteuid() == 0 else {}
        return run_tool(command, environment=environment, folder=folder).output


def operations(size: int) -> float:
    """Floating-point operations of a solve, as HPL counts them."""
    return 2.0 / 3.0 * size**3 + 1.5 * size**2


def _choose(parameters: HplParameters, timeout: float, rate_of: Callable[[int], float]) -> tuple[int, str]:
    """The largest order that memory, budget and timeout allow, and why it is that; `rate_of` solves a trial."""
    block = parameters.nb
    largest = order(parameters.memory_share * host.free_memory(), block)
    trial = min(TRIAL_BLOCKS * block, largest)
    rate = rate_of(trial)
    while trial < largest and operations(trial) / rate < TRIAL_SECONDS:
        trial = min(2 * trial, largest)
        rate = rate_of(trial)
    seconds = FILLED * min(parameters.budget, FILLED * timeout)  # the trials take a part of the timeout
    fitting = (1.5 * rate * seconds / parameters.runs) ** (1 / 3)
    size = max(block, int(fitting) // block * block)
    if size >= largest:
        return largest, f"fills {parameters.memory_share:.0%} of the free memory"
    return size, f"ends within {seconds:.3g} s at the {rate / 1e9:.3g} GFLOP/s of a trial; memory would hold {largest}"


def _tool(name: str, remedy: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise MissingDependency(f"{name}, which solves the equations of HPL,", f"put it on the PATH ({remedy})")
    return path


def grid(processes: int, rows: int | None, columns: int | None) -> tuple[int, int]:
    """The grid that was asked for, or of so many processes the squarest one, not higher than wide."""
    if rows and columns:
        return rows, columns
    if rows or columns:
        other = max(1, processes // (rows or columns or 1))
        return (rows, other) if rows else (other, columns or 1)
    height = max(height for height in range(1, math.isqrt(processes) + 1) if processes % height == 0)
    return height, processes // height


def order(memory: float, block: int) -> int:
    """The order of the matrix that fills so many bytes, in whole blocks."""
    return max(block, math.isqrt(int(memory / WORD)) // block * block)


def parse(output: str, size: int, runs: int) -> tuple[list[float], list[float]]:
    """Operations per second and residual of every run; one that failed its check is silent corruption."""
    rows, checks = _ROW.findall(output), _RESIDUAL.findall(output)
    rates = [1e9 * float(rate) for order, rate in rows if int(order) == size]
    if len(rates) != runs or len(checks) != runs or not all(rate > 0 for rate in rates):
        raise garbled("xhpl", f"{len(rates)} results and {len(checks)} checks instead of {runs}", output)
    failed = [residual for residual, verdict in checks if verdict.upper() != "PASSED"]
    if failed:
        raise SilentCorruption(f"HPL's solution is wrong: its scaled residual is {failed[0]}, and at most 16 passes")
    return rates, [float(residual) for residual, _ in checks]

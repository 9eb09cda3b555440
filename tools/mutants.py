"""Shows what the tests would notice: changes one expression at a time and runs the tests that execute its line.

    make mutants                                    300 of them, by seed 1
    python tools/mutants.py --seed 7 --count 50 --only analysis

A mutant is killed if a test fails, or no longer ends. Tests are unit and property tests, chosen by coverage: those that
execute the changed line, the quickest first. Survivors are listed with the line as it was and as it was changed; one
that no test can tell from the original is declared in `tools/equivalent_mutants.toml`, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "paceline"
PLACES = (
    *("core", "measure", "analysis", "service/scheduler", "service/api", "store", "load", "benchmarks/parallel"),
    *("runner", "report/export"),
)
TESTS = ("tests/unit", "tests/property")
CACHE = ROOT / ".cache" / "mutants"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
GOAL = 0.9  # of those that are not declared equivalent
MOST_EQUIVALENT = 15
MOST_SECONDS = 90.0  # of tests that run against one mutant, by what they took without it
SLACK = 30.0  # seconds beyond three times that, after which a mutant counts as one that does not end

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change of one expression."""

    path: str  # under src/paceline
    line: int
    kind: str
    executed: int  # the line that a test executes if the expression matters to it
    before: str
    after: str
    text: str  # of the whole file, changed

    @property
    def name(self) -> str:
        """What it is called where it is declared equivalent: line numbers change, lines do not."""
        return f"{self.path}: {self.before.strip()} -> {self.after.strip()}"


@dataclass(frozen=True)
class Trial:
    """What came of a mutant."""

    mutant: Mutant
    outcome: str  # killed, survived, not covered, equivalent
    seconds: float = 0.0


@dataclass(frozen=True)
class Site:
    """An expression that can be changed, and what it would become."""

    path: Path
    node: ast.expr
    kind: str
    changed: ast.AST
    executed: int

    def mutant(self) -> Mutant:
        """The file with the expression's own characters exchanged: everything else stays, comments too."""
        node = self.node
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        data = self.path.read_bytes()
        lines = data.splitlines(keepends=True)
        start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
        text = ast.unparse(ast.fix_missing_locations(self.changed))
        if not isinstance(node, ast.GeneratorExp):  # which has parentheses of its own
            text = f"({text})"
        before = b" ".join(line.strip() for line in lines[node.lineno - 1 : node.end_lineno])
        first, last = lines[node.lineno - 1][: node.col_offset], lines[node.end_lineno - 1][node.end_col_offset :]
        after = first + text.encode() + last
        name = str(self.path.relative_to(SOURCE))
        whole = (data[:start] + text.encode() + data[end:]).decode()
        return Mutant(name, node.lineno, self.kind, self.executed, before.decode(), after.decode().strip(), whole)


def sites(path: Path) -> Iterator[Site]:
    """All of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = _left_alone(tree)
    defaults = _defaults(tree)
    for node in ast.walk(tree):
        if node not in skipped and isinstance(node, ast.expr):
            for kind, changed in _changes(node):
                yield Site(path, node, kind, changed, defaults.get(node, node.lineno))


def _defaults(tree: ast.Module) -> dict[ast.AST, int]:
    """Default values of arguments are computed at import: who relies on one executes the function's first line."""
    lines: dict[ast.AST, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_documented = ast.get_docstring(node) is not None and len(node.body) > 1
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    lines |= dict.fromkeys(ast.walk(default), node.body[is_documented].lineno)
    return lines


def _left_alone(tree: ast.Module) -> set[ast.AST]:
    """What decides nothing: annotations, decorators, words of messages, settings at the top of a module, assertions.

    That two lists are equally long (`strict` of `zip`) is an assertion as well.
    """
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (part for part in ast.walk(node.args) if isinstance(part, ast.arg))
            parts = [node.returns, *node.decorator_list, *(argument.annotation for argument in arguments)]
        elif isinstance(node, ast.ClassDef):
            parts = [
                *node.decorator_list,
                *(part for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)),
            ]
        elif isinstance(node, ast.Module):
            parts = [part for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
            parts = [node]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            parts = [keyword.value for keyword in node.keywords]
        for part in parts:
            found |= set(ast.walk(part)) if part is not None else set()
    return found


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    copy = deepcopy(node)
    if isinstance(node, ast.Compare) and isinstance(copy, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        copy.ops[0] = COMPARISONS[type(node.ops[0])]()
        yield "comparison", copy
    elif isinstance(node, ast.BinOp) and isinstance(copy, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, node.right)):
            copy.op = ARITHMETIC[type(node.op)]()
            yield "arithmetic", copy
    elif isinstance(node, ast.BoolOp) and isinstance(copy, ast.BoolOp):
        copy.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "boolean", copy
    elif isinstance(node, ast.UnaryOp) and isinstance(copy, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "negation", copy.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp) and isinstance(copy, ast.IfExp):
        yield "condition", ast.IfExp(ast.UnaryOp(ast.Not(), copy.test), copy.body, copy.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OPPOSITES:
        assert isinstance(copy, ast.Call)
        copy.func = ast.Name(OPPOSITES[node.func.id])
        yield "opposite", copy
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        assert isinstance(copy, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp)
        for number, generator in enumerate(node.generators):
            if generator.ifs:
                kept = copy.generators[number].ifs
                copy.generators[number].ifs = []
                yield "filter", deepcopy(copy)
                copy.generators[number].ifs = kept


def sampled(count: int, seed: int, only: str) -> list[Mutant]:
    """So many of all mutants, spread over the files as their expressions are."""
    files = sorted(path for place in PLACES for path in (SOURCE / place).rglob("*.py"))
    every = [site for path in files if only in str(path) and "migrations" not in path.parts for site in sites(path)]
    random.Random(seed).shuffle(every)
    made = (site.mutant() for site in every)
    return list(itertools.islice((mutant for mutant in made if _compiles(mutant)), count))


def _compiles(mutant: Mutant) -> bool:
    with contextlib.suppress(SyntaxError, ValueError):
        compile(mutant.text, mutant.path, "exec", dont_inherit=True)
        return mutant.before != mutant.after
    return False


PLUGIN = '''
"""Which test executes which line, and how long each takes."""
import atexit, json, os
import coverage, pytest

cov = coverage.Coverage(os.environ["MUTANTS_DATA"], data_suffix=True, source_pkgs=["paceline"], messages=False)
cov.start()
seconds = {}

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    cov.switch_context(item.nodeid)
    yield
    cov.switch_context("")

def pytest_runtest_logreport(report):
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration

def pytest_sessionfinish():
    cov.stop()
    cov.save()
    with open(f"{os.environ['MUTANTS_DATA']}.{os.getpid()}.json", "w") as file:
        json.dump(seconds, file)
'''


@dataclass(frozen=True)
class Coverage:
    """Tests by the lines that they execute."""

    tests: dict[str, dict[int, list[str]]]  # by path under src/paceline
    seconds: dict[str, float]

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that execute its line, the quickest first, as many as there is time for."""
        chosen: list[str] = []
        total = 0.0
        for test in sorted(
            self.tests.get(mutant.path, {}).get(mutant.executed, ()), key=lambda one: self.seconds.get(one, 1.0)
        ):
            total += self.seconds.get(test, 1.0)
            if chosen and total > MOST_SECONDS:
                break
            chosen.append(test)
        return chosen


def measured_coverage(workers: int) -> Coverage:
    """Of this tree; measured once and kept until a file of it changes."""
    CACHE.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for path in sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        digest.update(str(path).encode() + path.read_bytes())
    kept = CACHE / f"{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        _measure(kept, workers)
    document = json.loads(kept.read_text(encoding="utf-8"))
    tests = {path: {int(line): names for line, names in lines.items()} for path, lines in document["tests"].items()}
    return Coverage(tests, document["seconds"])


def _measure(kept: Path, workers: int) -> None:
    import coverage

    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "mutants_plugin.py").write_text(PLUGIN)
        data = folder / "data"
        environment = os.environ | {"MUTANTS_DATA": str(data), "PYTHONPATH": str(folder)}
        options = ["-q", "-p", "mutants_plugin", "-m", "not long", "-n", str(workers), "--dist", "loadfile"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *TESTS, *options],
            cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"without any mutant, tests fail:\n{done.stdout[-4000:]}")
        combined = coverage.Coverage(data_file=str(folder / "combined"), messages=False)
        combined.combine([str(path) for path in folder.glob("data.*") if path.suffix != ".json"])
        read = combined.get_data()
        tests: dict[str, dict[int, list[str]]] = defaultdict(dict)
        for file in read.measured_files():
            if Path(file).is_relative_to(SOURCE):
                lines = read.contexts_by_lineno(file)
                tests[str(Path(file).relative_to(SOURCE))] = {
                    line: [test for test in contexts if test] for line, contexts in lines.items()
                }
        seconds: dict[str, float] = {}
        for path in folder.glob("data.*.json"):
            seconds |= json.loads(path.read_text())
    kept.write_text(json.dumps({"tests": tests, "seconds": seconds}))
    print(f"coverage of {len(seconds):,} tests: {time.monotonic() - begin:.0f} s", flush=True)


def tried(mutant: Mutant, coverage: Coverage, tree: Path) -> Trial:
    """Run its tests in a copy of the tree."""
    tests = coverage.of(mutant)
    if not tests:
        return Trial(mutant, "not covered")
    begin = time.monotonic()
    path = tree / "src" / "paceline" / mutant.path
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.text, encoding="utf-8")
    names = tree / "tests.txt"
    names.write_text("\n".join(tests))
    limit = 3 * sum(coverage.seconds.get(test, 1.0) for test in tests) + SLACK
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"@{names}"]
    try:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = 1
            os.killpg(process.pid, 9)
            process.wait()
    finally:
        path.write_text(original, encoding="utf-8")
    return Trial(mutant, "survived" if code == 0 else "killed", time.monotonic() - begin)


@contextlib.contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """Trees in which a file may be changed."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as name:
        for number in range(count):
            tree = Path(name) / str(number)
            tree.mkdir()
            for part in ("src", "tests", "docs", "bench"):
                shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
            for file in ("pyproject.toml", "README.md", "Makefile", "CHANGELOG.md"):
                shutil.copy(ROOT / file, tree / file)
            free.put(tree)
        yield free


def table(trials: Sequence[Trial]) -> str:
    """A line for each part of the source."""
    places = {
        trial.mutant.path: next(place for place in PLACES if trial.mutant.path.startswith(place)) for trial in trials
    }
    lines = [f"{'':<20} {'mutants':>8} {'killed':>8} {'survived':>9} {'uncovered':>10} {'equivalent':>11} {'rate':>7}"]
    for place in (*PLACES, "all"):
        of = [trial for trial in trials if place in ("all", places[trial.mutant.path])]
        counts = [
            sum(trial.outcome == name for trial in of) for name in ("killed", "survived", "not covered", "equivalent")
        ]
        judged = len(of) - counts[3]
        rate = f"{100 * counts[0] / judged:.0f} %" if judged else "–"
        lines.append(
            f"{place:<20} {len(of):>8} {counts[0]:>8} {counts[1]:>9} {counts[2]:>10} {counts[3]:>11} {rate:>7}"
        )
    return "\n".join(lines)


def main() -> int:
    """The exit code is 1 if fewer are killed than should be."""
    parser = argparse.ArgumentParser(description="what the tests would notice")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="of files whose path has this in it")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    options = parser.parse_args()
    begin = time.monotonic()
    declared = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}
    reasons = {entry["mutant"]: entry["reason"] for entry in declared.get("equivalent", ())}
    if len(reasons) > MOST_EQUIVALENT:
        raise SystemExit(f"{len(reasons)} mutants are declared equivalent; at most {MOST_EQUIVALENT} may be")
    coverage = measured_coverage(options.workers)
    chosen = sampled(options.count, options.seed, options.only)
    with copies(options.workers) as free, ThreadPoolExecutor(options.workers) as pool:

        def run(mutant: Mutant) -> Trial:
            if mutant.name in reasons:
                return Trial(mutant, "equivalent")
            tree = free.get()
            try:
                trial = tried(mutant, coverage, tree)
            finally:
                free.put(tree)
            if trial.outcome != "killed":
                print(f"{trial.outcome}: {mutant.path}:{mutant.line} ({mutant.kind})", flush=True)
                print(f"  - {mutant.before}\n  + {mutant.after}", flush=True)
            return trial

        trials = list(pool.map(run, chosen))
    killed = sum(trial.outcome == "killed" for trial in trials)
    judged = sum(trial.outcome != "equivalent" for trial in trials)
    print(f"\n{table(trials)}\n")
    print(f"seed {options.seed}: {killed} of {judged} killed in {(time.monotonic() - begin) / 60:.0f} minutes")
    return int(killed < GOAL * judged)


if __name__ == "__main__":
    sys.exit(main())

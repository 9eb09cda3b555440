"""Runs files of long tests for a limited time, in an order that rotates from commit to commit.

    python tests/rotation.py --minutes 35

CI has no time for all of `make test-all`. Each commit begins about a third further on in the list than the one before
it, so that a few commits run everything.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path

from stages import clock

ROOT = Path(__file__).parent.parent
PYTEST = [sys.executable, "-m", "pytest"]
TURNS = 3  # commits after which the list was begun once from every part of it
BESIDE = 2  # files at a time; each waits half of its time for a disk, a download or another process
THREADS = str(max(1, (os.cpu_count() or 1) // BESIDE))  # threads of torch that share a processor wait for each other
PATIENCE = 30.0  # seconds to clean up after an interrupt
NO_TESTS = 5  # pytest's exit code
FAILURES = re.compile(r"\b\d+ (failed|errors?)\b")


class Outcome(StrEnum):
    """How the turn of a file ended."""

    PASSED = "passed"
    FAILED = "failed"
    CUT_OFF = "cut off"
    NO_TIME = "no time"


@dataclass(frozen=True)
class File:
    """A file with long tests."""

    path: str
    is_alone: bool = False  # whether nothing may run alongside it


@dataclass(frozen=True)
class Turn:
    """What came of a file."""

    file: File
    outcome: Outcome
    seconds: float = 0.0
    output: str = ""


def rotated(files: Iterable[File], count: int) -> list[File]:
    """All files once, those that must run alone last before it is turned; `count` is the number of commits.

    The stride has no factor in common with the number of files, so that every file comes first at some commit.
    """
    ordered = sorted(set(files), key=lambda file: (file.is_alone, file.path))
    if not ordered:
        return []
    start = count * stride(len(ordered)) % len(ordered)
    return ordered[start:] + ordered[:start]


def stride(files: int) -> int:
    """How many files further on the next commit begins: about a part of `TURNS`."""
    return next(step for step in range(max(1, math.ceil(files / TURNS)), files + 2) if math.gcd(step, files) == 1)


def run_in_order(files: Sequence[File], run: Callable[[File], Turn]) -> list[Turn]:
    """Neighbours side by side, but for those that must be alone."""
    turns: list[Turn] = []
    for is_alone, group in groupby(files, key=lambda file: file.is_alone):
        with ThreadPoolExecutor(1 if is_alone else BESIDE) as pool:
            turns += pool.map(run, group)
    return turns


def run_file(file: File, deadline: float) -> Turn:
    """The long tests of a file; ended when there is no time left, which is a failure only if a test had failed."""
    begin = time.monotonic()
    if begin >= deadline:
        return Turn(file, Outcome.NO_TIME)
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*PYTEST, file.path, "-m", "long", "--durations", "5"],
            cwd=ROOT,
            env=os.environ | ({} if file.is_alone else {"OMP_NUM_THREADS": THREADS}),
            stdout=output,
            stderr=output,
            start_new_session=True,
            # What starts this may ignore the terminal's interrupt, as shells do for what runs in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            code = process.wait(deadline - begin)
            outcome = Outcome.PASSED if code in (0, NO_TESTS) else Outcome.FAILED
        except subprocess.TimeoutExpired:
            end(process)
            outcome = Outcome.CUT_OFF
        output.seek(0)
        text = output.read()
    if outcome is Outcome.CUT_OFF and FAILURES.search(last_line(text)):
        outcome = Outcome.FAILED
    turn = Turn(file, outcome, time.monotonic() - begin, text)
    print(f"{clock(turn.seconds):>6}  {turn.outcome:<8} {file.path}: {last_line(text)}", flush=True)
    return turn


def end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, so that fixtures end what they had started; then by force."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(text: str) -> str:
    """Pytest's closing line, without its frame."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip("= ") if lines else "no output"


def long_files() -> list[File]:
    """The files in which the marker `long` stands; collecting all tests to find them would take half a minute."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    return [
        File(str(path.relative_to(ROOT)), "pytest.mark.alone" in text)
        for path, text in texts.items()
        if "pytest.mark.long" in text
    ]


def commit_count() -> int:
    """How many commits there are; 0 outside a repository."""
    command = ["git", "rev-list", "--count", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def summary(turns: Sequence[Turn], seconds: float) -> str:
    """What ran, and what waits for another commit."""
    ran = [turn for turn in turns if turn.outcome in (Outcome.PASSED, Outcome.FAILED)]
    left = [f"  {turn.file.path} ({turn.outcome})" for turn in turns if turn not in ran]
    lines = [f"{len(ran)} of {len(turns)} files of long tests ran in {clock(seconds)}"]
    return "\n".join([*lines, *(["did not have their turn:", *left] if left else [])])


def main() -> int:
    """The exit code is 1 if a test failed."""
    parser = argparse.ArgumentParser(description="files of long tests, in turns")
    parser.add_argument("--minutes", type=float, default=math.inf, help="do not go on for longer than this")
    parser.add_argument("--commits", type=int, default=None, help="where to begin; by default the number of commits")
    options = parser.parse_args()
    count = commit_count() if options.commits is None else options.commits
    begin = time.monotonic()
    deadline = begin + 60 * options.minutes
    files = rotated(long_files(), count)
    print(f"order at commit {count}:", *(f"  {file.path}" for file in files), sep="\n", flush=True)
    turns = run_in_order(files, lambda file: run_file(file, deadline))
    for turn in turns:
        if turn.outcome is Outcome.FAILED:
            print(f"\n--- {turn.file.path}\n{turn.output}")
    print(summary(turns, time.monotonic() - begin), flush=True)
    return int(any(turn.outcome is Outcome.FAILED for turn in turns))


if __name__ == "__main__":
    sys.exit(main())

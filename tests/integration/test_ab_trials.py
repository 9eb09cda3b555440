"""How often `paceline ab` sees a slow-down of 3 % in a commit, and how often it sees one that is not there.

The command under test prints a time that it takes from a file of noise, so that no trial has to wait: everything else
is the product, from the worktrees of the commits to the exit code.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from support.cli import Sandbox, events
from support.repository import commit, repository

NOISE = 0.02  # of one measurement
DRIFT = 0.005  # from one measurement to the next, for both sides alike
ROUNDS = 30
EXIT_CODES = {"worse": 1, "better": 0, "equal": 0, "undecided": 3}
SCRIPT = """
BEGIN {
    count = ENVIRON["NOISE_FILE"] ".count"
    getline taken < count
    close(count)
    print taken + 1 > count
    for (line = 0; line <= taken; line++) getline noise < ENVIRON["NOISE_FILE"]
    getline factor < "factor"
    printf "time %.6f\\n", noise * factor
}
"""


def decisions(sandbox: Sandbox, sides: tuple[str, str], trials: int, seed: int) -> list[str]:
    """What so many comparisons came to."""
    rng = np.random.default_rng(seed)
    reached = []
    for trial in range(trials):
        drawn = np.exp(rng.normal(0.0, NOISE, 2 * ROUNDS) + np.cumsum(rng.normal(0.0, DRIFT, 2 * ROUNDS)))
        noise = Path(sandbox.folder / f"noise-{seed}-{trial}")
        noise.write_text("".join(f"{value:.6f}\n" for value in drawn))
        noise.with_name(f"{noise.name}.count").write_text("0\n")
        done = sandbox.ask("ab", *sides, "--rounds", str(ROUNDS), "--metric-from", "time ([0-9.]+)", "--json", "--",
                           "awk", "-f", "figure.awk", env={"NOISE_FILE": str(noise)})  # fmt: skip
        end = events(done.stdout)[-1]
        (case,) = end["cases"]
        assert done.returncode == EXIT_CODES[case["decision"]], done.stderr
        reached.append(case["decision"])
    return reached


def with_commits(sandbox: Sandbox) -> None:
    """A repository whose last commit is 3 % slower than the one before."""
    folder = repository(sandbox.work)
    commit(folder, {"figure.awk": SCRIPT, "factor": "1.00\n"})
    commit(folder, {"factor": "1.03\n"})


def test_a_slower_commit_is_seen_and_the_same_one_is_not(sandbox: Sandbox) -> None:
    with_commits(sandbox)
    assert decisions(sandbox, ("HEAD~1", "HEAD"), 3, seed=1).count("worse") >= 2
    assert decisions(sandbox, ("HEAD~1", "HEAD~1"), 2, seed=2).count("undecided") >= 1


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_of_a_hundred_trials_each_as_many_are_right_as_is_claimed(sandbox: Sandbox) -> None:
    with_commits(sandbox)
    slower = decisions(sandbox, ("HEAD~1", "HEAD"), 100, seed=3)
    same = decisions(sandbox, ("HEAD~1", "HEAD~1"), 100, seed=4)
    print(f"slower: {Counter(slower)}; the same: {Counter(same)}")
    # The 0.5 % limits of 95 and of 5 % in a hundred.
    assert slower.count("worse") >= 88
    assert same.count("worse") + same.count("better") <= 11

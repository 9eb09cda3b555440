"""Slurm's short forms of lists."""

from __future__ import annotations

import pytest

from paceline.runner.launcher_ranks import expand_tasks, first_host


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ("gpu5", "gpu5"),
        ("gpu5,node[01-03,7]", "gpu5"),
        ("node[01-03,7],gpu5", "node01"),
        ("node[7,01-03]", "node7"),
        ("n[8-11]-ib", "n8-ib"),
        ("r[1-2]n[01-02]", "r1n01"),
        ("node[099-101]", "node099"),
    ],
)
def test_the_first_of_hosts(written: str, first: str) -> None:
    assert first_host(written) == first


@pytest.mark.parametrize(("written", "tasks"), [("4", [4]), ("2,1", [2, 1]), ("2(x3),1", [2, 2, 2, 1])])
def test_tasks(written: str, tasks: list[int]) -> None:
    assert expand_tasks(written) == tasks


@pytest.mark.parametrize("written", ["", "node[a-b]"])
def test_a_list_that_names_no_host_is_refused(written: str) -> None:
    with pytest.raises(ValueError):
        first_host(written)

"""Slurm's short forms of lists."""

from __future__ import annotations

import pytest

from paceline.runner.launcher_ranks import expand_hosts, expand_tasks


@pytest.mark.parametrize(
    ("written", "hosts"),
    [
        ("gpu5", ["gpu5"]),
        ("node[01-03,7],gpu5", ["node01", "node02", "node03", "node7", "gpu5"]),
        ("n[8-11]-ib", ["n8-ib", "n9-ib", "n10-ib", "n11-ib"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("node[099-101]", ["node099", "node100", "node101"]),
    ],
)
def test_hosts(written: str, hosts: list[str]) -> None:
    assert expand_hosts(written) == hosts


@pytest.mark.parametrize(("written", "tasks"), [("4", [4]), ("2,1", [2, 1]), ("2(x3),1", [2, 2, 2, 1])])
def test_tasks(written: str, tasks: list[int]) -> None:
    assert expand_tasks(written) == tasks


@pytest.mark.parametrize("written", ["", "node[a-b]"])
def test_a_list_that_names_no_host_is_refused(written: str) -> None:
    with pytest.raises(ValueError):
        expand_hosts(written)

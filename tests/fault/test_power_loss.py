"""A machine that loses power at any moment has, when it is back, every record that was acknowledged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.bad_disk import with_bad_disk

FILES = "store,spool,follower"
SEED = 21


def lost_power(works: str, samples: int, folder: Path, *flaw: str, seed: int = SEED) -> dict[str, Any]:
    summaries = with_bad_disk("power_loss.py", folder, works, str(samples), str(seed), *flaw)
    for work, one in summaries.items():
        print(
            f"{work}, seed {seed}: power lost {samples} times in {one['changes']} changes, with {one['unsynced']} "
            f"writes in doubt: {len(one['losses'])} losses of what was acknowledged"
        )
    return summaries


def test_what_was_acknowledged_outlives_a_sampled_loss_of_power(tmp_path: Path) -> None:
    for summary in lost_power(FILES, 25, tmp_path).values():
        assert summary["losses"] == []
        assert summary["acknowledged"] >= 5
        assert summary["unsynced"] >= 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED + 1, SEED + 7))  # a few minutes each on a slow machine
@pytest.mark.parametrize("work", FILES.split(","))
def test_what_was_acknowledged_outlives_a_loss_of_power(tmp_path: Path, work: str, seed: int) -> None:
    assert lost_power(work, 500, tmp_path, seed=seed)[work]["losses"] == []


def test_a_disk_that_only_says_that_it_wrote_is_noticed(tmp_path: Path) -> None:
    for summary in lost_power("store,follower", 8, tmp_path, "no-sync").values():
        assert summary["losses"]

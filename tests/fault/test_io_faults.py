"""Every call that changes a file or reaches a server fails once, and nothing that was acknowledged is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.bad_disk import with_bad_disk
from support.postgres import PostgresServer

FILES = "store,spool,follower"


def swept(works: str, folder: Path, url: str = "", limit: int = 0) -> dict[str, Any]:
    """What a sweep tried, over so many faults of each kind of call or over all; it prints its count."""
    summaries = with_bad_disk("fault_sweep.py", folder, works, str(limit), *([url] if url else []))
    for work, one in summaries.items():
        by_call = ", ".join(f"{count} of {call}" for call, count in sorted(one["by_call"].items()))
        print(f"{work}: {one['faults']} faults in {one['calls']} calls ({by_call}), {len(one['losses'])} losses")
    return summaries


def test_no_fault_of_a_slice_loses_what_was_acknowledged(tmp_path: Path) -> None:
    for summary in swept(FILES, tmp_path, limit=3).values():
        assert summary["losses"] == []
        assert {"create", "write", "sync", "mkdir"} <= set(summary["by_call"])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("work", FILES.split(","))
def test_no_fault_loses_what_was_acknowledged(tmp_path: Path, work: str) -> None:
    summary = swept(work, tmp_path)[work]
    assert summary["losses"] == []
    assert {"create", "write", "sync", "mkdir", "unlink"} <= set(summary["by_call"])
    assert work == "store" or "rename" in summary["by_call"]


def test_a_server_that_cannot_be_reached_once_loses_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    summary = swept("server", tmp_path, postgres.new_database(), limit=3)["server"]
    assert summary["losses"] == []
    assert "connect" in summary["by_call"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_fault_of_many_between_here_and_a_server_loses_what_was_acknowledged(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    summary = swept("server", tmp_path, postgres.new_database(), limit=100)["server"]
    assert summary["losses"] == []
    assert {"connect", "send"} <= set(summary["by_call"])

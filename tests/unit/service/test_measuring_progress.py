"""What a follower says of the case in hand while it is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.service.follower import measuring
from paceline.service.follower.spool import Spool
from support.store_samples import a_failed_record, a_run


def test_a_load_is_shown_while_it_runs_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "EVERY", 0.0)
    spool, record = Spool(tmp_path), a_failed_record()
    listener = measuring._SpoolListener(spool)

    def shown() -> dict[str, float]:
        return {name: one.value for name, one in spool.progress.figures.items()}

    listener.started(a_run(), [record.case])
    listener.case_started(record.case)
    assert shown() == {}
    load = {"rate": 50.0, "failures": 1.0, "p50": 0.004, "p99": 0.01}
    listener.case_progress(record.case, {"phase": "measuring", "load": load}, [])
    assert shown() == load
    assert spool.progress.case_index == record.case.index
    listener.case_progress(record.case, {"phase": "measuring", "load": {"rate": 0.0, "failures": 9.0}}, [])
    assert shown() == {"rate": 0.0, "failures": 9.0}
    listener.case_ended(record)
    assert (shown(), spool.progress.cases_done) == ({}, 1)

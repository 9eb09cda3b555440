"""What a follower says of the case in hand while it is measured."""

from __future__ import annotations

from pathlib import Path

from paceline.service.engines.base import LoadNow
from paceline.service.follower.measuring import _SpoolListener
from paceline.service.follower.spool import Spool
from support.store_samples import a_failed_record, a_run


def test_a_load_is_shown_while_it_runs_and_no_longer(tmp_path: Path) -> None:
    spool, record = Spool(tmp_path), a_failed_record()
    listener = _SpoolListener(spool)
    listener.started(a_run(), [record.case])
    listener.case_started(record.case)
    assert spool.progress.load is None
    load = {"rate": 50.0, "failures": 1.0, "p50": 0.004, "p99": 0.01}
    listener.case_progress(record.case, {"phase": "measuring", "load": load}, [])
    assert spool.progress.load == LoadNow(rate=50.0, failures=1.0, p50=0.004, p99=0.01)
    assert spool.progress.case_index == record.case.index
    listener.case_progress(record.case, {"phase": "measuring", "load": {"rate": 0.0, "failures": 9.0}}, [])
    assert spool.progress.load == LoadNow(rate=0.0, failures=9.0)
    listener.case_ended(record)
    assert (spool.progress.load, spool.progress.cases_done) == (None, 1)

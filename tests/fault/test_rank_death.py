"""A rank that fails ends its case at once, and the cause that is shown is its own."""

from __future__ import annotations

from paceline.core.record import CauseKind, Outcome
from support.cli import Sandbox


def test_a_rank_that_fails_ends_the_case_with_its_own_cause(sandbox: Sandbox) -> None:
    ways = {"raise": CauseKind.ERROR, "abort": CauseKind.CRASHED, "kill": CauseKind.INTERRUPTED}
    suite = sandbox.suite(
        {"benchmark": "rankfail", "ranks": 2, "how": list(ways), "timeout": "90s"}, {"benchmark": "nap"}
    )

    done = sandbox.run("run", suite, "--no-report")

    assert done.returncode == 1, done.stderr
    *failed, nap = sandbox.load().records
    assert nap.outcome is Outcome.OK
    for record, kind in zip(failed, ways.values(), strict=True):
        assert record.outcome is Outcome.FAILED
        assert record.cause is not None
        assert (record.cause.rank, record.cause.kind) == (1, kind), record.cause
        assert record.seconds < 60  # the others would have waited for the timeout
    assert failed[0].cause is not None
    assert failed[0].cause.message == "ValueError: rank one has a fault of its own"
    assert sandbox.left_behind() == []

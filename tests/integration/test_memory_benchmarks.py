"""The benchmarks of memory as a user runs them, on the host's own memory."""

from __future__ import annotations

import pytest

from paceline.core.record import CauseKind, Outcome, Record
from support.cli import Sandbox, ended, events

SHORT = ("--budget", "50ms", "--warm-up", "20ms", "--target", "cpu", "--json", "--no-report")


def measured(sandbox: Sandbox, *arguments: str, code: int = 0) -> list[Record]:
    done = sandbox.ask("run", *arguments)
    assert done.returncode == code, done.stderr
    return ended(events(done.stdout))


def points(record: Record, name: str) -> dict[object, float]:
    return {m.at.get("size"): m.value for m in record.measurements if m.metric.name == name}


def test_copy_yields_a_rate_for_every_size_and_keeps_its_samples(sandbox: Sandbox) -> None:
    [record] = measured(sandbox, "copy", "--sizes", "4KiB,64KiB,1MiB", *SHORT)
    assert record.outcome is Outcome.OK
    assert record.case.category == "memory"
    found = points(record, "bandwidth")
    assert set(found) == {None, 4096, 65536, 1024**2}
    assert found[None] == found[1024**2]
    [stored] = sandbox.load().records
    time = stored.measurement("time", at={"size": 4096})
    assert time is not None
    assert len(time.samples) == time.summary.count > 1


def test_stream_measures_all_four_and_triad_leads(sandbox: Sandbox) -> None:
    [record] = measured(sandbox, "stream", "--size", "8MiB", *SHORT)
    assert record.outcome is Outcome.OK
    assert record.measurements[0].metric.name == "triad_bandwidth"
    for name in ("copy", "scale", "add", "triad"):
        assert record.measurement(f"{name}_bandwidth") is not None
        assert record.measurement(f"{name}_time") is not None
    assert record.facts["engine"] in ("native", "torch")
    assert record.measurement("peak_share") is None, "nobody knows the peak of a CPU"


@pytest.mark.long
def test_stream_without_a_compiler_falls_back_to_torch(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "stream", "--size", "1MiB", *SHORT, env={"CC": "no-such-compiler"})
    assert done.returncode == 0, done.stderr
    [record] = ended(events(done.stdout))
    assert record.facts["engine"] == "torch"
    assert "C compiler" in record.facts["engine_reason"]


def test_a_missing_compiler_is_named_where_nothing_else_will_do(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "memory-latency", "--sizes", "8KiB", *SHORT, env={"CC": "no-such-compiler"})
    assert done.returncode == 1
    [record] = ended(events(done.stdout))
    assert record.cause is not None
    assert record.cause.kind is CauseKind.MISSING_DEPENDENCY
    assert "correct $CC" in record.cause.message


@pytest.mark.long
def test_latency_grows_from_the_first_cache_to_main_memory(sandbox: Sandbox) -> None:
    [record] = measured(sandbox, "memory-latency", "--sizes", "8KiB,256MiB", *SHORT)
    found = points(record, "latency")
    assert found[None] == found[256 * 1024**2] > 3 * found[8192]
    assert "ordinary pages" in record.facts["pages"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("copy", "--direction", "h2d"), "needs a GPU"),
        pytest.param(("stream", "--threads", "99999"), "use fewer threads", marks=pytest.mark.long),
        pytest.param(("stream", "--numa-node", "4095"), "does not exist here", marks=pytest.mark.long),
    ],
)
def test_what_this_machine_cannot_do_is_unsupported_with_the_reason(
    sandbox: Sandbox, arguments: tuple[str, ...], words: str
) -> None:
    [record] = measured(sandbox, *arguments, *SHORT, code=1)  # a run that measured nothing
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.cause is not None
    assert words in record.cause.message


def test_contradictions_are_refused_at_once(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "stream", "--size", "1MiB", "--sizes", "1MiB,2MiB")
    assert done.returncode == 2
    assert "one or the other" in done.stderr


@pytest.mark.long
def test_two_ranks_copy_together_and_their_rates_add_up(sandbox: Sandbox) -> None:
    [record] = measured(sandbox, "copy", "--ranks", "2", "--sizes", "1MiB", *SHORT)
    assert record.outcome is Outcome.OK
    whole = record.measurement("bandwidth")
    assert whole is not None
    assert whole.work == 2 * 1024**2
    assert {m.scope for m in record.measurements} == {"", "rank 0", "rank 1"}

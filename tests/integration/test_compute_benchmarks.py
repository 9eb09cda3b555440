"""The compute benchmarks as a user runs them: what they yield on a CPU, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from paceline.core.record import Outcome, Record
from support.cli import Sandbox, sandbox_in

SHORT = {"budget": "50ms", "warm_up": "20ms"}
SHAPE = {"m": 48, "n": 64, "k": 96}
WORK = 2 * 48 * 64 * 96
RANKS = 2


def measured(sandbox: Sandbox, *cases: dict[str, object]) -> list[Record]:
    done = sandbox.ask("run", sandbox.suite(*cases), "--no-report")
    assert done.returncode == 0, done.stdout + done.stderr
    return sandbox.load().records


def value(record: Record, name: str, **at: str) -> float:
    found = record.measurement(name, at=dict(at))
    assert found is not None, f"{name} at {at}"
    return found.value


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Record]]:
    """One run of everything that a CPU can do, and of what it cannot."""
    with sandbox_in(tmp_path_factory.mktemp("compute") / "sandbox") as sandbox:
        found = measured(
            sandbox,
            {"benchmark": "gemm", **SHAPE, **SHORT},
            {"benchmark": "matmul", **SHAPE, **SHORT},
            {"benchmark": "sharding-matmul", "mode": ["all-reduce", "all-gather"], "ranks": RANKS, **SHAPE, **SHORT},
            {"benchmark": "sharding-matmul", **SHORT},
            {"benchmark": "kernel-launch", "target": "cpu"},
            {"benchmark": "blas-functions", "models": ["gpt2-small"], "most": 3, **SHORT},
            {"benchmark": "dnn-functions", "models": ["resnet18"], "most": 2, **SHORT},
        )
        assert sandbox.left_behind() == []
        names = ["gemm", "matmul", "all-reduce", "all-gather", "one rank", "kernel-launch", "blas", "dnn"]
        yield dict(zip(names, found, strict=True))


@pytest.mark.parametrize("name", ["gemm", "matmul", "all-reduce", "all-gather"])
def test_the_rate_is_all_work_over_the_time_of_the_slowest(records: dict[str, Record], name: str) -> None:
    record = records[name]
    assert record.outcome is Outcome.OK
    assert record.case.category == "compute"
    time, rate = record.measurement("time"), record.measurement("compute_rate")
    assert time is not None
    assert rate is not None
    assert rate.work == WORK
    assert rate.value == pytest.approx(WORK / time.summary.mean)


@pytest.mark.parametrize("name", ["all-reduce", "all-gather"])
def test_a_divided_product_tells_its_parts_and_every_rank(records: dict[str, Record], name: str) -> None:
    record = records[name]
    assert record.facts["ranks"] == RANKS
    for metric in ("time", "multiply_time", "communicate_time"):
        of_ranks = [record.measurement(metric, f"rank {rank}") for rank in range(RANKS)]
        means = [one.summary.mean for one in of_ranks if one is not None]
        assert len(means) == RANKS
        whole = record.measurement(metric)
        assert whole is not None
        assert whole.summary.mean == max(means)
    assert "against the undivided product" in record.facts["checked"]


@pytest.mark.parametrize(("name", "words"), [("one rank", "use --ranks 2"), ("kernel-launch", "needs an NVIDIA GPU")])
def test_what_cannot_be_done_here_says_what_to_do(records: dict[str, Record], name: str, words: str) -> None:
    record = records[name]
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.cause is not None
    assert words in record.cause.message
    assert record.measurements == []


@pytest.mark.parametrize(("name", "points"), [("blas", 3), ("dnn", 2 * 3)])
def test_a_list_yields_a_point_for_each_function_and_the_whole(
    records: dict[str, Record], name: str, points: int
) -> None:
    record = records[name]
    assert record.outcome is Outcome.OK
    times = [one for one in record.measurements if one.metric.name == "time"]
    assert len(times) == points
    assert all(one.at["function"] for one in times)
    counts = {one["function"]: one["count"] for one in record.facts["functions"]}
    total = sum(counts[str(one.at["function"])] * one.summary.mean for one in times)
    assert value(record, "total_time") == pytest.approx(total)
    rate = record.measurement("compute_rate")
    assert rate is not None
    assert rate.work is not None
    assert rate.value == pytest.approx(rate.work / total)
    assert "scale tiny" in record.facts["source"]


def test_a_convolution_is_measured_forward_and_both_ways_backward(records: dict[str, Record]) -> None:
    label = records["dnn"].facts["functions"][0]["function"]
    rates = [
        value(records["dnn"], "compute_rate", function=label, **{"pass": way})
        for way in ("forward", "backward-data", "backward-weight")
    ]
    assert all(rate > 0 for rate in rates)


@pytest.mark.long
def test_a_users_own_list_is_measured_whole_and_in_its_order(sandbox: Sandbox) -> None:
    names = [f"f{number}" for number in range(14)]
    sandbox.write("mine.yaml", json.dumps([{"m": 8, "n": 8, "k": 8 + n, "name": name} for n, name in enumerate(names)]))
    [record] = measured(sandbox, {"benchmark": "blas-functions", "file": "mine.yaml", "steps": 3, "warm_up": 0})
    times = [one.at["function"] for one in record.measurements if one.metric.name == "time"]
    assert times == names


def test_a_mistake_in_a_list_is_refused_before_anything_runs(sandbox: Sandbox) -> None:
    sandbox.write("mine.yaml", "- {m: 8, n: 8}\n")
    suite = sandbox.suite({"benchmark": "nap", "duration": "1ms"}, {"benchmark": "blas-functions", "file": "mine.yaml"})
    done = sandbox.ask("run", suite)
    assert done.returncode == 2
    assert "mine.yaml, entry 1: 'k' is missing; write it like" in done.stderr
    assert not sandbox.store.exists()


def test_an_axis_that_the_ranks_cannot_share_is_refused(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "sharding-matmul", "--ranks", "2", "--k", "33")
    assert done.returncode == 2
    assert "k = 33 cannot be divided over 2 ranks" in done.stderr


@pytest.mark.long
def test_one_model_can_be_named_on_the_command_line(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "blas-functions", "--models", "resnet18", "--steps", "2", "--warm-up", "0", "--no-report")
    assert done.returncode == 0, done.stdout + done.stderr
    [record] = sandbox.load().records
    assert record.case.parameters["models"] == ["resnet18"]

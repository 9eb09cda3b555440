"""Training on two ranks computes what one rank with the joined batch computes, and reports the whole's throughput."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from paceline.core.record import Outcome, Record
from support.cli import sandbox_in

MODELS = ["gpt2-small", "lstm", "vit-base", "detr", "lm-transformer", "asr-transformer"]
SHORT = MODELS[:2]
BY_MODEL = [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long]) for name in MODELS]
JOINED_BATCH = 4
RANKS = 2
STEPS = 4


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, with_long: bool) -> Iterator[list[Record]]:
    """Every model on one rank, then every model on two, with the same joined batch; at last a short nap."""
    models = MODELS if with_long else SHORT
    common = {"benchmark": "train", "model": models, "scale": "tiny", "steps": STEPS, "warm_up": "100ms"}
    alone = common | {"batch_size": JOINED_BATCH}
    together = common | {"batch_size": JOINED_BATCH // RANKS, "ranks": RANKS}
    with sandbox_in(tmp_path_factory.mktemp("ranks") / "sandbox") as sandbox:
        done = sandbox.run(
            "run", sandbox.suite(alone, together, {"benchmark": "nap", "duration": "1ms"}), "--no-report"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert sandbox.left_behind() == []
        yield sandbox.load().records


def of_model(records: list[Record], model: str) -> list[Record]:
    return [record for record in records if record.case.parameters.get("model") == model]


@pytest.mark.parametrize("model", BY_MODEL)
def test_two_ranks_show_the_loss_of_one_rank_with_the_joined_batch(records: list[Record], model: str) -> None:
    alone, together = of_model(records, model)
    assert (alone.case.ranks, together.case.ranks) == (1, RANKS)
    expected, found = alone.measurement("loss"), together.measurement("loss")
    assert expected is not None
    assert found is not None
    assert len(found.samples) == 5
    assert found.samples == pytest.approx(expected.samples, rel=1e-4)
    assert len(set(found.samples)) == 5  # it trains


@pytest.mark.parametrize("model", BY_MODEL)
def test_throughput_of_two_ranks_is_all_work_over_the_longest_time(records: list[Record], model: str) -> None:
    _, record = of_model(records, model)
    assert record.outcome is Outcome.OK
    assert record.facts["ranks"] == RANKS
    assert record.facts["global_batch_size"] == JOINED_BATCH
    step_time, throughput = record.measurement("step_time"), record.measurement("throughput")
    each = [record.measurement("step_time", f"rank {rank}") for rank in range(RANKS)]
    assert step_time is not None
    assert throughput is not None
    slowest = max((one.samples for one in each if one is not None), key=sum)
    assert len(slowest) == STEPS
    assert step_time.samples == slowest
    assert throughput.work == JOINED_BATCH
    assert throughput.value == pytest.approx(JOINED_BATCH * STEPS / sum(slowest))
    of_ranks = [record.measurement("throughput", f"rank {rank}") for rank in range(RANKS)]
    assert all(one is not None and one.work == JOINED_BATCH / RANKS for one in of_ranks)


@pytest.mark.long
def test_a_later_case_starts_ten_times_faster_than_an_interpreter_that_imports_torch(records: list[Record]) -> None:
    def fresh() -> float:
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        return time.monotonic() - begun

    import_seconds = min(fresh() for _ in range(3))
    *later, nap = records[1:]
    assert min(record.facts["startup_seconds"] for record in later) * 10 <= import_seconds
    assert nap.seconds * 10 <= import_seconds  # all of it: fork, measure, leave

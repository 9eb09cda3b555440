"""The largest batch that fits: found to a sixteenth, without trying sizes far beyond it."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from paceline.benchmarks._model.benchmark import ModelParameters
from paceline.benchmarks._model.session import TooFewSamples, choose_batch_size, largest, runs_within_memory
from paceline.benchmarks.ranks import Ranks
from paceline.benchmarks.training.train import Train, TrainParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import OutOfMemory, Unsupported
from paceline.devices.cpu import CpuDevice
from paceline.measure.memory import host_limit
from paceline.models.base import ModelSpec
from support.scripted import ScriptedClock, ScriptedDevice


class Trial:
    """Fits up to a size, and remembers what was tried."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.tried: list[int] = []

    def fits(self, size: int) -> bool:
        self.tried.append(size)
        return size <= self.most

    def step(self, size: int) -> None:
        if not self.fits(size):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate too much")


def test_sizes_double_until_one_does_not_fit_and_are_bisected_then() -> None:
    trial = Trial(100)
    assert largest(trial.fits) == 100
    assert trial.tried == [1, 2, 4, 8, 16, 32, 64, 128, 96, 112, 104, 100]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 15, 17, 31])
def test_a_small_batch_is_found_exactly(most: int) -> None:
    assert largest(Trial(most).fits) == most


def test_nothing_fits() -> None:
    trial = Trial(0)
    assert largest(trial.fits) == 0
    assert trial.tried == [1]


@pytest.mark.parametrize("limit", [1, 64, 100, 65_536])
def test_everything_fits_up_to_the_limit_and_no_more_is_tried(limit: int) -> None:
    trial = Trial(10**9)
    assert largest(trial.fits, limit=limit) == limit
    assert max(trial.tried) == limit


def choose(batch_size: Any, trial: Trial, ranks: Ranks | None = None, budget: str = "1h") -> int:
    spec = ModelSpec("tiny", "cnn", "custom", "", lambda _scale: None, batch_size=48)  # type: ignore[arg-type,return-value]
    return choose_batch_size(
        spec,
        ModelParameters(model="tiny", batch_size=batch_size, budget=budget),
        ScriptedDevice(ScriptedClock()),
        ranks or Ranks(0, 1),
        Context(Case(index=0, benchmark="train", parameters={}, title="")),
        lambda _plain: trial.step,
    )


def test_a_batch_size_that_was_given_is_taken_untried() -> None:
    trial = Trial(0)
    assert choose(7, trial) == 7
    assert trial.tried == []


def test_an_unset_batch_size_is_the_model_s_own() -> None:
    trial = Trial(0)
    assert choose(None, trial) == 48
    assert trial.tried == []


def test_auto_is_the_largest_that_runs_within_memory() -> None:
    assert choose("auto", Trial(24)) == 24


def test_a_batch_of_one_that_does_not_fit_is_out_of_memory_with_a_remedy() -> None:
    with pytest.raises(
        OutOfMemory, match=r"tiny does not fit on scripted device with a batch of one; choose a smaller"
    ):
        choose("auto", Trial(0))


class PairTrial(Trial):
    """Takes no fewer than two samples."""

    def step(self, size: int) -> None:
        if size < 2:
            raise TooFewSamples("one sample has no variance")
        super().step(size)


def test_auto_passes_over_a_single_sample_that_a_model_cannot_train_on() -> None:
    assert choose("auto", PairTrial(24)) == 24
    assert choose("auto", PairTrial(24), budget="1ns") == 2, "whatever a step takes"
    with pytest.raises(OutOfMemory):
        choose("auto", PairTrial(1))


def test_one_sample_with_too_few_values_to_normalise_is_unsupported_with_a_remedy() -> None:
    parameters = TrainParameters(model="resnet18", scale="tiny", batch_size=1, steps=1, warm_up="1ms")
    case = Case(index=0, benchmark="train", parameters={}, title="", target="cpu")
    with pytest.raises(Unsupported, match=r"^resnet18 normalises over its batch, .* use --batch-size 2 or more$"):
        Train().measure(parameters, Context(case))


def test_ranks_take_the_smallest_of_what_each_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "smallest", lambda _self, mine: min(mine, 10))
    assert choose("auto", Trial(24)) == 10


def test_running_out_of_memory_is_an_answer_and_every_other_error_is_raised() -> None:
    def fail(error: Exception) -> None:
        raise error

    assert runs_within_memory(lambda: None, CpuDevice())
    assert not runs_within_memory(lambda: fail(MemoryError()), CpuDevice())
    assert not runs_within_memory(lambda: fail(RuntimeError("CUDA error: out of memory")), CpuDevice())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        runs_within_memory(lambda: fail(RuntimeError("shapes cannot be multiplied")), CpuDevice())


def test_a_trial_beyond_the_host_s_memory_fails_instead_of_being_killed_and_the_limit_is_lifted_after() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    assert not runs_within_memory(lambda: bytearray(1 << 45), CpuDevice())
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with host_limit(0.8):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] != before[0]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before

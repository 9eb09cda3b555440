"""Stages in the order of a schedule, what the watch says of them, and which parts of a model a stage has."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import distributed

from paceline.benchmarks.parallel import _trainer
from paceline.benchmarks.parallel._parameters import SCHEDULES, ParallelParameters, ScheduleKind, build
from paceline.benchmarks.parallel._stage import Mesh, Stage
from paceline.benchmarks.parallel._trainer import ParallelTrainer, Pipeline, Stopwatch
from paceline.devices import Device
from paceline.devices.cpu import CpuDevice
from support.layouts import TINY
from support.scripted import ScriptedClock, ScriptedDevice


@pytest.fixture
def group() -> Iterator[Any]:
    store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


class OnOneRank(ParallelParameters):
    """All stages of a schedule on one rank."""

    @property
    def schedule_kind(self) -> ScheduleKind:
        return SCHEDULES[self.schedule]

    @property
    def stages(self) -> int:
        return self.schedule_kind.stages_per_rank


def traced(trainer: ParallelTrainer) -> list[tuple[float, float]]:
    seen = []
    for _ in range(2):
        loss = trainer.step()
        assert loss is not None
        assert trainer.norm is not None
        seen.append((float(loss), float(trainer.norm)))
    return seen


@pytest.mark.parametrize(
    ("schedule", "model"), [("gpipe", "gpt2"), ("1f1b", "bert"), ("interleaved", "gpt2"), ("zero-bubble", "bert")]
)
def test_a_schedule_trains_what_one_stage_trains(schedule: Any, model: Any, group: Any) -> None:
    parameters = OnOneRank(**TINY, model=model, micro_batch=1, schedule=schedule)
    trainer = ParallelTrainer(parameters, CpuDevice(), Mesh(parameters.layout), compiled=False)
    kind = parameters.schedule_kind
    assert len(trainer.stages) == kind.stages_per_rank
    trainer.pipeline = Pipeline(
        trainer.stages, kind, ranks=1, micro_batches=4, group=group, device=trainer.device, scaled=trainer.scaled
    )
    usual = ParallelParameters(**TINY, model=model, micro_batch=1)
    alone = ParallelTrainer(usual, CpuDevice(), Mesh(usual.layout), compiled=False)
    for seen, expected in zip(traced(trainer), traced(alone), strict=True):
        assert seen == pytest.approx(expected, rel=1e-5)
    ends = [stage.model.token_embedding.weight for stage in trainer.stages.values()]
    assert all(torch.equal(one, ends[0]) for one in ends)
    trainer.pipeline.watch.start()
    trainer.step()
    spent = trainer.pipeline.watch.stop()
    assert set(spent) == {"busy", "schedule"}
    assert 0.0 < spent["busy"] < spent["schedule"]


# ---- the watch


def test_a_watch_adds_up_what_happens_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock()
    monkeypatch.setattr(_trainer, "monotonic", clock)
    watch = Stopwatch(CpuDevice())

    def spend(name: str, seconds: float) -> None:
        with watch.span(name):
            clock.advance(seconds)

    spend("busy", 5.0)
    clock.advance(100.0)
    watch.start()
    spend("busy", 1.0)
    clock.advance(10.0)
    spend("busy", 2.0)
    spend("schedule", 4.0)
    assert watch.stop() == {"busy": 3.0, "schedule": 4.0}
    spend("busy", 7.0)
    assert watch.stop() == {"busy": 3.0, "schedule": 4.0}
    watch.start()
    assert watch.stop() == {}


def test_on_an_accelerator_the_device_keeps_the_time() -> None:
    class Accelerator(ScriptedDevice):
        def event(self) -> Any:
            return self.new_event()

    device = Accelerator(ScriptedClock())
    device.kind = cast("Any", SimpleNamespace(is_accelerator=True))
    watch = Stopwatch(cast("Device", device))
    watch.start()
    with watch.span("busy"):
        device.issue(0.25)
    with watch.span("busy"):
        device.issue(0.5)
    assert watch.stop() == pytest.approx({"busy": 0.75})


# ---- which parts of a model a stage has

AROUND = ("token_embedding", "position_embedding", "type_embedding", "embedding_norm", "final_norm", "head_norm",
          "head_transform", "head_bias")  # fmt: skip
ENTRY = {"gpt2": {"position_embedding"}, "bert": {"position_embedding", "type_embedding", "embedding_norm"}}
EXIT = {"gpt2": {"final_norm"}, "bert": {"head_transform", "head_norm", "head_bias"}}


@pytest.mark.parametrize("model", ["gpt2", "bert"])
@pytest.mark.parametrize(("first", "last"), [(True, True), (True, False), (False, False), (False, True)])
def test_a_stage_holds_what_it_computes_with_and_no_more(model: Any, first: bool, last: bool) -> None:
    whole = build(ParallelParameters(**TINY | {"layers": 3}, model=model))
    stage = Stage(whole, range(1, 3), first=first, last=last, autocast=torch.no_grad, wire=None)
    assert len(stage.model.blocks) == 2
    expected = (ENTRY[model] if first else set()) | (EXIT[model] if last else set())
    expected |= {"token_embedding"} if first or last else set()
    assert {name for name in AROUND if getattr(stage.model, name, None) is not None} == expected


@pytest.mark.parametrize("wire", [None, torch.bfloat16])
def test_stages_after_each_other_are_the_whole_model_and_hand_over_in_the_format_of_the_wire(wire: Any) -> None:
    parameters, dtype = ParallelParameters(**TINY), torch.float32 if wire is None else wire

    def stage(layers: range, *, first: bool, last: bool) -> Stage:
        torch.manual_seed(3)
        return Stage(build(parameters), layers, first=first, last=last, autocast=torch.no_grad, wire=wire)

    tokens = torch.randint(0, 128, (2, 16), generator=torch.Generator().manual_seed(1))
    front, back = stage(range(1), first=True, last=False), stage(range(1, 2), first=False, last=True)
    for one in (front, back):
        one.to(dtype)
    between = front(tokens, labels=tokens)
    assert between.dtype == dtype
    assert between.shape == (2, 16, 32)
    whole = stage(range(2), first=True, last=True).to(dtype)
    assert float(back(between, labels=tokens)) == pytest.approx(float(whole(tokens, labels=tokens)), rel=1e-6)

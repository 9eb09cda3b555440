"""What a record of a parallel training says: its figures, its facts, and what they are made of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from paceline.benchmarks._model.measuring import DEVICE_MEMORY, HOST_MEMORY
from paceline.benchmarks.parallel import parallel
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.benchmarks.parallel._trainer import ParallelTrainer
from paceline.benchmarks.parallel.parallel import Parallel, exposed
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import Unsupported
from paceline.core.record import Measurement, Result
from paceline.core.trace_events import TraceEvent
from paceline.devices.cpu import CpuDevice
from paceline.measure import trace
from support.layouts import TINY


def context() -> Context:
    return Context(case=Case(index=0, benchmark="parallel", parameters={}, title="", target="cpu"))


# ---- a whole measurement


def test_a_measurement_of_one_rank_has_the_figures_of_its_layout() -> None:
    parameters = ParallelParameters(**TINY, micro_batch=2, steps=3, warm_up=0.0)
    phases: list[str] = []
    case = context().case
    result = Parallel().measure(parameters, Context(case=case, report=lambda progress: phases.append(progress.phase)))
    by_name = {one.metric.name: one for one in result.measurements}
    assert by_name["throughput"].work == by_name["throughput_per_gpu"].work == 4
    assert by_name["throughput_per_gpu"].derived_from == "step_time"
    assert by_name["throughput_per_gpu"].value == by_name["throughput"].value
    assert by_name["token_throughput"].work == 4 * 16
    assert by_name["achieved_flops"].work == parameters.transformer.step_flops(parameters.layout.global_batch)
    assert len(by_name["step_time"].samples) == 3
    losses = by_name["loss"].samples
    assert len(losses) == len(by_name["gradient_norm"].samples) == 5
    assert losses == sorted(losses, reverse=True)
    assert by_name["loss"].statistic == by_name["gradient_norm"].statistic == "single"
    assert result.facts["last_loss"] < losses[-1]
    assert (result.facts["batch_size"], result.facts["global_batch_size"]) == (2, 4)
    assert phases[0] == "first step"
    assert {"pipeline_bubble", "communication", "exposed_communication"}.isdisjoint(by_name)
    assert {"activation_memory", "peak_device_memory"}.isdisjoint(by_name)  # a CPU has no memory of its own


def test_before_it_measures_a_compiled_training_says_that_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):
        pass

    def built(_self: Parallel, training: Any, _mesh: Any) -> Any:
        return SimpleNamespace(parameters=training.parameters, device=training.device, parameter_count=0, layers=[])

    def first_step(_device: CpuDevice, _step: Any) -> float:
        raise Stopped

    monkeypatch.setattr(Parallel, "trainer", built)
    monkeypatch.setattr(CpuDevice, "seconds_of", first_step)
    phases: list[str] = []
    with pytest.raises(Stopped):
        Parallel().measure(
            ParallelParameters(**TINY, compile="on"),
            Context(case=context().case, report=lambda progress: phases.append(progress.phase)),
        )
    assert phases == ["compiling"]


# ---- preparing


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where `auto` compiles."""
    monkeypatch.setattr(parallel, "whether_to_compile", lambda switch, _device: (switch != "off", ""))


def prepared(**parameters: Any) -> parallel.Training:
    return Parallel().prepare(ParallelParameters(**TINY | parameters), CpuDevice())


def test_on_a_cpu_nothing_is_compiled_or_replayed() -> None:
    training = prepared()
    assert not training.compiled
    assert not training.is_graph
    why = "auto compiles on GPUs only"
    assert training.facts == {"compiled": False, "graph": False, "not_compiled_because": why}


@pytest.mark.usefixtures("compiles")
def test_what_is_compiled_needs_no_reason() -> None:
    training = prepared()
    assert training.compiled
    assert training.facts == {"compiled": True, "graph": False}


@pytest.mark.usefixtures("compiles")
@pytest.mark.parametrize(
    ("schedule", "checkpointing", "compiled", "facts"),
    [
        ("1f1b", True, True, set()),
        ("zero-bubble", False, False, {"not_compiled_because"}),
        ("zero-bubble", True, False, {"not_compiled_because", "recomputed"}),
    ],
)
def test_a_schedule_that_takes_the_backward_pass_apart_is_not_compiled(
    schedule: str, checkpointing: bool, compiled: bool, facts: set[str]
) -> None:
    of: dict[str, Any] = {"pipeline": 2, "layers": 4, "micro_batch": 1, "checkpointing": checkpointing}
    training = prepared(schedule=schedule, **of)
    assert training.compiled is compiled
    assert training.facts["compiled"] is compiled
    assert set(training.facts) == {"compiled", "graph", *facts}
    assert all("zero-bubble takes the backward pass apart" in training.facts[fact] for fact in facts)


def test_layers_that_are_whole_may_be_compiled_in_any_pipeline() -> None:
    assert prepared(pipeline=2, micro_batch=1, schedule="gpipe", compile="on").compiled


def test_fp8_is_refused_where_layers_are_split_and_only_there() -> None:
    with pytest.raises(Unsupported, match="not split over tensor-parallel ranks"):
        prepared(precision="fp8", tensor=2)
    assert {warning.kind for warning in prepared(precision="fp8").warnings} == {"emulated"}
    assert prepared(tensor=2).warnings == []


# ---- facts


def facts_of(trainer: Any = None, **parameters: Any) -> dict[str, Any]:
    trainer = trainer or SimpleNamespace()
    trainer.parameters, trainer.device = ParallelParameters(**TINY | parameters), CpuDevice()
    trainer.parameter_count, trainer.layers = 1234, [2, 2]
    return Parallel().facts(trainer)


def test_facts_name_the_layout_and_its_sizes() -> None:
    facts = facts_of(micro_batch=1)
    assert facts["layout"] == "gpt2/nl2_fp32_1x1x1_mb1_gb4_1n1g"
    assert facts["mesh"] == "data 1 x tensor 1 x pipeline 1"
    assert (facts["parameter_count"], facts["sequence"], facts["vocabulary"]) == (1234, 16, 128)
    assert (facts["micro_batches"], facts["dropout"], facts["data_parallel"]) == (4, 0.0, "none")
    assert facts["flops_formula"].startswith("Megatron-LM's: 72 B s L h^2")
    assert "constant rate 0.00015, gradient clipped to norm 1" in facts["optimizer"]
    assert {"schedule", "layers_of_stages", "ideal_bubble", "weights", "fp8_layers"}.isdisjoint(facts)


@pytest.mark.parametrize("shard", ["replicate", "fsdp"])
def test_facts_say_how_data_parallel_ranks_hold_their_weights(shard: str) -> None:
    assert facts_of(data=2, micro_batch=1, shard=shard)["data_parallel"] == shard


def test_facts_of_a_pipeline_have_its_schedule_and_its_ideal_bubble() -> None:
    facts = facts_of(pipeline=2, micro_batch=1)
    assert (facts["schedule"], facts["layers_of_stages"]) == ("1f1b", [2, 2])
    assert facts["ideal_bubble"] == "20 % if all stages took equally long: (p - 1) / (m + p - 1)"
    apart = facts_of(pipeline=2, micro_batch=1, layers=4, schedule="zero-bubble")
    assert apart["schedule"] == "zero-bubble"
    assert "ideal_bubble" not in apart


@pytest.mark.parametrize(
    ("precision", "masters", "expected"),
    [("fp32", None, set()), ("bf16", object(), {"weights"}), ("fp8", None, {"fp8_layers", "fp8_recipe"})],
)
def test_facts_tell_of_copies_and_of_fp8_layers(precision: str, masters: Any, expected: set[str]) -> None:
    trainer = object.__new__(ParallelTrainer)
    trainer.masters, trainer.fp8_layers = masters, 8
    facts = facts_of(trainer, precision=precision)
    assert set(facts) & {"weights", "fp8_layers", "fp8_recipe"} == expected
    assert facts.get("fp8_layers", 8) == 8
    assert precision in facts.get("weights", precision)


def test_only_a_word_names_nodes() -> None:
    assert Parallel.nodes(ParallelParameters(case="gpt2/nl24_fp16_2x2x4_ac_mb32_gb1024_2n8g")) == 2
    assert Parallel.nodes(ParallelParameters(data=16)) is None


# ---- steps whose loss is read


class Gathering:
    """Ranks of which the others say what a test says."""

    def __init__(self, others: list[float | None]) -> None:
        self.others = others
        self.world_size = len(others) + 1
        self.met = 0

    def gather(self, mine: float | None) -> list[float | None]:
        return [mine, *self.others]

    def meet(self) -> None:
        self.met += 1

    def all_agree(self, mine: bool) -> bool:
        return mine


@pytest.mark.parametrize(("mine", "others", "loss"), [(2.0, [4.0], 3.0), (None, [4.0, None, 5.0], 4.5), (2.0, [], 2.0)])
def test_the_loss_of_the_whole_batch_is_the_mean_over_the_ranks_with_a_last_stage(
    mine: float | None, others: list[float | None], loss: float
) -> None:
    step_loss = None if mine is None else torch.tensor(mine)
    trainer = SimpleNamespace(step=lambda: step_loss, norm=torch.tensor(1.5))
    recorded = parallel._RecordedSteps(cast("Any", trainer), cast("Any", Gathering(others)))
    recorded.step()
    assert (recorded.losses, recorded.norms) == ([loss], [1.5])


def test_a_captured_step_is_what_is_taken_from_then_on() -> None:
    taken: list[str] = []
    device = SimpleNamespace(capture=lambda _step: lambda: taken.append("replayed"))
    trainer = SimpleNamespace(step=lambda: taken.append("issued"), device=device)
    recorded = parallel._RecordedSteps(cast("Any", trainer), cast("Any", Gathering([])))
    recorded.take()
    recorded.capture()
    recorded.take()
    assert taken == ["issued", "replayed"]


# ---- memory

PARTS = {"parameter_memory": 10, "gradient_memory": 20, "optimizer_memory": 30}


@pytest.mark.parametrize(("peak", "rest"), [(100, 40.0), (60, 0.0), (50, 0.0), (None, None)])
def test_activations_are_what_is_left_of_the_peak(peak: int | None, rest: float | None) -> None:
    trainer = SimpleNamespace(memory=lambda: PARTS)
    measurements = [Measurement.of_value(HOST_MEMORY, 5000)]
    if peak is not None:
        measurements.append(Measurement.of_value(DEVICE_MEMORY, peak))
    figures = parallel._memory(cast("Any", trainer), Result(measurements=measurements))
    by_name = {one.metric.name: one.value for one in figures}
    assert by_name == PARTS | ({} if rest is None else {"activation_memory": rest})


# ---- the bubble


def test_the_bubble_is_the_share_in_which_a_rank_does_not_compute() -> None:
    done: list[str] = []
    busy = iter((0.75, 1.0, 0.5))

    def stop() -> dict[str, float]:
        done.append("stop")
        return {"busy": 2.0 * next(busy), "schedule": 2.0}

    watch = SimpleNamespace(start=lambda: done.append("start"), stop=stop)
    trainer = SimpleNamespace(pipeline=SimpleNamespace(watch=watch), step=lambda: done.append("step"))
    ranks = Gathering([None])
    (bubble,) = parallel._bubble(cast("Any", trainer), cast("Any", ranks))
    assert bubble.samples == [25.0, 0.0, 50.0]
    assert done == ["start", "step", "stop"] * 3
    assert ranks.met == 1


def test_without_a_pipeline_there_is_no_bubble() -> None:
    assert parallel._bubble(cast("Any", SimpleNamespace(pipeline=None)), cast("Any", Gathering([]))) == []


# ---- communication


def chrome(*events: tuple[str, str, float, float]) -> dict[str, Any]:
    """A trace of events with a category, a name, a start and a length in microseconds, each on a thread of its own."""
    return {
        "traceEvents": [
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 1, "tid": lane, "args": {}}
            for lane, (category, name, start, length) in enumerate(events)
        ]
    }


TALKING = chrome(("cpu_op", "gloo:all_reduce", 0.0, 100.0), ("cpu_op", "aten::mm", 20.0, 40.0))
SILENT = chrome(("cpu_op", "aten::mm", 20.0, 40.0))


def communication(
    monkeypatch: pytest.MonkeyPatch, taken: dict[str, Any] | None, others: int, *, has_gpu: bool = False
) -> tuple[dict[str, float], list[int]]:
    """Seconds by metric, and of how many steps a trace was taken."""
    asked: list[int] = []

    def take(_step: Any, _device: Any, *, steps: int, **_: Any) -> dict[str, Any]:
        asked.append(steps)
        if taken is None:
            raise trace.TraceFailed("no profiler")
        return taken

    monkeypatch.setattr(trace, "take", take)
    device = SimpleNamespace(kind=SimpleNamespace(is_accelerator=has_gpu))
    training = SimpleNamespace(device=device, ranks=Gathering([None] * others), in_flight=2)
    figures = parallel._communication(cast("Any", SimpleNamespace(step=lambda: None)), cast("Any", training))
    return {one.metric.name: one.value for one in figures}, asked


@pytest.mark.parametrize("others", [1, 2])
def test_communication_is_that_of_one_step_in_seconds(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    figures, asked = communication(monkeypatch, TALKING, others)
    assert figures == pytest.approx({"communication": 50e-6, "exposed_communication": 30e-6}, rel=1e-12)
    assert asked == [1]  # and one before it


def test_on_a_gpu_communication_is_that_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = chrome(("kernel", "ncclDevKernel_AllReduce", 0.0, 60.0), ("cpu_op", "aten::mm", 0.0, 60.0))
    figures, _ = communication(monkeypatch, kernels, 1, has_gpu=True)
    assert figures == pytest.approx({"communication": 30e-6, "exposed_communication": 30e-6})


@pytest.mark.parametrize(
    ("taken", "others", "has_gpu"), [(SILENT, 1, False), (TALKING, 1, True), (None, 1, False), (TALKING, 0, False)]
)
def test_communication_that_no_trace_shows_is_left_out(
    monkeypatch: pytest.MonkeyPatch, taken: dict[str, Any] | None, others: int, has_gpu: bool
) -> None:
    figures, asked = communication(monkeypatch, taken, others, has_gpu=has_gpu)
    assert figures == {}
    assert len(asked) == min(others, 1)


def test_what_takes_no_time_does_not_make_an_operator_less_busy() -> None:
    seen = [
        TraceEvent("gloo:all_reduce", 0, 100, 2, on_device=False),
        TraceEvent("aten::mm", 0, 100, 1, on_device=False),
        TraceEvent("aten::view", 50, 50, 1, on_device=False),
    ]
    assert exposed(seen, on_device=False) == (100, 0)

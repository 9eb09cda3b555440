"""megatron-core on every kind of mesh gives the losses that it gives alone, which for GPT-2 are those of `parallel`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from paceline.core.record import Outcome, Record
from support.cli import sandbox_in

# Whether it is there, without the seconds that importing it takes.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not find_spec("megatron"), reason="needs megatron-core: pip install '.[megatron]'"),
]

TOLERANCE = 1e-5
SHAPE = {"hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 256, "layers": 2, "precision": "fp32"}
COMMON = {**SHAPE, "global_batch": 8, "steps": 2, "warm_up": "1ms", "timeout": "120s"}
ALONE = {"micro_batch": 8}
MESHES: dict[str, dict[str, object]] = {
    "2x1x1": {"data": 2, "micro_batch": 2},
    "1x2x1": {"tensor": 2, "micro_batch": 8},
    "1x1x2": {"pipeline": 2, "micro_batch": 2, "checkpointing": True},
}
PLACES = [(model, mesh) for model in ("gpt2", "bert") for mesh in MESHES]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Record]]:
    """Everything in one run, by name."""
    megatron, ours = COMMON | {"benchmark": "megatron-core"}, COMMON | {"benchmark": "parallel"}
    cases: dict[str, dict[str, object]] = {"gpt2 by parallel": ours | ALONE | {"model": "gpt2"}}
    for model in ("gpt2", "bert"):
        cases[f"{model} alone"] = megatron | ALONE | {"model": model}
        cases |= {f"{model} {mesh}": megatron | sizes | {"model": model} for mesh, sizes in MESHES.items()}
    cases["2x2x2"] = megatron | {"data": 2, "tensor": 2, "pipeline": 2, "micro_batch": 2}
    cases["impossible"] = megatron | MESHES["1x1x2"] | {"layers": 3}
    with sandbox_in(tmp_path_factory.mktemp("megatron") / "sandbox") as sandbox:
        done = sandbox.run("run", sandbox.suite(*cases.values()), "--no-report", timeout=580)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sandbox.left_behind() == []
        yield dict(zip(cases, sandbox.load().records, strict=True))


def samples(record: Record, name: str) -> list[float]:
    found = record.measurement(name)
    assert found is not None, record.cause
    assert len(found.samples) == 5
    return found.samples


@pytest.mark.parametrize(("model", "mesh"), [*PLACES, ("gpt2", "")], ids=lambda part: part or "against-parallel")
def test_a_mesh_computes_what_one_rank_computes(records: dict[str, Record], model: str, mesh: str) -> None:
    record = records[f"{model} {mesh}" if mesh else "gpt2 by parallel"]
    alone = records[f"{model} alone"]
    assert samples(record, "loss") == pytest.approx(samples(alone, "loss"), abs=TOLERANCE)
    assert samples(record, "gradient_norm") == pytest.approx(samples(alone, "gradient_norm"), rel=1e-4)
    losses = samples(record, "loss")
    assert losses[0] - losses[-1] > 1000 * TOLERANCE  # it trains


def test_three_dimensions_at_once(records: dict[str, Record]) -> None:
    record = records["2x2x2"]
    assert record.case.ranks == 8
    assert samples(record, "loss") == pytest.approx(samples(records["gpt2 alone"], "loss"), abs=TOLERANCE)


def test_what_it_cannot_do_is_reported_and_no_failure(records: dict[str, Record]) -> None:
    record = records["impossible"]
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.cause is not None
    assert "3 layers are not a multiple of pipeline = 2" in record.cause.message


def test_a_record_tells_the_same_metrics_and_how_it_was_made(records: dict[str, Record]) -> None:
    ours, theirs = records["gpt2 by parallel"], records["gpt2 alone"]
    assert {one.metric.name for one in theirs.measurements} == {one.metric.name for one in ours.measurements}
    for fact in ("layout", "parameter_count", "vocabulary", "flops_per_step", "flops_formula", "dropout"):
        assert theirs.facts[fact] == ours.facts[fact]
    assert theirs.facts["framework"].startswith("megatron-core ")
    assert "answered for the CPU" in theirs.facts["on_cpu"]
    assert "pre-norm" in records["bert alone"].facts["architecture"]
    throughput, step_time = theirs.measurement("throughput"), theirs.measurement("step_time")
    assert throughput is not None
    assert step_time is not None
    assert throughput.value == pytest.approx(8 / step_time.summary.mean)

"""Every layout computes what the model computes in one process: five losses and five norms of the gradient.

The norm is compared beside the loss because AdamW takes the same step for a gradient of any scale: a gradient that is
twice too large hardly shows in the loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from paceline.core.record import CauseKind, Outcome, Record
from support.cli import sandbox_in

TOLERANCE = 1e-5
SHAPE = {"hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 256, "layers": 4, "precision": "fp32"}
COMMON = {"benchmark": "parallel", **SHAPE, "global_batch": 8, "steps": 2, "warm_up": "1ms", "timeout": "120s"}
ALONE = {"micro_batch": 8}
SPLIT_TOKENS = {"sequence_parallel": True}
KEEP_LITTLE = {"checkpointing": True}
FSDP = {"shard": "fsdp"}


GROUPED = {"key_heads": 2}  # two heads for each
FEW_EXPERTS = GROUPED | {"experts": 4}
MORE: dict[str, dict[str, object]] = {"llama": dict(GROUPED), "mixtral": dict(FEW_EXPERTS)}  # of a model in all layouts


def mesh(data: int, tensor: int, pipeline: int, micro_batch: int, schedule: str = "auto") -> dict[str, object]:
    sizes = {"data": data, "tensor": tensor, "pipeline": pipeline, "micro_batch": micro_batch}
    return sizes | ({} if schedule == "auto" else {"schedule": schedule})


def context(ranks: int) -> dict[str, object]:
    return {"context": ranks}


def expert(ranks: int) -> dict[str, object]:
    return {"expert": ranks}


LAYOUTS: dict[str, list[dict[str, object]]] = {
    "gpt2": [
        mesh(2, 1, 1, micro_batch=2),
        mesh(1, 2, 1, micro_batch=8),
        mesh(1, 1, 2, micro_batch=2, schedule="gpipe") | KEEP_LITTLE,
        mesh(2, 2, 1, micro_batch=4) | FSDP | SPLIT_TOKENS | KEEP_LITTLE,
        mesh(2, 1, 2, micro_batch=2) | FSDP,
        mesh(1, 2, 2, micro_batch=4),
        mesh(2, 2, 2, micro_batch=2),
        mesh(1, 1, 4, micro_batch=2, schedule="1f1b"),
        mesh(1, 1, 2, micro_batch=2, schedule="interleaved") | KEEP_LITTLE,
        mesh(1, 1, 2, micro_batch=2, schedule="looped-bfs"),
        mesh(1, 1, 2, micro_batch=2, schedule="zero-bubble"),
    ],
    "bert": [
        mesh(2, 1, 1, micro_batch=2) | FSDP | KEEP_LITTLE,
        mesh(1, 2, 1, micro_batch=8) | SPLIT_TOKENS,
        mesh(1, 1, 2, micro_batch=4, schedule="zero-bubble") | KEEP_LITTLE,
        mesh(2, 2, 1, micro_batch=4),
        mesh(2, 1, 2, micro_batch=2, schedule="interleaved"),
        mesh(1, 2, 2, micro_batch=4) | KEEP_LITTLE | SPLIT_TOKENS,
        mesh(2, 2, 2, micro_batch=2) | FSDP,
    ],
    "llama": [
        mesh(1, 1, 1, micro_batch=4) | context(2),
        mesh(2, 2, 1, micro_batch=4) | FSDP | SPLIT_TOKENS | KEEP_LITTLE,
        mesh(2, 1, 2, micro_batch=2),
        mesh(2, 1, 1, micro_batch=2) | context(4) | FSDP,
        mesh(1, 2, 1, micro_batch=4) | context(2) | SPLIT_TOKENS | KEEP_LITTLE,
        mesh(1, 1, 2, micro_batch=2, schedule="zero-bubble"),
    ],
    "mixtral": [
        mesh(2, 1, 1, micro_batch=4) | expert(2),
        mesh(2, 2, 1, micro_batch=4) | FSDP | SPLIT_TOKENS | KEEP_LITTLE,
        mesh(4, 1, 1, micro_batch=1) | expert(2) | FSDP,
        mesh(4, 1, 1, micro_batch=2) | expert(4) | KEEP_LITTLE,
        mesh(2, 2, 1, micro_batch=2) | expert(2),
        mesh(2, 1, 2, micro_batch=2) | expert(2) | context(2),
    ],
}
# The others take minutes: these are a data, a tensor, a pipeline, a sharded, a context- and an expert-parallel layout,
# and one wrong gradient.
SHORT = (
    *("gpt2 alone", "gpt2 0", "gpt2 1", "gpt2 2", "bert alone", "bert 0"),
    *("llama alone", "llama 0", "mixtral alone", "mixtral 0", "inference 1x1x2", "scale"),
)
WRONG = {
    "scale": mesh(1, 1, 2, micro_batch=2),
    "weight": mesh(2, 1, 1, micro_batch=4),
    "tie": mesh(1, 1, 2, micro_batch=2),
}
FAILING = {
    "raise": (CauseKind.ERROR, "ValueError: the last rank has a fault of its own"),
    "memory": (CauseKind.HOST_MEMORY, "the last rank wants more than there is"),
    "hang": (CauseKind.TIMEOUT, "not done after 8 s: it was in _fail (faulty_parallel.py:"),
}
INFERENCE = {
    "inference 1x2x1": mesh(1, 2, 1, micro_batch=8),
    "inference 1x1x2": mesh(1, 1, 2, micro_batch=2),
    "inference 2x2x2": mesh(2, 2, 2, micro_batch=2),
}
PLACES = [(model, place) for model, layouts in LAYOUTS.items() for place in range(len(layouts))]


def shown(model: str, place: int) -> str:
    layout = LAYOUTS[model][place]
    named = ("schedule", "shard")
    counted = ("context", "expert")
    more = [
        str(value) if key in named else f"{key}{value}" if key in counted else key
        for key, value in layout.items()
        if key not in ALONE
    ]
    sizes = "x".join(str(layout[axis]) for axis in ("data", "tensor", "pipeline"))
    return "-".join([model, sizes, *(word for word in more if word not in ("data", "tensor", "pipeline"))])


def marks(case: str) -> list[pytest.MarkDecorator]:
    return [] if case in SHORT else [pytest.mark.long]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, with_long: bool) -> Iterator[dict[str, Record]]:
    """Everything in one run, by name; or what the short tests need."""
    cases: dict[str, dict[str, object]] = {}
    for model, layouts in LAYOUTS.items():
        one = COMMON | MORE.get(model, {}) | {"model": model}
        cases[f"{model} alone"] = one | ALONE
        cases |= {f"{model} {place}": one | layout for place, layout in enumerate(layouts)}
    forward = COMMON | {"model": "gpt2", "mode": "inference"}
    cases |= {name: forward | layout for name, layout in INFERENCE.items()}
    faulty = COMMON | {"benchmark": "faulty-parallel", "model": "gpt2"}
    cases |= {fault: faulty | layout | {"fault": fault} for fault, layout in WRONG.items()}
    plain = mesh(2, 1, 2, micro_batch=2)
    cases |= {fault: faulty | plain | {"fault": fault, "timeout": "60s"} for fault in FAILING}
    cases["hang"]["timeout"] = "8s"
    if not with_long:
        cases = {name: cases[name] for name in SHORT}
    with sandbox_in(tmp_path_factory.mktemp("parallel") / "sandbox") as sandbox:
        done = sandbox.run("run", sandbox.suite(*cases.values()), "--no-report", timeout=580)
        assert done.returncode == int(with_long), done.stdout + done.stderr  # some long ones are made to fail
        assert sandbox.left_behind() == []
        yield dict(zip(cases, sandbox.load().records, strict=True))


def samples(record: Record, name: str) -> list[float]:
    found = record.measurement(name)
    assert found is not None, json.dumps(record.model_dump(mode="json", include={"outcome", "cause"}), indent=1)
    assert len(found.samples) == 5
    return found.samples


def differences(record: Record, alone: Record) -> tuple[float, float]:
    """The largest difference of a loss, and of a norm of the gradient as a part of it."""
    losses = zip(samples(record, "loss"), samples(alone, "loss"), strict=True)
    norms = zip(samples(record, "gradient_norm"), samples(alone, "gradient_norm"), strict=True)
    return max(abs(a - b) for a, b in losses), max(abs(a / b - 1) for a, b in norms)


@pytest.mark.parametrize(
    ("model", "place"),
    [pytest.param(*each, id=shown(*each), marks=marks("{} {}".format(*each))) for each in PLACES],
)
def test_a_layout_computes_what_one_process_computes(records: dict[str, Record], model: str, place: int) -> None:
    record, alone = records[f"{model} {place}"], records[f"{model} alone"]
    loss, norm = differences(record, alone)
    assert loss <= TOLERANCE
    assert norm <= TOLERANCE
    losses = samples(record, "loss")
    assert losses == sorted(losses, reverse=True)  # it trains
    assert losses[0] - losses[-1] > 1000 * TOLERANCE


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in INFERENCE])
def test_inference_over_ranks_gives_the_loss_of_one_process_and_learns_nothing(
    records: dict[str, Record], name: str
) -> None:
    first = samples(records["gpt2 alone"], "loss")[0]
    assert samples(records[name], "loss") == pytest.approx([first] * 5, abs=TOLERANCE)
    assert records[name].measurement("gradient_norm") is None
    assert records[name].measurement("throughput") is not None


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=marks(fault)) for fault in WRONG])
def test_wrong_gradients_break_parity(records: dict[str, Record], fault: str) -> None:
    loss, norm = differences(records[fault], records["gpt2 alone"])
    assert norm > 100 * TOLERANCE
    if fault != "scale":  # a part of the gradient that weighs too much turns it, which AdamW does not hide
        assert loss > TOLERANCE


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=marks(fault)) for fault in FAILING])
def test_a_rank_that_fails_ends_the_case_with_its_own_cause(records: dict[str, Record], fault: str) -> None:
    record = records[fault]
    kind, words = FAILING[fault]
    assert record.cause is not None
    assert record.cause.kind is kind
    assert words in record.cause.message
    assert record.seconds < 45  # not the timeouts of collectives
    assert record.cause.rank == 3  # although in a hang all of them are late
    outcomes = {"raise": Outcome.FAILED, "memory": Outcome.OUT_OF_MEMORY, "hang": Outcome.TIMEOUT}
    assert record.outcome is outcomes[fault]


@pytest.mark.long
def test_a_record_tells_of_the_whole_mesh(records: dict[str, Record]) -> None:
    record = records["gpt2 6"]
    assert record.case.ranks == 8
    assert record.case.title.startswith("gpt2/nl4_fp32_2x2x2_mb2_gb8_1n8g ")
    step_time, throughput = record.measurement("step_time"), record.measurement("throughput")
    each, tokens = record.measurement("throughput_per_gpu"), record.measurement("token_throughput")
    assert step_time is not None
    assert throughput is not None
    assert each is not None
    assert tokens is not None
    assert throughput.value == pytest.approx(8 / step_time.summary.mean)
    assert tokens.value == pytest.approx(32 * throughput.value)
    assert each.value == pytest.approx(throughput.value / 8)
    assert record.facts["parameter_count"] == records["gpt2 alone"].facts["parameter_count"]
    assert record.facts["micro_batches"] == 2
    assert "72 B s L h^2" in record.facts["flops_formula"]
    bubble = record.measurement("pipeline_bubble")
    assert bubble is not None
    assert 0 < bubble.value < 100


def test_memory_is_split_as_the_layout_says(records: dict[str, Record]) -> None:
    def held(name: str, part: str, scope: str = "") -> float:
        found = records[name].measurement(part, scope)
        assert found is not None
        return found.value

    whole = 4 * records["gpt2 alone"].facts["parameter_count"]
    assert held("gpt2 alone", "parameter_memory") == whole
    assert held("gpt2 alone", "gradient_memory") == whole
    assert held("gpt2 alone", "optimizer_memory") == pytest.approx(2 * whole, rel=0.01)
    assert held("gpt2 0", "parameter_memory") == whole  # replicated
    sharded = [held("bert 0", "parameter_memory", f"rank {rank}") for rank in range(2)]
    assert sum(sharded) == 4 * records["bert alone"].facts["parameter_count"]

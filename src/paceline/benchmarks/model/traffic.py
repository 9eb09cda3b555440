"""The least that a model must move through memory: the other side of its arithmetic intensity.

It is a model itself: a lower bound made of the facts that a record carries, with its formula in words.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.benchmarks.model.metrics import FLOP_RATE
from paceline.core.layout import Layout
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.subject import BYTES, Work, number_format

MASTER = 4  # bytes of a weight, a gradient and a moment in training, which keeps them in fp32
MOMENTS = {"adamw": 2, "sgd": 1}  # numbers that an optimizer keeps for each weight
ACTIVATIONS = "activations"

FORWARD = "each weight read once in a step"
TRAINING = (
    "each weight read once forward and once backward, its gradient written and read once, weights and optimizer "
    "state read and written once"
)
MESH = (
    "each weight of a rank read once in every pass of every micro-batch, its gradient written and read once, weights "
    "and optimizer state read and written once"
)
KEPT = "; what else was allocated at the peak, written and read once"
SAVED = "; what was kept for the backward pass, written and read once"
PASSED = "; at most also each operator's result, written and read once, as far as no cache holds it"


def counted(count: Callable[[Record], Work | None], record: Record) -> Work | None:
    """The work of a record that has all the facts for it; None for others: of another version, or not measured."""
    if record.outcome is not Outcome.OK:
        return None
    try:
        return count(record)
    except (KeyError, TypeError, ValueError):
        return None


def inference_work(record: Record) -> Work | None:
    """One forward pass."""
    word = BYTES[number_format(record.facts["precision"])]
    found = _model(record, word * float(record.facts["parameter_count"]), FORWARD)
    results = 2.0 * float(record.facts.get("activation_bytes") or 0)
    if found is None or not results:
        return found
    return found.model_copy(update={"passed": results, "formula": found.formula + PASSED})


def training_work(record: Record) -> Work | None:
    """One training step."""
    facts = record.facts
    weights = float(facts["parameter_count"]) + float(facts.get("loss_parameter_count", 0))
    moments = MOMENTS[str(facts["optimizer"]).partition(",")[0].lower()]
    passes = 2 * BYTES[number_format(facts["precision"])]
    per_weight = passes + 2 * MASTER + 2 * MASTER * (1 + moments)
    peak = record.measurement("peak_device_memory")
    if peak is not None:
        kept = max(0.0, peak.value - weights * MASTER * (2 + moments))
        return _model(record, weights * per_weight, TRAINING + KEPT, kept)
    if facts.get("activation_bytes"):
        return _model(record, weights * per_weight, TRAINING + SAVED, float(facts["activation_bytes"]))
    return _model(record, weights * per_weight, TRAINING)


def mesh_work(record: Record) -> Work | None:
    """One step of one rank of a mesh."""
    layout = Layout.parse(str(record.facts["layout"]))
    weights = float(record.facts["parameter_count"]) / (layout.tensor * layout.pipeline)
    passes = layout.micro_batches * (3 if layout.checkpointing else 2)
    held = sum(_value(record.measurement(f"{part}_memory")) for part in ("parameter", "gradient", "optimizer"))
    if not held:
        return None
    kept = record.measurement("activation_memory")
    reading = weights * passes * BYTES[number_format(record.facts["precision"])]
    return _model(record, reading + 2 * held, MESH + KEPT if kept else MESH, kept.value if kept else None)


def _model(record: Record, moved: float, formula: str, kept: float | None = None) -> Work | None:
    rate = record.measurement(FLOP_RATE.name)
    flops = float(record.facts["flops_per_step"])
    if rate is None:
        return None
    return Work(
        flops=flops,
        bytes=moved + 2 * (kept or 0.0),
        # Ranks on GPUs have one each; those on a CPU share it, and its memory.
        rate=rate.value if record.case.target == "cpu" else rate.value / record.case.ranks,
        unit=rate.metric.unit,
        number_format=number_format(record.facts["precision"]),
        formula=formula,
        is_modelled=True,
        left_out=ACTIVATIONS if kept is None else "",
    )


def _value(measurement: Measurement | None) -> float:
    return measurement.value if measurement is not None else 0.0

"""What a case computes and the least that it must move through memory: the two sides of its arithmetic intensity.

Products know their traffic exactly: each operand is read once and the result is written once. The traffic of a model
is itself a model: a lower bound made of the facts that its record carries, with its formula in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from paceline.core.layout import Layout
from paceline.core.record import Measurement, Record

WORD = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}  # bytes of an operand's number
RESULT = WORD | {"fp8": 2, "int8": 4}  # of a result's
MASTER = 4  # bytes of a weight, a gradient and a moment in training, which keeps them in fp32
MOMENTS = {"adamw": 2, "sgd": 1}  # numbers that an optimizer keeps beside each weight
ACTIVATIONS = "activations"
MODELS = ("training", "inference")  # categories whose cases count their operations

PRODUCT = "each operand read once and the result written once"
TRIAD = "two arrays read and one written, as STREAM counts"
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


@dataclass(frozen=True)
class Work:
    """What one device does in one step or call, and how fast."""

    flops: float
    moved: float  # bytes, at least
    rate: float  # operations per second of one device
    unit: str  # of the rate
    precision: str  # that the units compute in
    formula: str  # how the bytes were counted
    is_modelled: bool = False  # rather than exact
    left_out: str = ""  # what was not counted, so that more is moved than this
    passed: float = 0.0  # of what was left out, the bytes that operators hand each other; a cache may hold them

    @property
    def intensity(self) -> float:
        """Operations for each byte; at most this many, where bytes are left out."""
        return self.flops / self.moved

    @property
    def traffic(self) -> float:
        """Bytes per second, at least."""
        return self.rate / self.intensity

    @property
    def most_traffic(self) -> float | None:
        """Bytes per second if no cache held anything; None where that is not known."""
        if self.left_out and not self.passed:
            return None
        return self.rate * (self.moved + self.passed) / self.flops

    @property
    def least_intensity(self) -> float | None:
        """Operations for each byte if no cache held anything; None where that is not known."""
        most = self.most_traffic
        return None if most is None else self.rate / most


def work_of(record: Record) -> Work | None:
    """The work of a case that tells its operations and enough of its bytes; None for all others."""
    count = _COUNTERS.get(record.case.benchmark)
    if count is None:
        return None
    try:
        found = count(record)
    except (KeyError, TypeError, ValueError):  # a record of another version, or of a plug-in of the same name
        return None
    return found if found is not None and min(found.flops, found.moved, found.rate) > 0 else None


def asks_for_a_roof(record: Record) -> bool:
    """Whether a reader would look for this case under a roof: it is a model's that counts its operations."""
    return record.case.category in MODELS and record.measurement("achieved_flops") is not None


def device_of(record: Record) -> str:
    """The device's name as ceilings have it; the host's processor is the cpu."""
    return "cpu" if record.case.target == "cpu" else str(record.facts.get("device") or record.case.target)


def unit_format(precision: str) -> str:
    """The number format that the units compute in: the recipes of 8-bit training share one."""
    return "fp8" if precision.startswith("fp8") else precision


def _product(record: Record) -> Work | None:
    rate = record.measurement("compute_rate")
    if rate is None:
        return None
    shape = record.facts["shape"]
    m, n, k, batch = (int(shape.get(name, 1)) for name in ("m", "n", "k", "batch"))
    precision = str(record.case.parameters["precision"])
    plain = " plain units" if record.case.parameters.get("tensor_cores") == "off" else ""
    return Work(
        flops=2.0 * m * n * k * batch,
        moved=float(batch * ((m * k + k * n) * WORD[precision] + m * n * RESULT[precision])),
        rate=rate.value,
        unit=rate.metric.unit,
        precision=precision + plain,
        formula=PRODUCT,
    )


def _triad(record: Record) -> Work | None:
    bandwidth = record.measurement("triad_bandwidth")
    if bandwidth is None or record.case.parameters.get("sizes"):
        return None
    flops, moved = 2.0, 24.0  # of one element
    return Work(flops, moved, bandwidth.value * flops / moved, "FLOP/s", "fp64", TRIAD)


def _inference(record: Record) -> Work | None:
    precision = unit_format(str(record.facts["precision"]))
    found = _model(record, WORD[precision] * float(record.facts["parameter_count"]), FORWARD)
    results = 2.0 * float(record.facts.get("activation_bytes") or 0)
    return replace(found, passed=results, formula=found.formula + PASSED) if found and results else found


def _train(record: Record) -> Work | None:
    facts = record.facts
    weights = float(facts["parameter_count"]) + float(facts.get("loss_parameter_count", 0))
    moments = MOMENTS[str(facts["optimizer"]).partition(",")[0].lower()]
    passes = 2 * WORD[unit_format(str(facts["precision"]))]
    per_weight = passes + 2 * MASTER + 2 * MASTER * (1 + moments)
    peak = record.measurement("peak_device_memory")
    if peak is not None:
        kept = max(0.0, peak.value - weights * MASTER * (2 + moments))
        return _model(record, weights * per_weight, TRAINING + KEPT, kept)
    if facts.get("activation_bytes"):
        return _model(record, weights * per_weight, TRAINING + SAVED, float(facts["activation_bytes"]))
    return _model(record, weights * per_weight, TRAINING)


def _mesh(record: Record) -> Work | None:
    facts = record.facts
    layout = Layout.parse(str(facts["layout"]))
    weights = float(facts["parameter_count"]) / (layout.tensor * layout.pipeline)
    passes = layout.micro_batches * (3 if layout.checkpointing else 2)
    held = sum(_value(record.measurement(f"{part}_memory")) for part in ("parameter", "gradient", "optimizer"))
    if not held:
        return None
    kept = record.measurement("activation_memory")
    reading = weights * passes * WORD[unit_format(str(facts["precision"]))]
    return _model(record, reading + 2 * held, MESH + KEPT if kept else MESH, kept.value if kept else None)


def _model(record: Record, moved: float, formula: str, kept: float | None = None) -> Work | None:
    rate = record.measurement("achieved_flops")
    flops = float(record.facts["flops_per_step"])
    if rate is None:
        return None
    return Work(
        flops=flops,
        moved=moved + 2 * (kept or 0.0),
        # Ranks on GPUs have one each; those on a CPU share it, and its memory.
        rate=rate.value if record.case.target == "cpu" else rate.value / record.case.ranks,
        unit=rate.metric.unit,
        precision=unit_format(str(record.facts["precision"])),
        formula=formula,
        is_modelled=True,
        left_out=ACTIVATIONS if kept is None else "",
    )


def _value(measurement: Measurement | None) -> float:
    return measurement.value if measurement is not None else 0.0


_COUNTERS: Mapping[str, Callable[[Record], Work | None]] = {
    "gemm": _product,
    "matmul": _product,
    "stream": _triad,
    "inference": _inference,
    "train": _train,
    "parallel": _mesh,
    "megatron-core": _mesh,
}

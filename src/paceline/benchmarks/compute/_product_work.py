"""The work of a matrix product: its operations, and the least that it must move through memory."""

from __future__ import annotations

from paceline.benchmarks.micro.metrics import COMPUTE_RATE
from paceline.core.record import Record
from paceline.core.subject import BYTES, Precision, Work

FORMULA = "each operand read once and the result written once"
RESULT = {**BYTES, "fp8": 2, "int8": 4}  # bytes of a result's number


def product_work(record: Record, precision: Precision, units: str) -> Work | None:
    """What one product does, as its record says; None where it has no rate or no shape."""
    rate, shape = record.measurement(COMPUTE_RATE.name), record.facts.get("shape")
    if rate is None or not rate.value > 0 or not isinstance(shape, dict):
        return None
    m, n, k, batch = (int(shape.get(name, 1)) for name in ("m", "n", "k", "batch"))
    return Work(
        flops=2.0 * m * n * k * batch,
        bytes=float(batch * ((m * k + k * n) * BYTES[precision] + m * n * RESULT[precision])),
        rate=rate.value,
        unit=rate.metric.unit,
        number_format=units,
        formula=FORMULA,
    )

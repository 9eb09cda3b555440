"""The metrics of a served model under load."""

from __future__ import annotations

from paceline.core.metric import Better, Metric

LATENCY = Metric(
    name="latency",
    unit="s",
    better=Better.LOWER,
    description="from the intended time of a request to its whole answer, of every request that was answered well",
)
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
PERCENTILES = {
    name: Metric(
        name=f"latency_{name}",
        unit="s",
        better=Better.LOWER,
        description=f"{100 * share:g} % of the requests were answered within this time; one without an answer counts "
        "as late without end",
    )
    for name, share in SHARES.items()
}
CAPACITY = Metric(
    name="capacity",
    unit="requests/s",
    better=Better.HIGHER,
    description="the largest rate of Poisson arrivals at which the slo holds",
)
THROUGHPUT = Metric(
    name="throughput", unit="requests/s", better=Better.HIGHER, description="requests answered well over time"
)
SAMPLE_THROUGHPUT = Metric(
    name="sample_throughput", unit="samples/s", better=Better.HIGHER, description="samples answered well over time"
)
GOODPUT = Metric(
    name="goodput", unit="requests/s", better=Better.HIGHER, description="requests answered within the slo, over time"
)
OFFERED = Metric(name="offered_rate", unit="requests/s", description="requests that were to be sent, over time")
ERRORS = Metric(
    name="error_rate",
    unit="%",
    better=Better.LOWER,
    description="requests that failed, without those that the server shed",
)
SHED = Metric(
    name="shed_rate", unit="%", better=Better.LOWER, description="requests that the server declined because of load"
)
DELIVERED = Metric(
    name="delivered",
    unit="%",
    better=Better.HIGHER,
    description="requests that went out at all; the load generator's own honesty",
)
LATENESS = Metric(
    name="send_lateness",
    unit="s",
    better=Better.LOWER,
    description="how long after its intended time a request went; the load generator's own error, within the latency",
)
STAGE = Metric(
    name="stage_time",
    unit="s",
    better=Better.LOWER,
    description="parts of the latency: sending late, transmission, and what the server tells of itself",
)
BATCHES = Metric(
    name="batch_share", unit="%", description="part of the batches that were computed with so many samples"
)
BATCH = Metric(name="batch_size", unit="samples", description="samples of a batch as it was computed, on average")
COLD_START = Metric(
    name="cold_start",
    unit="s",
    better=Better.LOWER,
    description="from the process to ready, from ready to the first answer, and from then until answers are steady",
)
CPU = Metric(name="cpu_utilisation", unit="%", description="processor time of the server over time; 100 % is one core")
GPU = Metric(name="gpu_utilisation", unit="%", description="part of the time in which the GPU was busy")
HOST_MEMORY = Metric(
    name="server_memory", unit="B", better=Better.LOWER, description="most resident memory of the server's processes"
)
DEVICE_MEMORY = Metric(
    name="server_device_memory", unit="B", better=Better.LOWER, description="most memory in use on the GPU"
)
ENERGY = Metric(
    name="energy_per_request",
    unit="J",
    better=Better.LOWER,
    description="energy of the device, from its own counter, per request answered well",
)
CARBON = Metric(
    name="co2_per_request",
    unit="g",
    better=Better.LOWER,
    description="energy of the device times the carbon intensity of its electricity, per request answered well",
)
COST = Metric(
    name="cost_per_thousand",
    unit="USD",
    better=Better.LOWER,
    description="price of the machine for as long as a thousand requests took at this rate",
)
FIRST_TOKEN = Metric(
    name="time_to_first_token",
    unit="s",
    better=Better.LOWER,
    description="from the intended time of a request to the first piece of its stream",
)
BETWEEN_TOKENS = Metric(
    name="inter_token_latency", unit="s", better=Better.LOWER, description="between one piece of a stream and the next"
)
TOKEN_THROUGHPUT = Metric(
    name="token_throughput", unit="tokens/s", better=Better.HIGHER, description="pieces of all streams over time"
)

METRICS = (
    CAPACITY,
    THROUGHPUT,
    GOODPUT,
    LATENCY,
    *PERCENTILES.values(),
    SAMPLE_THROUGHPUT,
    OFFERED,
    ERRORS,
    SHED,
    DELIVERED,
    LATENESS,
    STAGE,
    BATCHES,
    BATCH,
    COLD_START,
    CPU,
    GPU,
    HOST_MEMORY,
    DEVICE_MEMORY,
    ENERGY,
    CARBON,
    COST,
    FIRST_TOKEN,
    BETWEEN_TOKENS,
    TOKEN_THROUGHPUT,
)

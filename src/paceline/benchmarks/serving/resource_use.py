"""What a load took of the machine, and what that comes to for a request and for a token."""

from __future__ import annotations

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.session import Use
from paceline.benchmarks.serving.spending import MILLION
from paceline.core.record import Measurement, Result
from paceline.devices.base import ENERGY_SECONDS
from paceline.load.trace import Trace
from paceline.machine import conditions
from paceline.machine.profile import price_of


def add_use(result: Result, parameters: ServeParameters, use: Use, trace: Trace) -> None:
    """What the load took of the machine, and energy, CO2 and cost of a request; each only where it is available."""
    answered, seconds = int(trace.ok.sum()), trace_metrics.seconds_of(trace)
    if use.cpu_seconds is not None:
        # Over the load itself: what was watched before its first request and after its last answer was idle.
        result.measurements.append(Measurement.of_value(trace_metrics.CPU, 100.0 * use.cpu_seconds / seconds))
        result.measurements.append(Measurement.of_value(trace_metrics.HOST_MEMORY, float(use.memory)))
    if use.gpu_shares:
        result.measurements.append(Measurement.of_samples(trace_metrics.GPU, use.gpu_shares, statistic="mean"))
        result.measurements.append(Measurement.of_value(trace_metrics.DEVICE_MEMORY, float(use.gpu_memory)))
    tokens = trace_metrics.output_tokens(trace)
    if use.joules is not None and seconds >= ENERGY_SECONDS:
        joules = use.joules / answered
        result.measurements.append(Measurement.of_value(trace_metrics.ENERGY, joules))
        if tokens:
            result.measurements.append(Measurement.of_value(trace_metrics.ENERGY_PER_TOKEN, use.joules / tokens))
        result.facts["energy_source"] = f"{use.source}, over {use.seconds:.1f} s for a load of {seconds:.1f} s"
        if parameters.carbon is not None:
            grams = joules / 3.6e6 * parameters.carbon
            result.measurements.append(Measurement.of_value(trace_metrics.CARBON, grams))
    price, basis = parameters.price, "the user's own price"
    if parameters.instance is not None:
        listed = price_of(parameters.instance)
        price, basis = listed.per_device, f"{listed.instance}: {listed.basis}"
    if price is not None:
        dollars = price / 3600.0 * seconds / answered * 1000.0
        result.measurements.append(Measurement.of_value(trace_metrics.COST, dollars))
        if tokens:
            dollars = price / 3600.0 * seconds / tokens * MILLION
            result.measurements.append(Measurement.of_value(trace_metrics.COST_PER_MILLION, dollars))
        result.facts |= {"price": f"{price:g} USD per hour ({basis})", "price_basis": basis}
    if use.cpu_seconds is not None:  # otherwise the server is not ours, and may be what keeps this machine busy
        result.warnings += conditions.warnings(use.before, use.after)
    observed = {"before": use.before, "after": use.after}
    result.facts["conditions"] = {name: one.model_dump(mode="json") for name, one in observed.items()}

"""What a trace says, as measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.parameters import Slo
from paceline.benchmarks.serving.trace_metrics import LATENCY
from paceline.core.record import Measurement
from paceline.core.stats import Interval
from paceline.load.trace import OUT_OF_SOCKETS, UNSENT
from support.traces import trace


def value(found: list[Measurement], name: str, **at: object) -> float:
    return next(one.value for one in found if one.metric.name == name and one.at == at)


def test_rates_are_answers_over_the_whole_time() -> None:
    seen = trace([0.1] * 100, gap=0.1)  # the last of them is sent after 9.9 s and answered at 10 s
    found = trace_metrics.traffic(seen, Slo(p99=0.05))
    assert value(found, "throughput") == pytest.approx(10.0)
    assert value(found, "goodput") == 0.0
    assert value(found, "error_rate") == value(found, "shed_rate") == 0.0


def test_failed_and_shed_requests_are_told_apart_and_neither_is_throughput() -> None:
    seen = trace([0.1] * 6 + [math.nan] * 4, gap=0.1, status=[200] * 6 + [503, 429, 2, 0])
    found = trace_metrics.traffic(seen, None)
    assert value(found, "shed_rate") == 20.0
    assert value(found, "error_rate") == 10.0  # the unsent one is the load generator's fault
    assert value(found, "throughput") == pytest.approx(6 / trace_metrics.seconds_of(seen))


def test_a_percentile_counts_unanswered_requests_as_late() -> None:
    seen = trace([0.1] * 90 + [math.nan] * 10, status=[200] * 90 + [3] * 10)
    names = [one.metric.name for one in trace_metrics.percentiles(seen)]
    assert names == ["latency_p50", "latency_p90"]  # beyond that, the answer is 'never'


def test_a_percentile_needs_requests_beyond_it() -> None:
    few = trace_metrics.percentiles(trace([0.1] * 99))
    assert [one.metric.name for one in few] == ["latency_p50", "latency_p90"]
    assert trace_metrics.percentiles(trace([0.1] * 50))[-1].metric.name == "latency_p90"
    assert trace_metrics.percentiles(trace([0.1] * 49))[-1].metric.name == "latency_p50"
    many = trace_metrics.percentiles(trace([0.1] * 500))
    assert many[-1].metric.name == "latency_p99"


def test_a_percentile_has_an_interval_where_its_requests_are_worth_enough() -> None:
    apart = np.random.default_rng(3).exponential(1.0, 2000)
    measured = {one.metric.name: one for one in trace_metrics.percentiles(trace(apart))}
    interval = measured["latency_p90"].interval
    assert interval is not None and interval.low < math.log(10) < interval.high
    clustered = {one.metric.name: one for one in trace_metrics.percentiles(trace(np.sort(apart)))}
    assert clustered["latency_p90"].interval is None
    assert clustered["latency_p90"].value == pytest.approx(measured["latency_p90"].value)
    assert clustered["latency_p90"].summary.effective_count < 10


def test_stages_add_up_to_what_the_client_saw() -> None:
    stages = {"queue": np.full(4, 0.02), "inference": np.full(4, 0.05)}
    found = trace_metrics.details(trace([0.1] * 4, late=0.01, stages=stages))
    parts = {str(one.at["stage"]): one.value for one in found if one.metric.name == "stage_time"}
    assert list(parts) == ["send lateness", "transmission", "queue", "inference"]
    assert sum(parts.values()) == pytest.approx(0.1)
    assert parts["transmission"] == pytest.approx(0.02)


def test_without_a_server_that_tells_its_stages_there_are_two_parts() -> None:
    found = trace_metrics.details(trace([0.1] * 4, late=0.01))
    parts = [one.at["stage"] for one in found if one.metric.name == "stage_time"]
    assert parts == ["send lateness", "server and transmission"]


def test_what_the_client_does_is_a_part_of_its_own() -> None:
    own = {"client pre": np.full(4, 0.03), "client post": np.full(4, 0.01)}
    for told, rest in (({}, "server and transmission"), ({"queue": np.full(4, 0.02)}, "transmission")):
        found = trace_metrics.details(trace([0.1] * 4, late=0.01, stages={**own, **told}))
        parts = {str(one.at["stage"]): one.value for one in found if one.metric.name == "stage_time"}
        assert parts.keys() == {"send lateness", rest, *own, *told}
        assert sum(parts.values()) == pytest.approx(0.1)


def test_batches_are_counted_once_however_many_requests_were_in_them() -> None:
    batch = np.array([4, 4, 4, 4, 1, 1], np.int32)  # one batch of four, two of one
    found = trace_metrics.details(trace([0.1] * 6, batch=batch))
    assert value(found, "batch_share", batch=4) == pytest.approx(100 / 3)
    assert value(found, "batch_share", batch=1) == pytest.approx(200 / 3)
    assert value(found, "batch_size") == pytest.approx(2.0)


def test_streams_tell_their_first_token_and_the_gaps() -> None:
    tokens = [np.array([0.5, 0.6, 0.8]), np.array([0.4])]
    counted = {"output_tokens": np.array([6, 3], np.int32), "prompt_tokens": np.array([30, 50], np.int32)}
    counted["cached_tokens"] = np.array([10, -1], np.int32)
    seen = trace([0.8, 0.3], gap=0.1, chunks=tokens, **counted)
    found = [*trace_metrics.traffic(seen, None), *trace_metrics.details(seen)]
    samples = {one.metric.name: one.samples for one in found}
    assert samples["time_to_first_token"] == pytest.approx([0.5, 0.3])
    assert samples["inter_chunk_latency"] == pytest.approx([0.1, 0.2])
    assert samples["inter_token_latency"] == pytest.approx([0.05, 0.1])  # two tokens in each chunk
    assert value(found, "token_throughput") == pytest.approx(9 / 0.8)
    assert (samples["prompt_tokens"], samples["output_tokens"]) == ([30.0, 50.0], [6.0, 3.0])
    assert value(found, "cached_prompt_share") == pytest.approx(100 / 3)  # of the request that says it


def test_every_latency_is_kept() -> None:
    found = trace_metrics.details(trace([0.3, 0.1, math.nan], status=[200, 200, 2]))
    assert next(one for one in found if one.metric is LATENCY).samples == pytest.approx([0.3, 0.1])


def test_a_request_without_a_socket_was_not_delivered() -> None:
    found = trace_metrics.details(trace([0.1] * 8 + [math.nan] * 2, status=[200] * 8 + [OUT_OF_SOCKETS, UNSENT]))
    assert value(found, "delivered") == pytest.approx(80.0)


def test_the_first_requests_of_a_trial_can_be_left_out() -> None:
    stages = {"queue": np.arange(4.0)}
    rest = trace([0.1, 0.2, 0.3, 0.4], stages=stages, batch=np.array([1, 2, 3, 4], np.int32)).after(3)
    assert rest.latency.tolist() == pytest.approx([0.4])
    assert (rest.stages["queue"].tolist(), rest.batch.tolist() if rest.batch is not None else None) == ([3.0], [4])


def test_rates_of_what_is_left_of_a_trial_count_from_where_it_begins() -> None:
    whole = trace([0.01] * 1000, gap=0.1)
    for seen in (whole, whole.after(500)):
        found = trace_metrics.traffic(seen, None)
        throughput = next(one for one in found if one.metric.name == "throughput")
        assert throughput.value == pytest.approx(10.0, rel=0.01)
        assert throughput.summary.median == pytest.approx(10.0, rel=0.05)  # of the parts of its time
        assert value(found, "offered_rate") == pytest.approx(10.0)


@pytest.mark.parametrize("number", [2, 5, 9])
def test_no_rate_is_below_nothing(number: int) -> None:
    moments = 2.0 * np.arange(number) / (number - 1)
    measured = trace_metrics.rate(trace_metrics.THROUGHPUT, moments, 2.0)
    assert measured.interval is not None
    assert 0.0 <= measured.interval.low < measured.value < measured.interval.high


def test_requests_that_all_come_at_once_have_no_rate_of_arrival() -> None:
    found = trace_metrics.traffic(trace([0.1, 0.2, 0.3], gap=0.0), None)
    assert "offered_rate" not in {one.metric.name for one in found}


def test_a_rate_of_answers_that_changed_much_is_a_warning() -> None:
    even = trace([0.01] * 400, gap=0.01)
    uneven = trace([0.01] * 200 + [2.0 + 0.01 * number for number in range(200)], gap=0.01)
    assert trace_metrics.imprecise(trace_metrics.traffic(even, None)) == []
    (found,) = trace_metrics.imprecise(trace_metrics.traffic(uneven, None))
    assert found.kind == "imprecise"
    assert found.message == "the interval of the throughput is unknown"


def test_a_skewed_interval_of_a_rate_has_both_of_its_ends() -> None:
    uneven = Interval(low=90.0, high=160.0, confidence=0.95)
    summary = Measurement.of_value(trace_metrics.THROUGHPUT, 100.0).summary.model_copy(update={"mean_interval": uneven})
    rate = Measurement(metric=trace_metrics.THROUGHPUT, statistic="mean", summary=summary, samples=[])
    (found,) = trace_metrics.imprecise([rate])
    assert found.message == "the interval of the throughput is 90 to 160 requests/s"


def test_of_a_language_model_the_rate_of_tokens_is_judged_which_its_report_leads_with() -> None:
    rates = []
    for metric, reach in ((trace_metrics.THROUGHPUT, 30.0), (trace_metrics.TOKEN_THROUGHPUT, 20.0)):
        spread = {"mean_interval": Interval(low=100.0 - reach, high=100.0 + reach, confidence=0.95)}
        summary = Measurement.of_value(metric, 100.0).summary.model_copy(update=spread)
        rates.append(Measurement(metric=metric, statistic="mean", summary=summary, samples=[]))
    (found,) = trace_metrics.imprecise(rates)
    assert found.message == "the interval of the token throughput is ± 20 %"


def test_a_user_gets_one_token_in_each_median_gap() -> None:
    chunks = [np.arange(6) * 0.02 + 0.1 * place for place in range(40)]
    seen = trace([0.1] * 40, gap=0.1, chunks=chunks, output_tokens=np.full(40, 6, np.int32))
    found = trace_metrics.traffic(seen, None)
    assert value(found, "tokens_per_user") == pytest.approx(50.0)
    assert value(found, "between_tokens_p50") == pytest.approx(0.02)


def test_how_a_load_went_over_time_is_the_medians_of_its_parts() -> None:
    chunks = [np.array([0.1, 0.2]) + 0.1 * place + (0.5 if place >= 50 else 0.0) for place in range(100)]
    seen = trace([0.2] * 100, gap=0.1, chunks=chunks, output_tokens=np.full(100, 2, np.int32))
    first, between = trace_metrics.over_time(seen, 30.0)
    assert (first["name"], between["name"]) == ("time_to_first_token", "inter_token_latency")
    assert first["values"][:10] == pytest.approx([0.1] * 10) and first["values"][-5:] == pytest.approx([0.6] * 5)
    assert first["seconds"] == sorted(first["seconds"]) and 30.0 <= first["seconds"][0] < first["seconds"][-1] < 40.0
    assert trace_metrics.over_time(trace([0.2] * 9), 0.0) == []

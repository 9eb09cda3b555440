"""Times of ranks become bandwidths of the whole: size over the time of the slowest rank, and the largest size leads."""

from __future__ import annotations

import pytest

from paceline.benchmarks._micro.parameters import TIME
from paceline.benchmarks.communication._exchange import OPERATIONS
from paceline.benchmarks.communication.collective import (
    CPU_SIZES,
    GPU_SIZES,
    Collective,
    CollectiveParameters,
    figures,
    sizes_of,
)
from paceline.benchmarks.communication.p2p import BANDWIDTH, P2p, P2pParameters, over_pairs
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import Unsupported
from paceline.core.record import Measurement, Result, merge_ranks
from paceline.devices import kind_named
from support.refused import refused

CASE = Case(index=0, benchmark="collective", parameters={}, title="")


def times(*seconds: float) -> list[Measurement]:
    """A sweep of 1000 and 4000 bytes."""
    return [
        Measurement.of_samples(TIME, [second, second], at={"size": size})
        for size, second in zip((1000, 4000), seconds, strict=True)
    ]


def test_bandwidths_are_those_of_the_slowest_rank_at_each_size() -> None:
    fast, slow = Result(measurements=figures(times(1.0, 2.0), 1.5)), Result(measurements=figures(times(2.0, 4.0), 1.5))
    merged = {(m.metric.name, m.at.get("size")): m.value for m in merge_ranks([fast, slow]).measurements if not m.scope}
    assert merged == pytest.approx(
        {
            ("time", 1000): 2.0,
            ("algorithm_bandwidth", 1000): 500.0,
            ("bus_bandwidth", 1000): 750.0,
            ("time", 4000): 4.0,
            ("algorithm_bandwidth", 4000): 1000.0,
            ("bus_bandwidth", 4000): 1500.0,
            ("time", None): 4.0,
            ("algorithm_bandwidth", None): 1000.0,
            ("bus_bandwidth", None): 1500.0,
        }
    )


def test_the_sweep_goes_from_bytes_to_a_gigabyte_on_gpus() -> None:
    operation = OPERATIONS["all-reduce"]
    assert sizes_of(CollectiveParameters(), operation, kind_named("cuda"), 8) == GPU_SIZES
    assert sizes_of(CollectiveParameters(), operation, kind_named("cpu"), 2) == CPU_SIZES
    assert (GPU_SIZES[0], GPU_SIZES[-1]) == (8, 1 << 30)
    assert (CPU_SIZES[0], CPU_SIZES[-1]) == (32, 64 << 20)


def test_sizes_are_measured_once_and_the_largest_last_however_they_are_given() -> None:
    parameters = CollectiveParameters.read({"sizes": ["1KiB", "1B", "8B", "16B"]})
    assert sizes_of(parameters, OPERATIONS["all-gather"], kind_named("cpu"), 4) == [16, 1024]


def test_one_size_needs_no_list() -> None:
    assert CollectiveParameters.read({"sizes": "1MiB"}).sizes == [1 << 20]


@pytest.mark.parametrize(("sizes", "key"), [([], "sizes"), ([0], "sizes.0"), ([1024, 0], "sizes.1")])
def test_no_size_and_size_zero_are_refused(sizes: list[int], key: str) -> None:
    with refused("invalid-value", key=key):
        CollectiveParameters.read({"sizes": sizes})


def test_a_file_of_hosts_without_mpi_is_refused() -> None:
    with refused("key-does-not-apply", key="hostfile", value="hosts.txt"):
        Collective.check(CollectiveParameters(hostfile="hosts.txt"), CASE)


@pytest.mark.parametrize(("target", "remedy"), [("cpu", "--ranks 2"), ("cuda:0", "--target 'cuda:\\*'")])
def test_one_rank_alone_is_told_what_to_do(target: str, remedy: str) -> None:
    context = Context(case=CASE.model_copy(update={"target": target}))
    with pytest.raises(Unsupported, match=remedy):
        Collective().measure(CollectiveParameters(), context)


def test_the_whole_of_a_matrix_is_its_slowest_average_and_fastest_pair() -> None:
    pairs = [Measurement.of_value(BANDWIDTH, rate, at={"from": 0, "to": n}) for n, rate in enumerate((4.0, 1.0, 7.0))]
    others = [Measurement.of_value(TIME, 9.0)]
    found = {measurement.metric.name: measurement.value for measurement in over_pairs([*pairs, *others])}
    assert found == {"minimum_bandwidth": 1.0, "average_bandwidth": 4.0, "maximum_bandwidth": 7.0}


def test_copies_between_gpus_are_unsupported_where_there_are_fewer_than_two(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unsupported, match="take two of them, but torch sees 0 here: run it on a machine with several"):
        P2p().measure(P2pParameters(), Context(case=CASE))

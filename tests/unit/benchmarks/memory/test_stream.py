"""Stream computes what it says, counts bytes as STREAM does, and sees data that changed by itself."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.benchmarks.memory import stream
from paceline.benchmarks.memory.stream import KERNELS, NativeArrays, Stream, StreamParameters, TorchArrays
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, SilentCorruption, Unsupported
from paceline.core.record import Result
from paceline.devices import open_device
from support.refused import refused

COPY, SCALE, ADD, TRIAD = KERNELS
ELEMENTS = 10_007  # no multiple of anything


def native_arrays(threads: int = 1) -> NativeArrays:
    cpus = stream.host.usable_cpus().choose(None)
    return NativeArrays(stream.load_native(), ELEMENTS, [cpus[i % len(cpus)] for i in range(threads)])


def words(arrays: NativeArrays) -> list[np.ndarray]:
    return [memory.bytes.view(np.float64) for memory in arrays.memory]


def measured(target: str = "cpu", **values: object) -> Result:
    parameters = StreamParameters.read({"steps": 3, "warm_up": "1ms", **values})
    case = Case(index=0, benchmark="stream", parameters=parameters.model_dump(mode="json"), title="", target=target)
    Stream.check(parameters, case)
    return Stream().measure(parameters, Context(case=case))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_native_kernels_compute_their_definitions_however_many_threads_share_them(threads: int) -> None:
    arrays = native_arrays(threads)
    start = 1.0 + np.arange(ELEMENTS) % stream.START_VALUES
    for kernel in KERNELS:
        assert len(arrays.run(kernel, 2, 3)) == 3
        arrays.check(kernel)
    a, b, c = words(arrays)
    assert np.array_equal(b, 3 * start)
    assert np.array_equal(c, start + 3 * start)
    assert np.array_equal(a, 3 * start + 3 * (4 * start))


def test_a_kernel_that_did_not_run_is_seen() -> None:
    arrays = native_arrays()
    with pytest.raises(SilentCorruption, match=f"{ELEMENTS} of {ELEMENTS}"):
        arrays.check(COPY)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_changed_element_in_any_array_is_seen(which: int) -> None:
    arrays = native_arrays(2)
    for kernel in KERNELS:
        arrays.run(kernel, 1, 1)
    words(arrays)[which][4321] += 1.0
    with pytest.raises(SilentCorruption, match=r"after triad, 1 of 10007 .* first at 4321"):
        arrays.check(TRIAD)


def test_changed_data_fails_the_whole_case(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = NativeArrays.run

    def corrupting(self: NativeArrays, kernel: stream.Kernel, passes: int, repetitions: int) -> list[float]:
        seconds = genuine(self, kernel, passes, repetitions)
        if kernel is ADD:
            words(self)[2][5] = float("nan")
        return seconds

    monkeypatch.setattr(NativeArrays, "run", corrupting)
    with pytest.raises(SilentCorruption, match="after add"):
        measured(size="1MiB", engine="native")


def test_torch_sees_one_changed_element_too() -> None:
    arrays = TorchArrays(ELEMENTS, open_device("cpu"))
    arrays.c.copy_(arrays.a)
    arrays.check(COPY)
    arrays.c[17] = 0.5
    with pytest.raises(SilentCorruption, match="first at 17"):
        arrays.check(COPY)


def test_bytes_are_counted_as_stream_does_and_the_largest_size_speaks_for_the_case() -> None:
    result = measured(sizes=["64KiB", "8KiB"], engine="native", threads=1)
    found = {(m.metric.name, m.at.get("size")): m for m in result.measurements}
    for kernel, moved in zip(KERNELS, (2, 2, 3, 3), strict=True):
        for size in (8192, 65536):
            rate, time = found[f"{kernel.name}_bandwidth", size], found[f"{kernel.name}_time", size]
            assert rate.work == moved * size
            assert rate.value == pytest.approx(moved * size / time.summary.mean)
        assert found[f"{kernel.name}_bandwidth", None].value == found[f"{kernel.name}_bandwidth", 65536].value
    assert result.facts["threads"] == 1
    assert "cached" in {warning.kind for warning in result.warnings}


def test_without_a_compiler_torch_takes_over_and_the_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingDependency("a C compiler", "install one")

    monkeypatch.setattr(stream, "load_native", missing)
    monkeypatch.setattr(stream.os, "sched_setaffinity", lambda *_: None)
    result = measured(size="1MiB", threads=1)
    assert result.facts["engine"] == "torch"
    assert "C compiler" in result.facts["engine_reason"]
    with pytest.raises(MissingDependency):
        measured(size="1MiB", engine="native")


def test_too_many_threads_and_two_ways_to_say_size_are_refused() -> None:
    with pytest.raises(Unsupported, match="use fewer threads"):
        measured(threads=100_000)
    with refused("conflicting-keys", key="size"):
        measured(size="1MiB", sizes=["1MiB"])


def test_torch_is_imported_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes longer than the whole case on a CPU with a compiler."""
    monkeypatch.setattr(stream.native, "is_possible", lambda: True)
    assert Stream.imports({"engine": "auto", "target": "cpu"}) == ()
    assert Stream.imports({"engine": "torch", "target": "cpu"}) == ("torch",)
    assert Stream.imports({"engine": "auto", "target": "cuda:0"}) == ("torch",)
    monkeypatch.setattr(stream.native, "is_possible", lambda: False)
    assert Stream.imports({"engine": "auto", "target": "cpu"}) == ("torch",)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("mix", list(stream.MIXES))
def test_a_mix_reads_and_writes_as_often_as_it_says(mix: str, threads: int) -> None:
    arrays, kernel = native_arrays(threads), stream.MIXES[mix]
    for passes, repetitions in ((1, 2), (3, 1)):
        arrays.run(kernel, passes, repetitions)
        arrays.check(kernel)
    reads, writes = {"reads": (1, 0), "writes": (0, 1)}.get(mix) or (int(mix[0]), 1)
    assert arrays.work(kernel) == 8 * ELEMENTS * (reads + writes)
    arrays.memory[2].bytes[8 * (ELEMENTS // 2)] ^= 1
    with pytest.raises(SilentCorruption, match="after mix"):
        arrays.check(kernel)


def test_a_mix_is_the_figure_of_its_case_and_has_the_name_of_the_latency_checker() -> None:
    result = measured(mix="3r1w", size="64KiB")
    assert {one.metric.name for one in result.measurements} == {"mix_bandwidth", "mix_time"}
    assert result.facts["mix"] == "3r1w"
    with refused("conflicting-keys", key="mix"):
        measured(mix="reads", engine="torch")


def test_memory_may_lie_on_another_node_than_the_threads() -> None:
    assert Stream.title(StreamParameters(numa_node=0, memory_node=1, mix="reads")) == (
        "NUMA node 0 memory of node 1 reads"
    )
    result = measured(numa_node=0, memory_node=0, mix="reads", size="64KiB")
    assert result.measurements
    with pytest.raises(Unsupported, match="numa_node = 99 does not exist"):
        measured(memory_node=99, size="64KiB")

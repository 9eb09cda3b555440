"""Results of SuperBench that were read, kept as ours and written under its names again are what they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.diagnose.superbench import read_results, run_of
from paceline.core.run import RunRecords
from paceline.report.export import jsonl, superbench
from paceline.store import open_store

DATA = Path(__file__).parents[1] / "data" / "superbench" / "results-summary.jsonl"

# Names that our own benchmarks share with SuperBench's, and others; units differ between the two.
GROUPS: tuple[str, ...] = (
    "kernel-launch",
    "megatron-gpt",
    "gemm-flops",
    "mem-bw:note",
    "nccl-bw",
    "disk-benchmark",
    "stream",
    "gemm",
)
GROUPS += ("model-benchmarks/pytorch-resnet50", "model-benchmarks:a=1,b=2/pytorch-bert-large", "train/pytorch-lstm")
METRICS: tuple[str, ...] = (
    "event_time",
    "wall_time",
    "step_time",
    "bf16_train_tflops",
    "bf16_train_throughput",
    "h2d_bw",
    "time",
)
METRICS += ("bf16_train_mem_allocated", "allreduce_8_busbw", "fp16_inference_step_time_99.9", "ib_write_bw_8:0_1")

keys = st.builds(
    lambda group, metric, rank: f"{group}/{metric}" + ("" if rank is None else f":{rank}"),
    st.sampled_from(GROUPS),
    st.sampled_from(METRICS),
    st.none() | st.integers(0, 127),
)
codes = st.sampled_from(GROUPS).map(lambda group: f"{group}/return_code")
monitored = st.sampled_from(["gpu_temperature:0", "gpu_power:12", "ecc"])
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
lines = st.dictionaries(keys | monitored, numbers, min_size=1, max_size=12)


def written_again(run: RunRecords) -> Any:
    """The line, after the run was kept as one of ours."""
    (kept,) = jsonl.parse(jsonl.render(run).splitlines(), "kept")
    return json.loads(superbench.render(kept))


def test_the_example_comes_back_number_by_number() -> None:
    before = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    assert [written_again(run) for run in read_results(DATA)] == before


def test_a_store_changes_no_number_either(tmp_path: Path) -> None:
    (run, *_) = read_results(DATA)
    with open_store(str(tmp_path / "kept.db")) as store:
        store.begin(run.run)
        for record in run.records:
            store.add(record)
        store.finish(run.run.id)
        kept = store.load(run.run.id, samples=False)
    assert superbench.render(kept) == superbench.render(run)
    assert json.loads(superbench.render(kept)) == json.loads(DATA.read_text(encoding="utf-8").splitlines()[0])


@given(values=lines, codes=st.dictionaries(codes, st.sampled_from([0, 1, 4, 10, 31, 34, 124]), max_size=3))
def test_every_number_under_any_name_comes_back(values: dict[str, float], codes: dict[str, int]) -> None:
    line = values | codes
    assert written_again(run_of("node-1", line)) == {"node": "node-1", **line}


@given(values=lines)
def test_writing_and_reading_once_more_changes_nothing(values: dict[str, float]) -> None:
    once = written_again(run_of("node-1", values))
    node = once.pop("node")
    assert written_again(run_of(node, once)) == {"node": node, **once}

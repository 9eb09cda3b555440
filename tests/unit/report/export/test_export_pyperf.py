"""Times and sizes as pyperf writes them, and files of pyperf as runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.core.record import Measurement
from paceline.report.export import pyperf
from support.records import LOSS, MEMORY, STEP_TIME, case, record, run_of, sample_run, throughput


def document(*benchmarks: dict[str, Any], **metadata: Any) -> str:
    return json.dumps({"version": "1.0", "metadata": metadata, "benchmarks": list(benchmarks)})


def a_benchmark(*runs: list[float], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", **metadata}, "runs": [{"values": values} for values in runs]}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bench.json"
    path.write_text(text)
    return path


def test_repetitions_of_a_case_are_runs_of_one_benchmark() -> None:
    records = []
    for repeat, samples in enumerate(([0.1, 0.2], [0.3, 0.4]), start=1):
        times = Measurement.of_samples(STEP_TIME, samples)
        rate = Measurement.of_rate(throughput("images/s"), 32, times)
        single = [Measurement.of_value(MEMORY, 1e9), Measurement.of_value(LOSS, 2.5)]
        about = case(repeat - 1, "train", "resnet50", repeat=repeat, model="resnet50")
        records.append(record(about, [rate, times, *single]))
    found = json.loads(pyperf.render(run_of(records)))["benchmarks"]
    assert [one["metadata"]["name"] for one in found] == ["train resnet50", "train resnet50 peak_device_memory"]
    assert [one["metadata"]["unit"] for one in found] == ["second", "byte"]
    assert [run["values"] for run in found[0]["runs"]] == [[0.1, 0.2], [0.3, 0.4]]
    about = found[0]["runs"][0]["metadata"]
    assert about["paceline_throughput"] == records[0].measurements[0].value
    assert (about["paceline_throughput_unit"], about["paceline_loss"]) == ("images/s", 2.5)
    assert about["paceline_throughput_low"] < about["paceline_throughput"] < about["paceline_throughput_high"]


def test_what_is_written_comes_back_with_names_units_and_samples(tmp_path: Path) -> None:
    run = sample_run()
    again = pyperf.read(written(tmp_path, pyperf.render(run)))
    back = {one.case.title: one.measurements[0] for one in again.records}
    for one in run.records:
        for name, title in (("step_time", ""), ("peak_device_memory", " peak_device_memory")):
            measurement = one.measurement(name)
            if measurement is not None:
                label = f"{one.case.benchmark} {one.case.title}{title}"
                assert (back[label].metric.name, back[label].metric.unit) == (name, measurement.metric.unit)
                assert back[label].samples == measurement.samples


def test_a_run_without_times_is_refused() -> None:
    run = run_of([record(case(0, "train", "a"), [Measurement.of_value(LOSS, 1.0)])])
    with pytest.raises(InputError) as refused:
        pyperf.render(run)
    assert refused.value.code == "no-time-or-size"


def test_processes_are_repetitions_and_calibration_is_left_out(tmp_path: Path) -> None:
    benchmark = a_benchmark([0.1, 0.2], [0.3], unit="second", loops=8)
    benchmark["runs"].insert(0, {"warmups": [[1, 0.5]], "metadata": {"calibrate_loops": 8}})
    benchmark["runs"][1] |= {"warmups": [[8, 0.4]], "metadata": {"date": "2026-03-14 09:26:53", "duration": 3.5}}
    run = pyperf.read(
        written(tmp_path, document(benchmark, hostname="node-1", cpu_model_name="Zen", perf_version="2.6"))
    )
    first, second = run.records
    assert [(one.case.repeat, one.case.title, one.case.key) for one in (first, second)] == [
        (1, "a", first.case.key), (2, "a", first.case.key),
    ]  # fmt: skip
    assert (first.measurements[0].samples, second.measurements[0].samples) == ([0.1, 0.2], [0.3])
    assert (first.seconds, first.primary, first.facts["warm_ups"]) == (3.5, "time", [[8, 0.4]])
    assert run.run.environment.host_name == "node-1"
    assert run.run.environment.cpu.model == "Zen"
    assert run.run.environment.software.packages == {"pyperf": "2.6"}


def test_the_same_file_is_the_same_run_and_another_is_not(tmp_path: Path) -> None:
    dated = document(a_benchmark([0.1], date="2026-03-14 09:26:53"))
    one, again = (pyperf.read(written(tmp_path, dated)).run.id for _ in range(2))
    other = pyperf.read(written(tmp_path, dated.replace("0.1", "0.2"))).run.id
    assert one == again != other
    assert one.startswith("20260314-092653-")


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bench.json.gz"
    path.write_bytes(gzip.compress(document(a_benchmark([2048.0], unit="byte")).encode()))
    assert pyperf.is_theirs(path)
    metric = pyperf.read(path).records[0].measurements[0].metric
    assert (metric.name, metric.unit) == ("memory", "B")


@pytest.mark.parametrize(
    ("text", "is_theirs"),
    [
        (document(a_benchmark([0.1])), True),
        ('{"benchmarks":[{"metadata":', True),
        ('{\n    "benchmarks": [', True),
        ('{"run_id": "x"}', False),
        ('{"machine_info": {}, "benchmarks": []}', False),
        ('{"version": 3}', False),
        ("", False),
    ],
)
def test_a_file_is_known_by_its_beginning(tmp_path: Path, text: str, is_theirs: bool) -> None:
    assert pyperf.is_theirs(written(tmp_path, text)) is is_theirs
    assert not pyperf.is_theirs(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"version": "1.0", "benchmarks": [', "Expecting value"),
        (document(a_benchmark([])), "no benchmark has values"),
        (document(a_benchmark([0.1], unit="parsec")), "benchmark 'a' has the unknown unit 'parsec'"),
        (document(a_benchmark([-1.0])), "benchmark 'a' has a value that is not a number above 0"),
        (document(a_benchmark(["fast"])), "benchmark 'a' has a value that is not a number above 0"),  # type: ignore[list-item]
        (document(a_benchmark([0.1], date="yesterday")), "Invalid isoformat string"),
        ('{"version": "1.0"}', "'benchmarks'"),
    ],
)
def test_what_is_not_such_a_file_is_refused_with_a_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError) as refused:
        pyperf.read(written(tmp_path, text))
    assert refused.value.code == "not-a-pyperf-file"
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)

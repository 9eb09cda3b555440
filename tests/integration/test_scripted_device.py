"""A device kind that a third party adds in one file runs through the whole product, with a clock, memory, energy and
number formats of its own; torch computes on the CPU underneath."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.record import Outcome, Record
from paceline.core.watch import read_watched
from support.cli import Sandbox
from support.scripted_kind import ALLOCATED, NAME, TICK, environment, scripted_machine

pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")

SHORT = {"steps": 12, "warm_up": "10ms"}
MODEL = {"model": "lstm", "scale": "tiny", "batch_size": 2, **SHORT}
CASES = (
    {"benchmark": "gemm", "precision": ["fp32", "bf16", "fp16"], "size": 64, "only_on": "scripted", **SHORT},
    {"benchmark": "train", "only_on": "gpu", **MODEL},
    {"benchmark": "inference", "target": "scripted:1", **MODEL},
    {"benchmark": "nap", "duration": "1ms", "only_on": "cpu"},
)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with scripted_machine(tmp_path_factory.mktemp("scripted") / "sandbox", 2) as place:
        done = place.run("run", place.suite(*CASES), "--no-report", env=environment(place))
        assert done.returncode == 0, done.stdout + done.stderr
        yield place


@pytest.fixture(scope="module")
def records(sandbox: Sandbox) -> list[Record]:
    return sandbox.load().records


def value(record: Record, metric: str) -> float:
    found = record.measurement(metric)
    assert found is not None, metric
    return float(found.value)


def test_auto_takes_it_and_only_on_names_it(records: list[Record]) -> None:
    told = [(record.case.benchmark, record.case.target) for record in records]
    assert told == [("gemm", "scripted:0")] * 3 + [("train", "scripted:0"), ("inference", "scripted:1")]


def test_formats_are_its_own(records: list[Record]) -> None:
    native, emulated, unknown = records[:3]
    assert native.outcome is emulated.outcome is Outcome.OK
    assert "emulated" not in {warning.kind for warning in native.warnings}
    assert "this scripted device has no bf16 instructions" in " ".join(warning.message for warning in emulated.warnings)
    assert unknown.outcome is Outcome.UNSUPPORTED
    assert unknown.cause is not None and unknown.cause.message == "a scripted device has never heard of fp16: use fp32"


def test_time_is_what_its_clock_says(records: list[Record]) -> None:
    gemm = records[0]
    assert value(gemm, "time") == pytest.approx(TICK)
    assert gemm.subject.device == NAME
    for record in records[3:]:
        assert value(record, "step_time") / TICK == pytest.approx(round(value(record, "step_time") / TICK))
        assert "device events" in record.facts["timing"]


def test_memory_energy_peak_and_conditions_are_its_own(records: list[Record]) -> None:
    for record in records[3:]:
        assert value(record, "peak_device_memory") == ALLOCATED
        assert value(record, "energy_per_sample") > 0
        assert record.facts["energy_source"] == "the script"
        assert record.facts["peak_flops"] == 1e12
        assert value(record, "mfu") > 0
        slow = [warning.message for warning in record.warnings if warning.kind == "throttled"]
        assert slow == [f"{record.case.target} held its clocks down at 99 °C: too-hot"]
    assert records[0].facts["peak_source"] == f"datasheet, dense fp32, {NAME}"


def test_it_is_watched_while_it_measures(records: list[Record]) -> None:
    for record in (record for record in records if record.outcome is Outcome.OK):
        (seen,) = read_watched(record.conditions)
        figures = {one.metric: one.value for one in seen.series}
        assert figures[f"watch/{record.case.target}/temperature_max"] == 99
        assert figures[f"watch/{record.case.target}/throttled_mean"] == 1
        assert 0 <= figures["watch/cpu/busy_mean"] <= 1
        assert len(seen.times) >= 2 and seen.cpu_seconds > 0


def test_the_environment_names_it(sandbox: Sandbox) -> None:
    seen = sandbox.load().run.environment
    assert [(gpu.kind, gpu.name, gpu.cuda_index) for gpu in seen.gpus] == [("scripted", NAME, 0), ("scripted", NAME, 1)]
    shown = sandbox.run("machine", env=environment(sandbox))
    assert "scripted:1" in shown.stdout


def test_report_and_export_show_it(sandbox: Sandbox, tmp_path: Path) -> None:
    report = sandbox.run("report", "--md", "-o", "-", env=environment(sandbox))
    assert report.returncode == 0, report.stderr
    assert NAME in report.stdout and "lstm" in report.stdout
    export = sandbox.run("report", "--superbench", "-o", "-", env=environment(sandbox))
    assert export.returncode == 0, export.stderr
    names = set(json.loads(export.stdout.splitlines()[0]))
    assert any("gemm" in name for name in names), names
    assert any("lstm" in name and "train" in name for name in names), names
    assert any("lstm" in name and "inference" in name for name in names), names


def test_a_target_of_an_unknown_kind_is_refused_with_those_there_are(sandbox: Sandbox) -> None:
    refused = sandbox.run("run", "nap", "--target", "scriptet:0", env=environment(sandbox))
    assert refused.returncode == 2
    assert "'scriptet:0' is not a target" in refused.stderr and "scripted" in refused.stderr


def test_products_and_models_say_at_which_pace_it_was_measured(records: list[Record]) -> None:
    for record in (records[0], *records[3:]):
        pace, steps = record.pace, record.measurement("time") or record.measurement("step_time")
        assert pace is not None
        assert steps is not None
        assert pace.measured == pytest.approx(sum(steps.samples), rel=1e-6)
        assert pace.kind == ("sustained" if pace.load_before >= pace.boost - 0.1 * pace.measured else "short")

"""`KIND:each` on a machine with eight devices: a record for each, side by side where they share nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from paceline.core.record import Outcome, Record
from paceline.core.watch import read_watched
from support.cli import Sandbox
from support.scripted_kind import environment, scripted_machine

pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")

pytestmark = pytest.mark.long

DEVICES = [f"scripted:{number}" for number in range(8)]
SHORT = {"steps": 3, "warm_up": "1ms"}
GEMM = {"benchmark": "gemm", "size": 16, "target": "scripted:each", **SHORT}
CASES = (
    GEMM,
    {"benchmark": "matmul", "m": 16, "n": 16, "k": 16, "target": "auto:each", **SHORT},
    {**GEMM, "size": 24, "at_once": False},
    {"benchmark": "inference", "model": "lstm", "scale": "tiny", "batch_size": 1, "target": "auto:each", **SHORT},
)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with scripted_machine(tmp_path_factory.mktemp("each") / "sandbox", len(DEVICES)) as place:
        done = place.run("run", place.suite(*CASES), "--no-report", env=environment(place))
        assert done.returncode == 0, done.stdout + done.stderr
        yield place


@pytest.fixture(scope="module")
def records(sandbox: Sandbox) -> list[Record]:
    return sandbox.load().records


def of_case(records: list[Record], number: int) -> list[Record]:
    return records[8 * number : 8 * (number + 1)]


def test_every_device_has_a_record_of_every_benchmark(records: list[Record]) -> None:
    assert len(records) == 8 * len(CASES)
    for number in range(len(CASES)):
        mine = of_case(records, number)
        assert [record.case.target for record in mine] == DEVICES
        assert {record.outcome for record in mine} == {Outcome.OK}
        assert len({record.case.key for record in mine}) == 8


def test_each_record_has_the_series_of_its_own_device(records: list[Record]) -> None:
    for record in records:
        (seen,) = read_watched(record.conditions)
        assert {one.of for one in seen.series if one.of.startswith("scripted")} == {record.case.target}
        assert any(one.of == "cpu" for one in seen.series)


def test_devices_that_share_nothing_are_measured_at_the_same_time(records: list[Record]) -> None:
    for number, is_at_once in enumerate((True, True, False, False)):
        mine = of_case(records, number)
        assert {record.facts.get("devices_at_once") for record in mine} == {8 if is_at_once else None}
        spans = [(record.started_at.timestamp(), record.started_at.timestamp() + record.seconds) for record in mine]
        overlaps = max(begin for begin, _ in spans) < min(end for _, end in spans)
        assert overlaps is is_at_once


def test_superbench_names_have_the_device_as_their_rank(sandbox: Sandbox) -> None:
    export = sandbox.run("report", "--superbench", "-o", "-", env=environment(sandbox))
    assert export.returncode == 0, export.stderr
    keys = json.loads(export.stdout)
    ranks = Counter(key.rpartition(":")[0] for key in keys if key.rpartition(":")[2] in set("01234567"))
    assert ranks["pytorch-matmul/nosharding_time"] == ranks["pytorch-matmul/return_code"] == 8
    assert ranks["gemm-flops:size=16/fp32_flops"] == 8
    assert ranks["model-benchmarks:scale=tiny/pytorch-lstm/fp32_inference_step_time"] == 8
    assert not any("target=" in key for key in keys)


def test_a_node_check_of_eight_devices_names_all_eight(sandbox: Sandbox) -> None:
    shown = sandbox.run("run", "node-check", "--dry-run", "--json", env=environment(sandbox))
    assert shown.returncode == 0, shown.stderr
    cases = [json.loads(line) for line in shown.stdout.splitlines()]
    for benchmark in ("gemm", "matmul", "blas-functions", "dnn-functions", "kernel-launch", "copy"):
        assert {case["target"] for case in cases if case["benchmark"] == benchmark} == set(DEVICES), benchmark
    for benchmark in ("collective", "sharding-matmul"):
        assert {(case["target"], case["ranks"]) for case in cases if case["benchmark"] == benchmark} == {
            ("scripted:*", 8)
        }

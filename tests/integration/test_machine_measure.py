"""`paceline machine --measure`: the suite is run like any other, its profile is kept, shown and used."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.roofline import ceilings_of
from paceline.core.benchmark import BENCHMARKS
from paceline.core.profile import Profile
from paceline.core.run import Run, RunRecords
from paceline.core.suite import Here, expand
from paceline.devices import datasheet
from paceline.runner.suite_file import load_suite
from support.cli import Sandbox, ended, events

SHORT = (
    "budget=60ms",
    "warm_up=30ms",
    "gemm.size=64",
    "stream.sizes=256KiB,4MiB",
    "collective.sizes=64,1MiB",
    "disk.size=16MiB",
    "attempts=1",
)
MEASURE = ("machine", "--measure", *(word for setting in SHORT for word in ("--set", setting)))
TRAIN = (
    "run",
    "train",
    "--model",
    "lstm",
    "--scale",
    "tiny",
    "--batch-size",
    "2",
    "--budget",
    "0.2s",
    "--warm-up",
    "0.2s",
)


def profiles(sandbox: Sandbox) -> list[Path]:
    return list((sandbox.folder / "data" / "paceline" / "profiles").glob("*"))


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_the_suite_fits_every_machine_and_every_case_of_it_is_read(gpus: int) -> None:
    cases = expand(load_suite("ceilings"), BENCHMARKS.registry().get, Here(devices={"cuda": gpus}))
    waiting = Run(id="r", name="ceilings", started_at=datetime(2026, 3, 14, tzinfo=UTC), version="0", cases=cases)
    _, absent = ceilings_of(RunRecords(run=waiting, records=[]))
    assert len(absent) == len(cases)
    assert gpus == 0 or {"cpu", "cuda:0", "cuda:*"} == {case.target for case in cases}


@pytest.mark.long
def test_measured_once_shown_and_used_ever_after(sandbox: Sandbox) -> None:
    measured = sandbox.ask(*MEASURE, "--json")
    assert measured.returncode == 0, measured.stdout + measured.stderr
    told: list[dict[str, Any]] = events(measured.stdout)
    assert [event["event"] for event in told[-2:]] == ["profile", "run_ended"]
    (path,) = profiles(sandbox)
    assert Path(told[-2]["path"]) == path
    profile = Profile.model_validate_json(path.read_text())
    stored = sandbox.load()
    assert profile.run_id == stored.run.id
    assert stored.run.name == "ceilings"
    fp32 = profile.ceiling("compute", "fp32", device_name="cpu")
    assert fp32 is not None
    record = next(r for r in stored.records if r.case.target == "cpu" and r.case.parameters.get("precision") == "fp32")
    assert fp32.value == record.measurement("compute_rate").value  # type: ignore[union-attr]
    assert fp32.datasheet is None
    for one in profile.ceilings:
        assert one.share is None or datasheet(one.device_name) is not None or one.kind == "link"

    shown = sandbox.ask("machine")
    assert shown.returncode == 0, shown.stderr
    assert f"run {profile.run_id}" in shown.stdout
    assert "fp32" in shown.stdout
    assert "other software" not in shown.stdout
    assert Profile.model_validate(json.loads(sandbox.ask("machine", "--json").stdout)["profile"]) == profile

    aged = profile.model_copy(update={"software": profile.software | {"torch": "1.0"}})
    path.write_text(aged.model_dump_json())
    assert "torch was 1.0 and is" in " ".join(sandbox.ask("machine").stdout.split())

    trained = sandbox.ask(*TRAIN, "--target", "cpu", "--no-report", "--json")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    (training,) = ended(events(trained.stdout))
    flops, mfu = training.measurement("achieved_flops"), training.measurement("mfu")
    assert flops is not None
    assert mfu is not None
    assert mfu.value == pytest.approx(100 * flops.value / fp32.value)
    assert profile.run_id in training.facts["peak_flops_source"]


def test_a_run_that_measures_nothing_keeps_the_profile_that_there_is(sandbox: Sandbox) -> None:
    done = sandbox.ask("machine", "--measure", "--set", "timeout=1ms")
    assert done.returncode == 1
    assert "nothing could be measured" in done.stderr
    assert profiles(sandbox) == []


def test_without_a_profile_the_machine_says_how_to_get_one(sandbox: Sandbox) -> None:
    shown = sandbox.ask("machine")
    assert shown.returncode == 0
    assert "paceline machine --measure" in shown.stdout
    assert json.loads(sandbox.ask("machine", "--json").stdout)["profile"] is None
    trained = sandbox.ask(*TRAIN, "--target", "cpu", "--no-report", "--json")
    (training,) = ended(events(trained.stdout))
    assert training.measurement("mfu") is None
    assert "paceline machine --measure" in training.facts["peak_flops_source"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "budget=1s"), "--set goes with --measure"),
        (("--store", "x.db"), "--store goes with --measure"),
        (("--measure", "--set", "budgte=1s"), "did you mean 'budget'"),
        (("--measure", "--set", "budget=soon"), "budget"),
    ],
)
def test_bad_input_is_refused_in_one_line(sandbox: Sandbox, arguments: tuple[str, ...], words: str) -> None:
    done = sandbox.ask("machine", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert profiles(sandbox) == []


def test_a_launcher_is_refused(sandbox: Sandbox) -> None:
    world = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    done = sandbox.ask("machine", "--measure", env=world | {"MASTER_PORT": "29999"})
    assert done.returncode == 2
    assert "without a launcher" in done.stderr

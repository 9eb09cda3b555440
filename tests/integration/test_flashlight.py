"""The suite `flashlight` on a CPU: six models, two precisions, phases that add up, and the published table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from paceline.core.record import Outcome, Record
from support.cli import sandbox_in

pytestmark = pytest.mark.long

MODELS = ["vit-base", "resnet34", "resnet50", "detr", "lm-transformer", "asr-transformer"]
PHASES = ["forward", "criterion", "backward", "optimizer"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, with_long: bool) -> Iterator[tuple[list[Record], str]]:
    """The whole suite, or one model of it."""
    small = [] if with_long else ["--only", "vit-base"]
    small += ["--target", "cpu", "--scale", "tiny", "--set", "budget=400ms", "--set", "warm_up=100ms"]
    with sandbox_in(tmp_path_factory.mktemp("flashlight") / "sandbox") as sandbox:
        done = sandbox.run("run", "flashlight", *small, "--no-report", timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        yield sandbox.load().records, done.stdout


@pytest.fixture(scope="module")
def records(measured: tuple[list[Record], str]) -> list[Record]:
    return measured[0]


@pytest.mark.long
def test_every_model_is_measured_in_both_precisions(records: list[Record]) -> None:
    found = {(r.case.parameters["model"], r.case.parameters["precision"]) for r in records if r.case.ranks == 1}
    assert found >= set(itertools.product(MODELS, ["fp32", "bf16"]))
    assert all(record.outcome is Outcome.OK for record in records)


def test_the_phases_sum_to_the_step(records: list[Record]) -> None:
    for record in records:
        names = [*PHASES, "matcher"] if record.case.parameters["model"] == "detr" else PHASES
        # The case's own figures are each of the rank that took longest, which need not be the same one.
        for rank in [""] if record.case.ranks == 1 else [f"rank {n}" for n in range(record.case.ranks)]:
            found = {m.metric.name: m for m in record.measurements if m.scope == rank}
            steps = np.array(found["step_time"].samples)
            phases = np.array([found[f"{name}_time"].samples for name in names])
            assert (phases > 0).all(), record.case.title
            assert phases.sum(axis=0) == pytest.approx(steps, rel=1e-6), record.case.title


def test_the_report_prints_the_published_table_and_leaves_empty_what_was_not_run(
    measured: tuple[list[Record], str],
) -> None:
    _, printed = measured
    assert "Compared with Flashlight's published figures" in printed
    assert "ViT-Base, V100" in printed
    assert "7,932" in printed  # theirs on 32 GPUs
    assert "of linear" in printed  # two ranks beside one
    assert "x)" not in printed.partition("Compared with Flashlight")[2]  # a small model on a CPU is not compared


@pytest.mark.long
def test_speech_is_told_in_seconds_of_audio_and_language_in_tokens(records: list[Record]) -> None:
    by_model = {record.case.parameters["model"]: record for record in records if record.case.ranks == 1}
    assert by_model["asr-transformer"].measurement("audio_throughput") is not None
    assert by_model["lm-transformer"].measurement("token_throughput") is not None
    assert by_model["vit-base"].measurement("token_throughput") is None

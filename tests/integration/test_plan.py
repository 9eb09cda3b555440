"""`paceline plan` as a user types it: layouts for the GPUs, for people and for programs, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from paceline.analysis.plan import LIBAI, plan, step_time
from paceline.analysis.plan_calibration import h200_observations
from paceline.cli._plan_cluster import (
    LAYER_OVERHEAD,
    OF_DATASHEET,
    OF_LINKS,
    OF_MATRIX_PRODUCT,
    ClusterRequest,
    assumptions,
    errors_elsewhere,
    estimate,
    rows_of,
)
from paceline.cli.plan import compared
from paceline.core.environment import Gpu
from paceline.core.layout import Layout
from paceline.core.profile import Ceiling, CeilingKind, Identity, Profile
from paceline.core.record import Cause, CauseKind, Measurement, Outcome
from paceline.core.run import RunRecords
from paceline.core.transformer import transformer
from paceline.report.export import jsonl
from support.cli import Sandbox
from support.docs_markdown import ROOT
from support.records import MEMORY, STEP_TIME, case, literal_run, record, run_of, throughput

H200 = ("--device", "H200", "--memory", "141GB")


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_every_layout_takes_all_gpus_and_fits(sandbox: Sandbox, model: str) -> None:
    done = sandbox.ask("plan", model, "--layers", "24", "--gpus", "32", "--memory", "16GiB", "--json", "--top", "100")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == "prediction"
    assert "published" in document["basis"][0]
    assert len(document["candidates"]) > 5
    for one in document["candidates"]:
        layout = Layout.parse(one["layout"]).check()
        assert (layout.model, layout.world_size, layout.machines) == (model, 32, "4n8g")
        assert one["memory_bytes"]["occupied"] < 16 * 1024**3
        assert sum(one["time_s"].values()) == pytest.approx(one["step_s"])
        assert one["samples_per_s"] == pytest.approx(layout.global_batch / one["step_s"])
    speeds = [one["samples_per_s"] for one in document["candidates"]]
    assert speeds == sorted(speeds, reverse=True)


def test_a_person_gets_the_best_with_reasons_and_is_told_that_it_is_a_prediction(sandbox: Sandbox) -> None:
    done = sandbox.ask("plan", "gpt2", "--layers", "48", "--hidden", "4096", "--gpus", "16", "--top", "3", *H200)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("Predicted best: gpt2/nl48_bf16_")
    shown = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("gpt2/")]
    assert len(shown) == 3
    assert shown[0] in first
    assert all(math.prod(map(int, word.split("_")[2].split("x"))) == 16 for word in shown)
    words = " ".join(done.stdout.split())
    assert "of a step" in words
    assert "the next, is" in words
    assert "These are predictions, not measurements" in words
    assert "the datasheet of H200: 989 TFLOP/s in bf16, of which layers are assumed to reach 57 %" in words
    assert "give yours with --network" in words


def test_without_a_network_between_nodes_none_is_assumed(sandbox: Sandbox) -> None:
    done = sandbox.ask("plan", "gpt2", "--gpus", "8", *H200)
    assert "network" not in done.stdout


def test_a_slower_network_is_predicted_to_be_slower(sandbox: Sandbox) -> None:
    def speed(network: str) -> float:
        done = sandbox.ask("plan", "gpt2", "--gpus", "32", "--network", network, "--json", *H200)
        assert done.returncode == 0, done.stderr
        return float(json.loads(done.stdout)["candidates"][0]["samples_per_s"])

    assert speed("1GB/s") < speed("400GB/s")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpt3", "--gpus", "8"), ("unknown model 'gpt3'", "did you mean 'gpt2'?")),
        (("gpt2",), ("--gpus",)),
        (("gpt2", "--gpus", "0"), ("--gpus", "0")),
        (("gpt2", "--gpus", "12"), ("12 GPUs are not a whole number of nodes with 8 each", "--gpus-per-node")),
        (("gpt2", "--gpus", "8", "--memory", "lots"), ("--memory", "'lots' is not a size", "64MiB")),
        (("gpt2", "--gpus", "8", "--memory", "0"), ("--memory 0 must be more than 0",)),
        (("gpt2", "--gpus", "8", "--device", "H20000"), ("no datasheet of 'H20000'", "A100-SXM4-80GB")),
        (("gpt2", "--gpus", "8", "--device", "H200"), ("--memory", "80GiB")),
        (("gpt2", "--gpus", "8", "--device", "V100-SXM2", "--memory", "32GiB", "--precision", "bf16"), ("bf16",)),
        (("gpt2", "--gpus", "8", "--hidden", "1000"), ("not a multiple of 15 heads, one for every 64: give --heads",)),
        (("gpt2", "--gpus", "65536"), ("32 samples for each of 65536 GPUs are a batch of 2,097,152", "--global-batch")),
        (
            ("gpt2", "--gpus", "8", "--hidden", "1000", "--heads", "16"),
            ("--hidden 1000 is not a multiple of --heads 16",),
        ),
        (("gpt2", "--gpus", "7", "--global-batch", "4", "--layers", "3"), ("no layout of 7 GPUs", "--global-batch")),
        (("gpt2", "--gpus", "8", "--store", "x.db"), ("--store goes with --verify or --calibrate",)),
        (("gpt2", "--gpus", "8", *H200, "--verify"), ("--verify", "leave out --device")),
        (("gpt2", "--gpus", "4096", "--verify"), ("--verify measures on this machine", "4096")),
    ],
    ids=lambda value: "-".join(value).replace(" ", "_") if isinstance(value, tuple) else "",
)
def test_input_that_cannot_be_meant_is_refused_in_one_line(
    sandbox: Sandbox, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    done = sandbox.ask("plan", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("paceline: ")
    for words in says:
        assert words in done.stderr


def test_a_model_that_fits_nowhere_is_no_plan(sandbox: Sandbox) -> None:
    done = sandbox.ask("plan", "gpt2", "--layers", "96", "--hidden", "12288", "--gpus", "8", "--memory", "80GiB")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no layout of 8 GPUs fits 80 GiB each: the smallest, gpt2/nl96_" in done.stderr


def test_what_was_measured_is_put_beside_the_prediction_of_the_same_layout() -> None:
    first, second, third = plan(transformer("gpt2", 24), LIBAI, gpus=8, global_batch=64, precision="fp16").candidates[
        :3
    ]
    steps = Measurement.of_samples(STEP_TIME, [2.0] * 20)
    found = [Measurement.of_rate(throughput("sequences/s"), 64, steps), Measurement.of_value(MEMORY, 5e9)]
    failed = Cause(kind=CauseKind.DEVICE_MEMORY, message="it did not fit")
    run = run_of(
        [
            record(case(0, "parallel", "b", case=str(second.layout)), outcome=Outcome.OUT_OF_MEMORY, cause=failed),
            record(case(1, "parallel", "a", case=str(first.layout)), found),
        ]
    )
    lines = compared([first, second, third], run)
    assert [line["layout"] for line in lines] == [str(one.layout) for one in (first, second, third)]
    assert [line["measured_samples_per_s"] for line in lines] == [pytest.approx(32), None, None]
    assert [line["measured_peak_bytes"] for line in lines] == [5e9, None, None]
    assert [line["predicted_peak_bytes"] for line in lines] == [one.memory.peak for one in (first, second, third)]
    assert [line["cause"] for line in lines] == [None, "it did not fit", None]


def test_measured_ceilings_are_what_a_plan_rests_on() -> None:
    def ceiling(kind: CeilingKind, name: str, value: float, unit: str, device: str = "cuda:0") -> Ceiling:
        return Ceiling(device=device, device_name="NVIDIA H200", kind=kind, name=name, value=value, unit=unit)

    measured = (
        ceiling("compute", "bf16", 780e12, "FLOP/s"),
        ceiling("memory", "device memory", 4.3e12, "B/s"),
        ceiling("link", "all-reduce, 4 GPUs", 365e9, "B/s", "cuda:*"),
        ceiling("latency", "all-reduce, 4 GPUs", 17e-6, "s", "cuda:*"),
    )
    profile = Profile(
        measured_at=datetime(2026, 3, 14, tzinfo=UTC), version="1", run_id="r1", identity=Identity(), ceilings=measured
    )
    gpus = [Gpu(index=index, name="NVIDIA H200", memory_total=140 * 1024**3) for index in range(4)]
    request = ClusterRequest(gpus=8, device=None, memory=None, gpus_per_node=None, network=None, precision="bf16")
    known = estimate(request, "NVIDIA H200", gpus, profile)
    cluster = known.cluster
    assert (cluster.gpus_per_node, cluster.memory) == (4, 140 * 1024**3)
    assert cluster.rate == pytest.approx(OF_MATRIX_PRODUCT * 780e12)
    assert cluster.peak == 780e12  # no datasheet beside the ceiling: the measured one
    assert (cluster.memory_bandwidth, cluster.intra_bandwidth, cluster.intra_latency) == (4.3e12, 365e9, 17e-6)
    assert "on 2026-03-14, run r1" in known.basis[0]
    assert not [line for line in known.basis if "NVLink" in line]


def test_a_plan_without_a_gpu_says_for_which_it_is_and_why(sandbox: Sandbox) -> None:
    done = sandbox.ask("plan", "gpt2", "--gpus", "8")
    first = " ".join(done.stdout.split("\n\n")[0].split())
    assert first.endswith("on 8 V100, assumed, as this machine has no GPU and --device names none.")
    named = sandbox.ask("plan", "gpt2", "--gpus", "8", *H200)
    assert "on 8 H200, as --device names it." in " ".join(named.stdout.split("\n\n")[0].split())


def test_a_device_of_which_nothing_was_measured_comes_with_the_error_elsewhere(sandbox: Sandbox) -> None:
    done = sandbox.ask("plan", "gpt2", "--gpus", "8", "--device", "A100-SXM4-80GB", "--memory", "80GiB")
    words = " ".join(done.stdout.split())
    assert "no layout was measured on A100-SXM4-80GB" in words
    assert "the median layout was 25 to 79 % off (V100-SXM2 with LiBai 59 %" in words
    known = " ".join(sandbox.ask("plan", "gpt2", "--gpus", "1", *H200).stdout.split())
    assert "fitted to 5 layouts on one H200; out of sample, each layout predicted by a fit to the others" in known


WORDS = [f"gpt2/nl24_bf16_1x1x1_mb{size}_gb{size}_1n1g" for size in (2, 4, 8, 16, 32)]


def measured_run(device: str = "NVIDIA H200", speed: float = 1.0) -> RunRecords:
    """A run of `parallel` whose throughputs are what the formulas say of layers at 300 TFLOP/s."""
    request = ClusterRequest(1, "H200", 1, None, None, "bf16")
    cluster = replace(estimate(request, "H200").cluster, rate=speed * 300e12)
    records = []
    for index, word in enumerate(WORDS):
        layout = Layout.parse(word)
        steps = Measurement.of_samples(STEP_TIME, [step_time(transformer("gpt2", 24), layout, cluster).total] * 20)
        rate = Measurement.of_rate(throughput("sequences/s"), layout.global_batch, steps)
        records.append(record(case(index, "parallel", word, case=word), [rate], facts={"device": device}))
    more = len(records)
    sharded = case(more, "parallel", "sharded", case=WORDS[0], shard="fsdp")
    records.append(record(sharded, [rate], facts={"device": device}))
    failed = Cause(kind=CauseKind.DEVICE_MEMORY, message="it did not fit")
    large = case(more + 1, "parallel", "large", case=WORDS[0])
    records.append(record(large, outcome=Outcome.OUT_OF_MEMORY, cause=failed, facts={"device": device}))
    return run_of(records)


def write_results(sandbox: Sandbox, name: str, run: RunRecords) -> str:
    (sandbox.work / name).write_text(jsonl.render(run), encoding="utf-8")
    return name


def test_a_calibrated_plan_says_what_was_fitted_and_its_error_out_of_sample(sandbox: Sandbox) -> None:
    results = write_results(sandbox, "run.jsonl", measured_run())
    arguments = ("plan", "gpt2", "--gpus", "8", "--memory", "141GB", "--calibrate", results)
    done = sandbox.ask(*arguments)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "on 8 NVIDIA H200, which the results are of." in words
    assert "5 layouts measured on NVIDIA H200 in bf16 (run.jsonl), to which the rate of layers (" in words
    assert "out of sample, each layout predicted by a fit to the others, the median is 0.0" in words
    assert "results left out, as the formulas know no sharded parameters" in words
    assert "schedule other than 1F1B: 1 " in words
    assert "75 % of NVLink" in words  # which one GPU says nothing of
    document = json.loads(sandbox.ask(*arguments, "--json").stdout)
    assert document["cluster"]["rate"] == pytest.approx(300e12, rel=0.1)
    assert set(document["calibration"]["fitted"]) == {"rate", "layer_overhead", "head_cost", "attention_cost"}
    assert document["calibration"]["median_error"] < 0.01
    assert [one["layout"] for one in document["calibration"]["layouts"]] == WORDS


def test_results_of_several_devices_need_a_choice(sandbox: Sandbox) -> None:
    both = (
        *("--calibrate", write_results(sandbox, "one.jsonl", measured_run())),
        *("--calibrate", write_results(sandbox, "other.jsonl", measured_run("NVIDIA H100 80GB HBM3", 0.5))),
    )
    refused = sandbox.ask("plan", "gpt2", "--gpus", "8", "--memory", "80GB", *both)
    assert refused.returncode == 2
    assert "has rows of NVIDIA H100 80GB HBM3 and NVIDIA H200: choose one with --device" in refused.stderr
    done = sandbox.ask("plan", "gpt2", "--gpus", "8", "--memory", "80GB", *both, "--device", "H100", "--json")
    assert json.loads(done.stdout)["device"] == "NVIDIA H100 80GB HBM3"


def test_results_without_a_layout_cannot_calibrate(sandbox: Sandbox) -> None:
    results = write_results(sandbox, "none.jsonl", literal_run())
    refused = sandbox.ask("plan", "gpt2", "--gpus", "8", "--calibrate", results)
    assert refused.returncode == 2
    assert "there is no measured throughput of a GPT-2 or BERT in" in refused.stderr
    assert "paceline run parallel --case LAYOUT" in refused.stderr


def test_training_a_whole_gpt2_is_a_row_like_that_of_a_layout() -> None:
    steps = Measurement.of_samples(STEP_TIME, [0.1] * 20)
    rate = Measurement.of_rate(throughput("sequences/s"), 32, steps)
    facts = {"device": "NVIDIA H200", "precision": "bf16", "scale": "full", "global_batch_size": 32}
    parameters = {"model": "gpt2-medium", "precision": "bf16", "scale": "full", "batch_size": 8, "ranks": 4}
    tiny = record(case(1, "train", "tiny", **parameters | {"scale": "tiny"}), [rate], facts=facts | {"scale": "tiny"})
    run = run_of([record(case(0, "train", "gpt2-medium bf16", **parameters), [rate], facts=facts), tiny])
    (row,) = rows_of(run)
    assert str(row.observation.layout) == "gpt2/nl24_bf16_4x1x1_mb8_gb32_1n4g"
    assert row.observation.model == transformer("gpt2", 24)
    assert row.observation.samples_per_s == pytest.approx(320)


def test_what_is_assumed_of_a_device_is_fitted_to_the_rows_of_the_h200() -> None:
    part, overhead = assumptions("H200", h200_observations())
    assert pytest.approx(part, abs=0.005) == OF_DATASHEET
    assert pytest.approx(overhead, abs=5e-6) == LAYER_OVERHEAD
    assert pytest.approx(part * 989.4 / 782, abs=0.005) == OF_MATRIX_PRODUCT  # of its fastest product, in TFLOP/s


def test_the_guide_has_the_errors_elsewhere() -> None:
    text = (ROOT / "docs" / "guide" / "planning.md").read_text(encoding="utf-8")
    for one in errors_elsewhere():
        other = "H200" if one.device == "V100-SXM2" else "V100"
        line = f"| {one.device}, {one.program} | {other} | {one.layouts} | {100 * one.typical:.0f} % |"
        assert line in text


def test_the_guide_has_the_assumptions_of_the_code() -> None:
    text = " ".join((ROOT / "docs" / "guide" / "planning.md").read_text(encoding="utf-8").split())
    assert f"reach {100 * OF_MATRIX_PRODUCT:.0f} % of the matrix product" in text
    assert f"reach {100 * OF_DATASHEET:.0f} % of it, an all-reduce {100 * OF_LINKS:.0f} % of NVLink" in text

"""`paceline plan` as a user types it: layouts for the GPUs, for people and for programs, and what it refuses."""

from __future__ import annotations

import json
import math

import pytest

from paceline.core.layout import Layout
from support.cli import Sandbox

H200 = ("--device", "H200", "--memory", "141GB")


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_every_layout_takes_all_gpus_and_fits(sandbox: Sandbox, model: str) -> None:
    done = sandbox.run("plan", model, "--layers", "24", "--gpus", "32", "--memory", "16GiB", "--json", "--top", "100")
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
    done = sandbox.run("plan", "gpt2", "--layers", "48", "--hidden", "4096", "--gpus", "16", "--top", "3", *H200)
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
    assert "the datasheet of H200: 989 TFLOP/s in bf16, of which layers are assumed to reach 53 %" in words
    assert "give yours with --network" in words


def test_without_a_network_between_nodes_none_is_assumed(sandbox: Sandbox) -> None:
    done = sandbox.run("plan", "gpt2", "--gpus", "8", *H200)
    assert "network" not in done.stdout


def test_a_slower_network_is_predicted_to_be_slower(sandbox: Sandbox) -> None:
    def speed(network: str) -> float:
        done = sandbox.run("plan", "gpt2", "--gpus", "32", "--network", network, "--json", *H200)
        assert done.returncode == 0, done.stderr
        return float(json.loads(done.stdout)["candidates"][0]["samples_per_s"])

    assert speed("1GB/s") < speed("400GB/s")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpt3", "--gpus", "8"), ("unknown model 'gpt3'", "did you mean 'gpt2'?")),
        (("gpt2",), ("--gpus",)),
        (("gpt2", "--gpus", "0"), ("--gpus", "0")),
        (("gpt2", "--gpus", "12"), ("12 GPUs are no whole number of nodes with 8 each", "--gpus-per-node")),
        (("gpt2", "--gpus", "8", "--memory", "lots"), ("--memory", "'lots' is not a size", "64MiB")),
        (("gpt2", "--gpus", "8", "--memory", "0"), ("--memory 0 must be more than nothing",)),
        (("gpt2", "--gpus", "8", "--device", "H20000"), ("no datasheet of 'H20000'", "A100-SXM4-80GB")),
        (("gpt2", "--gpus", "8", "--device", "H200"), ("--memory", "80GiB")),
        (("gpt2", "--gpus", "8", "--device", "V100-SXM2", "--memory", "32GiB", "--precision", "bf16"), ("bf16",)),
        (("gpt2", "--gpus", "8", "--hidden", "1000", "--heads", "16"), ("--hidden 1000 is no multiple of --heads 16",)),
        (("gpt2", "--gpus", "7", "--global-batch", "4", "--layers", "3"), ("no layout of 7 GPUs", "--global-batch")),
        (("gpt2", "--gpus", "8", "--store", "x.db"), ("--store goes with --verify",)),
        (("gpt2", "--gpus", "8", *H200, "--verify"), ("--verify", "leave out --device")),
        (("gpt2", "--gpus", "4096", "--verify"), ("--verify measures on this machine", "4096")),
    ],
    ids=lambda value: "-".join(value).replace(" ", "_") if isinstance(value, tuple) else "",
)
def test_input_that_cannot_be_meant_is_refused_in_one_line(
    sandbox: Sandbox, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    done = sandbox.run("plan", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("paceline: ")
    for words in says:
        assert words in done.stderr


def test_a_model_that_fits_nowhere_is_no_plan(sandbox: Sandbox) -> None:
    done = sandbox.run("plan", "gpt2", "--layers", "96", "--hidden", "12288", "--gpus", "8", "--memory", "80GiB")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no layout of 8 GPUs fits 80 GiB each: the smallest, gpt2/nl96_" in done.stderr

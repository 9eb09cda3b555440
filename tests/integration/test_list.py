"""What there is can be listed, and a plug-in that cannot be loaded says why and disables itself alone."""

from __future__ import annotations

import os

import pytest

from support.cli import PLUGIN, Sandbox

MODELS = [
    "gpt2-small",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "bert-base",
    "bert-large",
    "lstm",
    "alexnet",
    "googlenet",
    "inception_v3",
    "mobilenet_v2",
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "mnasnet0_5",
    "mnasnet0_75",
    "mnasnet1_0",
    "mnasnet1_3",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5",
    "shufflenet_v2_x2_0",
    "squeezenet1_0",
    "squeezenet1_1",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
]


def install(sandbox: Sandbox, name: str, provider: str, source: str | None) -> dict[str, str]:
    """A provider beside the usual one: its environment."""
    folder = sandbox.folder / "plugins"
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[paceline.plugins]\nx = {provider}\n")
    if source is not None:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(source)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(PLUGIN)])}


def names(output: str) -> list[str]:
    return [line.split()[0] for line in output.splitlines() if line.startswith("  ")]


def test_every_model_is_listed(sandbox: Sandbox) -> None:
    done = sandbox.ask("list", "models")
    assert done.returncode == 0
    assert set(MODELS) <= set(names(done.stdout))


def test_a_broken_module_says_why_and_everything_beside_it_works(sandbox: Sandbox) -> None:
    done = sandbox.run("list")
    assert done.returncode == 0
    assert done.stderr == ""
    (disabled,) = [line for line in done.stdout.splitlines() if "disabled" in line]
    assert "paceline_test_plugin.benchmarks.broken" in disabled
    assert "RuntimeError: this accelerator's licence has run out" in disabled
    assert {"train", "inference", "nap", "crash", "gpt2-small", "quick"} <= set(names(done.stdout))
    assert sandbox.run("run", "nap", "--no-report").returncode == 0


@pytest.mark.parametrize(
    ("provider", "source", "reason"),
    [
        ("sad_plugin", "raise OSError('no driver')", "OSError: no driver"),
        pytest.param(
            *("sad_plugin.deeper", "raise OSError('no driver')", "OSError: no driver"), marks=pytest.mark.long
        ),
        pytest.param("sad_plugin", "import sys; sys.exit('I leave')", "I leave", marks=pytest.mark.long),
        pytest.param("sad_plugin", None, "sad_plugin", marks=pytest.mark.long),
        ("sad_plugin.deeper", None, "sad_plugin"),
    ],
    ids=["raises", "raises-above", "exits", "absent", "absent-above"],
)
def test_a_provider_that_cannot_be_imported_disables_itself_alone(
    sandbox: Sandbox, provider: str, source: str | None, reason: str
) -> None:
    env = install(sandbox, "sad_plugin", provider, source)
    done = sandbox.run("list", env=env)
    assert done.returncode == 0, done.stderr
    assert any("disabled" in line and reason in line for line in done.stdout.splitlines())
    assert {"train", "nap", "lstm", "quick"} <= set(names(done.stdout))
    measured = sandbox.run("run", "nap", "--no-report", env=env)
    assert measured.returncode == 0, measured.stderr


@pytest.mark.parametrize("name", ["train", "nap", "gpt2-small", "quick"])
def test_whatever_is_listed_can_be_shown(sandbox: Sandbox, name: str) -> None:
    done = sandbox.ask("show", name)
    assert done.returncode == 0
    assert name in done.stdout


def test_showing_an_unknown_name_names_the_nearest(sandbox: Sandbox) -> None:
    done = sandbox.ask("show", "resnet5")
    assert done.returncode == 2
    assert done.stderr.startswith("paceline: nothing is called 'resnet5': did you mean 'resnet5")
    assert len(done.stderr.splitlines()) == 1

"""Models exported for serving: they answer as the eager ones do in any batch, and are kept; or the reason is told."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.core.errors import CaseError, MissingDependency, Unsupported
from paceline.servers import _exported_module
from paceline.servers._embedded.engines import FORMATS, open_engine
from paceline.servers.base import Artifact, Format, Need
from paceline.servers.export import export, load_module, sample_inputs
from support.refused import refused

FC = "generated/fc:layers=1,width=8"
MODELS: list[tuple[Format, str, str]] = [
    ("torchscript", "generated/cnn", "fp32"),
    ("torchscript", "generated/lstm:layers=1", "fp32"),
    ("torchscript", "generated/transformer", "fp16"),
    ("torchscript", "bert-base", "fp32"),
    ("torch-export", FC, "bf16"),
    ("onnx", FC, "fp32"),
    ("openvino", FC, "fp32"),
]
MORE_MODELS: list[tuple[Format, str, str]] = [
    ("torchscript", "detr", "fp32"),
    ("torchscript", "resnet18", "fp32"),
    ("torch-export", "generated/transformer:layers=1", "fp32"),
    ("onnx", "bert-base", "fp32"),
    ("onnx", "generated/lstm:layers=1", "fp32"),
    ("onnx", "generated/transformer:layers=1", "fp16"),
    ("openvino", "vit-base", "fp32"),
]

USERS = """
import torch
from torch import nn
from paceline.models import Batch, Workload

def make_batch(samples, generator):
    return Batch((torch.randn(samples, 4, generator=generator),), (torch.zeros(samples, dtype=torch.int64),))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        FORWARD

def mine() -> Workload:
    return Workload(Net(), make_batch, lambda output, batch: output.square().mean())
"""
_numbers = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a model of the user's own whose forward is the given code; gives its reference."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_model(forward: str) -> str:
        name = f"users_net_{next(_numbers)}"
        Path(f"{name}.py").write_text(USERS.replace("FORWARD", forward))
        return f"{name}:mine"

    return write_model


def export_tiny(model: str, format: Format, folder: Path, precision: str = "fp32") -> Artifact:
    return export(Need(model, "tiny", precision, seed=3, allow_import=":mine" in model), format, folder)


def check(format: Format, model: str, precision: str, folder: Path) -> None:
    artifact = export_tiny(model, format, folder, precision)
    assert artifact.path is not None
    assert artifact.path.parent.parent == folder
    assert artifact.deviation is not None
    module, inputs, outputs = load_module(artifact), artifact.inputs, artifact.outputs
    eager = export_tiny(model, "eager", folder, precision)
    assert (inputs, outputs) == (eager.inputs, eager.outputs)
    samples = sample_inputs(artifact, 5, seed=9)
    batch = {spec.name: np.stack([sample[spec.name] for sample in samples]) for spec in inputs}
    with torch.no_grad():
        expected = module(*map(torch.from_numpy, batch.values()))
    engine = next(name for name, exported in FORMATS.items() if exported == format)
    given = [torch.from_numpy(one) for one in open_engine(engine, artifact, "cpu", ()).session(1)(batch).values()]
    expected = expected if isinstance(expected, tuple) else (expected,)
    tolerance = 1e-3 if precision == "fp32" else 0.1
    for spec, one, other in zip(outputs, expected, given, strict=True):
        assert other.shape == (5, *spec.shape)
        assert other.numpy().dtype == spec.dtype
        assert float((one - other).abs().max()) <= tolerance * float(one.abs().max())


@pytest.mark.parametrize(("format", "model", "precision"), MODELS)
def test_an_exported_model_answers_as_the_eager_one_of_its_seed(
    format: Format, model: str, precision: str, tmp_path: Path
) -> None:
    check(format, model, precision, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("format", "model", "precision"), MORE_MODELS)
def test_larger_models_too(format: Format, model: str, precision: str, tmp_path: Path) -> None:
    check(format, model, precision, tmp_path)


def test_eager_writes_nothing(tmp_path: Path) -> None:
    artifact = export_tiny("detr", "eager", tmp_path / "models")
    assert artifact.path is None
    assert [(one.name, one.datatype) for one in artifact.inputs] == [("images", "FP32"), ("real", "BOOL")]
    assert [one.name for one in artifact.outputs] == ["output_0", "output_1"]
    assert not (tmp_path / "models").exists()


def test_what_travels_does_not_depend_on_the_precision() -> None:
    artifact = export(Need(FC, precision="bf16", seed=0), "eager")
    module = load_module(artifact)
    assert [one.datatype for one in artifact.inputs + artifact.outputs] == ["FP32", "FP32"]
    assert module(torch.zeros(2, 8)).dtype == torch.float32
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


def test_it_is_exported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = export_tiny(FC, "torchscript", tmp_path)

    def fail(*_: object) -> None:
        raise AssertionError("exported again")

    exporter = _exported_module.EXPORTERS["torchscript"]
    monkeypatch.setitem(_exported_module.EXPORTERS, "torchscript", replace(exporter, write=fail))
    assert export_tiny(FC, "torchscript", tmp_path) == first
    same = export_tiny("generated/fc:width=8,layers=1", "torchscript", tmp_path)
    assert (same.path, same.model) == (first.path, "generated/fc:width=8,layers=1")


def test_other_weights_are_another_export(tmp_path: Path) -> None:
    paths = {
        export(Need(model, scale, precision, seed=seed), "torchscript", tmp_path).path
        for model, scale, precision, seed in (
            (FC, "full", "fp32", 1),
            (FC, "full", "fp32", 2),
            (FC, "tiny", "fp32", 1),
            (FC, "full", "fp16", 1),
            ("generated/fc:layers=2,width=8", "full", "fp32", 1),
        )
    }
    assert len(paths) == 5


def test_a_changed_model_of_the_user_is_exported_again(write: Callable[[str], str], tmp_path: Path) -> None:
    model = write("return self.linear(x)")
    first = export_tiny(model, "torchscript", tmp_path / "models")
    assert export_tiny(model, "torchscript", tmp_path / "models").path == first.path
    source = Path(f"{model.partition(':')[0]}.py")
    source.write_text(source.read_text() + "# changed\n")
    assert export_tiny(model, "torchscript", tmp_path / "models").path != first.path


@pytest.mark.parametrize("damage", ["cut", "flipped", "described wrongly", "description gone", "file gone"])
def test_a_damaged_export_is_made_again(damage: str, tmp_path: Path) -> None:
    first = export_tiny(FC, "torchscript", tmp_path)
    assert first.path is not None
    description = first.path.with_name("artifact.json")
    content = first.path.read_bytes()
    if damage == "cut":
        first.path.write_bytes(content[:100])
    elif damage == "flipped":
        first.path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    elif damage == "described wrongly":
        description.write_text('{"artifact": {"model": 3}}')
    else:
        (description if damage == "description gone" else first.path).unlink()
    again = export_tiny(FC, "torchscript", tmp_path)
    assert again.path == first.path
    assert torch.jit.load(again.path)(torch.zeros(1, 8)).shape == (1, 100)
    assert [one.name for one in tmp_path.iterdir()] == [first.path.parent.name]


def test_abandoned_half_exports_are_removed_and_fresh_ones_are_not(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".old.tmp", tmp_path / ".fresh.tmp"
    for folder in (old, fresh):
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"half")
    os.utime(old, (0, 0))
    export_tiny(FC, "torchscript", tmp_path)
    assert not old.exists()
    assert fresh.exists()


@pytest.mark.parametrize(
    ("format", "forward", "said"),
    [
        ("torch-export", "return self.linear(x) if x.sum() > 0 else x", "as torch-export in fp32 cannot be exported: "),
        ("torchscript", "return self.linear(x).view(int(x.shape[0]), 4)", "exported but takes no batch of 1: "),
        ("torchscript", "return nn.functional.dropout(self.linear(x), training=True)", "difference is .* tolerated"),
        ("torchscript", "return self.linear(x) * (float('nan') if torch.jit.is_tracing() else 1)", "difference is nan"),
        ("torchscript", "return {'answer': object()}", "an object of type object, which is not a tensor"),
        ("torchscript", "return self.linear(x).sum()", "first axis of every output must be the sample"),
        ("torchscript", "return self.linear(x) / 0", "not finite"),
        ("torchscript", "raise ValueError('no idea')", "cannot be served: ValueError: no idea"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_the_reason(
    format: Format, forward: str, said: str, write: Callable[[str], str], tmp_path: Path
) -> None:
    model = write(forward)
    with pytest.raises(CaseError, match=said) as caught:
        export_tiny(model, format, tmp_path / "models")
    assert "\n" not in str(caught.value)
    assert model in str(caught.value)
    assert not list((tmp_path / "models").glob("*"))


def test_outputs_in_a_mapping_are_flattened(write: Callable[[str], str], tmp_path: Path) -> None:
    model = write("return {'a': self.linear(x), 'b': [x.sum(1), None]}")
    artifact = export_tiny(model, "torchscript", tmp_path)
    assert [(one.name, one.shape) for one in artifact.outputs] == [("output_0", (4,)), ("output_1", ())]


def test_unknown_and_missing_things_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("precision-not-served", key="precision", value="fp8"):
        export_tiny(FC, "torchscript", tmp_path, "fp8")
    with pytest.raises(Unsupported, match="openvino is exported in fp32, not in bf16"):
        export_tiny(FC, "openvino", tmp_path, "bf16")
    with refused("not-from-network", key="model", value="some:model"):
        export(Need("some:model", "tiny"), "eager")
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingDependency, match=r"pip install '\.\[serving\]'"):
        export_tiny(FC, "openvino", tmp_path)


def test_the_cache_of_the_user_is_where_exports_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    artifact = export(Need(FC, "tiny"), "torchscript")
    assert artifact.path is not None
    assert artifact.path.is_relative_to(tmp_path / "paceline" / "models")


@pytest.mark.parametrize("model", ["gpt2-small", "detr", "generated/lstm"])
def test_samples_are_those_of_the_models_own_data(model: str) -> None:
    artifact = export(Need(model, "tiny"), "eager")
    samples = sample_inputs(artifact, 4, seed=7)
    for sample in samples:
        assert {name: (array.shape, array.dtype) for name, array in sample.items()} == {
            spec.name: (spec.shape, spec.dtype) for spec in artifact.inputs
        }
    few = sample_inputs(artifact, 2, seed=7)
    assert all(np.array_equal(few[row][name], samples[row][name]) for row in range(2) for name in few[row])
    first = artifact.inputs[0].name
    assert not np.array_equal(samples[0][first], samples[1][first])
    assert not np.array_equal(samples[0][first], sample_inputs(artifact, 1, seed=8)[0][first])

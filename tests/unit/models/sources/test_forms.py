"""Every form of a user's own model: measured as it is, or refused with what was expected."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.benchmarks.inference.inference import Inference, InferenceParameters
from paceline.benchmarks.training.train import Train, TrainParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.record import Result
from paceline.models.base import Traits
from paceline.models.sources import MODEL_NAME, check_model, find_model, is_own
from paceline.models.sources.given import DEFAULT_LOSS, InputSpec, parse_inputs
from paceline.models.sources.trying import try_model
from support.model_forms import write_forms, write_onnx
from support.refused import refused

SHORT = {"steps": 3, "warm_up": 0.0, "span": 0.0}
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed: no config is tested"
)


@pytest.fixture(scope="session")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forms")
    write_forms(folder)
    return folder


@pytest.fixture(autouse=True)
def _here(forms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(forms)


def context(benchmark: str) -> Context:
    return Context(case=Case(index=0, benchmark=benchmark, parameters={}, title="", target="cpu"))


def infer(model: str, **more: Any) -> Result:
    return Inference().measure(InferenceParameters(model=model, **SHORT, **more), context("inference"))


def train(model: str, **more: Any) -> Result:
    return Train().measure(TrainParameters(model=model, **SHORT, **more), context("train"))


def load(name: str, inputs: str | None = None) -> None:
    """As `--dry-run` does, in this process."""
    try_model(find_model(name, allow_import=True, inputs=inputs))


@pytest.mark.parametrize(
    ("model", "inputs", "batch"),
    [
        ("./net.py:make", "4x8", 4),
        ("./net.py:with_inputs", None, 3),
        ("./net.py:net", "5x8", 5),
        ("./net.py:Net", "1x8", 1),
        ("./net.pt2", None, 2),
        ("./three.pt2", None, 3),
        pytest.param("./tiny", None, 1, marks=needs_transformers),
        pytest.param("./tiny/config.json", "2x16:int64:50", 2, marks=needs_transformers),
    ],
)
def test_a_model_of_each_form_runs_forward(model: str, inputs: str | None, batch: int) -> None:
    result = infer(model, input=inputs)
    assert result.facts["batch_size"] == batch
    assert result.facts["parameter_count"] > 0
    assert result.facts["flops_per_step"] > 0
    assert all(one.value > 0 for one in result.measurements if one.metric.name in ("throughput", "step_time"))


@pytest.mark.parametrize(
    ("model", "loss"),
    [("./net.py:with_inputs", DEFAULT_LOSS), ("./net.pt2", DEFAULT_LOSS), ("./net.py:with_loss", "squared")],
)
def test_the_record_names_the_loss_it_trained_with(model: str, loss: str) -> None:
    facts = train(model).facts
    assert facts["loss_function"] == loss
    assert "loss_function" not in infer(model).facts


def test_an_onnx_file_runs_in_process(tmp_path: Path) -> None:
    write_onnx(tmp_path / "any.onnx", "n", 8)
    result = infer(str(tmp_path / "any.onnx"), batch_size=4)
    assert result.facts["engine"].startswith("onnxruntime ")
    assert (result.facts["batch_size"], result.facts["parameter_count"]) == (4, 16)
    assert len(result.facts["sha256"]) == 64
    workload = find_model(str(tmp_path / "any.onnx"), allow_import=True).build("full")
    assert workload.module(torch.ones(1, 8)).tolist() == [[4.0, 4.0]]


def test_onnx_runtime_computes_a_module_that_was_exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: nothing is exported")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: no ONNX file is tested")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    facts = infer("./net.py:make", input="2x8", engine="onnxruntime").facts
    assert facts["engine"].startswith("onnxruntime ")
    assert facts["batch_size"] == 2
    assert facts["parameter_count"] == 8 * 16 + 16 + 16 * 2 + 2


def test_a_fixed_batch_is_a_trait(tmp_path: Path) -> None:
    write_onnx(tmp_path / "three.onnx", 3, 8)
    spec = find_model(str(tmp_path / "three.onnx"), allow_import=True)
    assert spec.traits == Traits("ONNX file", 3, "fp32", "onnxruntime", is_trainable=False, has_scales=False)
    assert spec.batch_size == 3


@pytest.mark.parametrize(
    ("model", "inputs", "code", "said"),
    [
        ("./net.py", None, "missing-factory", "as in ./net.py:make"),
        ("./absent.py:make", None, "missing-file", "does not exist"),
        ("./net.py:absent", None, "missing-attribute", "it has Net, frozen"),
        ("./net.py:make", None, "missing-input", "--input 1x3x224x224"),
        ("./net.py:make", "1x9", "failing-model", "shapes cannot be multiplied"),
        ("./net.py:number", None, "not-a-model", "expected is an nn.Module"),
        ("./absent.onnx", None, "missing-file", "torch.onnx.export"),
        ("./absent.pt2", None, "missing-file", "torch.export.save"),
        ("./broken.pt2", None, "not-a-program", "torch.export.load does not read it"),
        ("./weights.pt", None, "weights-alone", "without the code"),
        ("./notes.h5", None, "unknown-form", "a .onnx file, a .pt2 file"),
        ("./absent", None, "missing-file", "a folder with a config.json"),
        ("./empty", None, "missing-file", "save_pretrained"),
        ("resnet50", "1x3x224x224", "input-not-taken", "inputs of its own"),
    ],
)
def test_a_wrong_form_is_refused(model: str, inputs: str | None, code: str, said: str) -> None:
    with refused(code, says=said):
        load(model, inputs)


@pytest.mark.parametrize("model", ["./net.py", "./absent.pt2", "./empty", "./net.py:number"])
def test_a_refusal_ends_with_four_lines_that_would_be_right(model: str) -> None:
    with pytest.raises(InputError) as caught:
        load(model)
    _, _, example = str(caught.value).partition("\nfor example:\n")
    assert len(example.splitlines()) == 4


@pytest.mark.parametrize(("sizes", "code"), [(["n", "width"], "missing-input"), (["n", 8], "wrong-number-of-inputs")])
def test_an_onnx_file_whose_inputs_are_not_given(tmp_path: Path, sizes: list[int | str], code: str) -> None:
    write_onnx(tmp_path / "net.onnx", *sizes)
    with refused(code):
        load(str(tmp_path / "net.onnx"), "1x8+1x8" if code.startswith("wrong") else None)


def test_a_broken_onnx_file() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: no ONNX file is tested")
    with refused("not-an-onnx-file", says="ONNX Runtime does not read it"):
        load("./broken.onnx")


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("1x3x224x224", [InputSpec((1, 3, 224, 224))]),
        ("8x128:int64:30522", [InputSpec((8, 128), "int64", 30522)]),
        ("2x4+2x1:bool", [InputSpec((2, 4)), InputSpec((2, 1), "bool")]),
    ],
)
def test_inputs_as_they_are_written(text: str, specs: list[InputSpec]) -> None:
    assert list(parse_inputs(text)) == specs


@pytest.mark.parametrize("text", ["", "0x8", "1*8", "1x8:float", "1x8:int64:0", "1x8+2x8", "x8", "1x8:float32:"])
def test_inputs_that_are_none(text: str) -> None:
    with refused("not-an-input", key="input", value=text):
        parse_inputs(text)


def test_the_first_samples_do_not_depend_on_how_many_follow() -> None:
    workload = find_model("./net.py:make", allow_import=True, inputs="1x8").build("full")
    few, more = (workload.make_batch(n, torch.Generator().manual_seed(1)).inputs[0] for n in (2, 5))
    assert torch.equal(few, more[:2])


@pytest.mark.parametrize(
    ("benchmark", "model", "more", "code"),
    [
        (Train, "./net.py:frozen", {}, "not-trainable"),
        (Inference, "./three.pt2", {"batch_size": 4}, "fixed-batch-size"),
        (Inference, "./three.pt2", {"precision": "bf16"}, "fixed-precision"),
        (Inference, "./three.pt2", {"scale": "tiny"}, "one-scale"),
        (Inference, "resnet50", {"precision": "bf16", "engine": "onnxruntime"}, "fixed-precision"),
        (Inference, "resnet50", {"compile": "on", "engine": "onnxruntime"}, "fixed-engine"),
    ],
)
def test_what_a_model_leaves_no_choice_of(benchmark: Any, model: str, more: dict[str, Any], code: str) -> None:
    traits = find_model(model, allow_import=True).traits
    with refused(code):
        benchmark.check_traits(benchmark.Parameters(model=model, **more), traits)


def test_torch_does_not_compute_an_onnx_file() -> None:
    traits = Traits("ONNX file", None, "fp32", "onnxruntime", is_trainable=False)
    with refused("fixed-engine", key="engine"):
        Inference.check_traits(InferenceParameters(model="./net.onnx", engine="torch"), traits)


OWN = [
    "./net.onnx",
    "net.onnx",
    "a/net.pt2",
    "./net.py:make",
    "net:make",
    "/x/tiny",
    "~/tiny",
    "net.cloudpickle",
    "x.py",
]


@pytest.mark.parametrize("name", OWN)
def test_the_network_names_no_file_and_no_code(name: str) -> None:
    assert is_own(name)
    assert "would run code or read a file" in MODEL_NAME.refusal(name)
    with refused("not-from-network"):
        check_model(name, is_local=False)


@pytest.mark.parametrize("name", ["resnet50", "mnasnet0_5", "generated/fc:layers=2,width=64"])
def test_names_of_the_zoo_are_nobodys_own(name: str) -> None:
    assert not is_own(name)
    assert not MODEL_NAME.refusal(name)


def test_a_live_object_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "model.cloudpickle"
    path.write_bytes(pickle.dumps((torch.nn.Linear(8, 2), torch.randn(3, 8))))
    path.chmod(0o600)
    assert infer(str(path)).facts["batch_size"] == 3
    path.chmod(0o666)
    with refused("not-private"):
        load(str(path))


def test_user_code_is_tried_in_a_process_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with refused("failing-model", says="exit code 3: goodbye", key="model"):
        check_model("./leaving.py:make", is_local=True)
    assert capfd.readouterr() == ("", "")


def test_what_is_wrong_comes_back_from_that_process() -> None:
    with refused("missing-factory", key="models", value="./net.py"):
        check_model("./net.py", is_local=True, key="models")


@pytest.mark.long
def test_traits_come_back_from_that_process() -> None:
    assert check_model("./three.pt2", is_local=True) == find_model("./three.pt2", allow_import=True).traits

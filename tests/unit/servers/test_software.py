"""What holds for all software that Paceline starts: listed with a reason and a remedy, refusing what is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import Unsupported
from paceline.devices import kind_named
from paceline.servers import SERVERS, _apps
from paceline.servers._environment import Requirements, folder_of
from paceline.servers._program import Program
from paceline.servers.base import Need, Server
from paceline.servers.export import export
from paceline.servers.tritonserver import TritonServer
from support.refused import refused

MODEL = "generated/fc:layers=2,width=16"
LOCAL = Need(model=MODEL, allow_import=True)
LLAMA = Need(model="generated/llama", allow_import=True)
PYTHON = sorted(name for name, kind in SERVERS.registry().entries.items() if getattr(kind, "requirements", None))
NAMES = {
    "bentoml",
    "embedded",
    "litserve",
    "llama-cpp",
    "mlserver",
    "pytriton",
    "ray-serve",
    "sglang",
    "torchserve",
    "transformers-serve",
    "tritonserver",
    "url",
    "vllm",
}


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in PYTHON:
        monkeypatch.delenv(f"PACELINE_{name.upper().replace('-', '_')}_PYTHON", raising=False)


def need_of(kind: type[Server]) -> Need:
    return LLAMA if "openai-chat" in kind.wires and kind.name != "url" else LOCAL


def settings_of(kind: type[Server], **more: Any) -> Any:
    return kind.Settings.read({"kind": kind.name} | more)


def test_all_of_them_are_found() -> None:
    assert set(SERVERS.registry().entries) >= NAMES
    assert SERVERS.registry().broken == []


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_server_says_quickly_and_in_one_sentence_why_it_cannot_start(name: str) -> None:
    begin = time.monotonic()
    missing = SERVERS.registry().get(name).missing()
    assert time.monotonic() - begin < 1
    assert missing is None or (len(missing.splitlines()) == 1 and len(missing) < 200)


@pytest.mark.parametrize("name", ["mlserver", "litserve", "bentoml", "ray-serve", "transformers-serve"])
def test_what_is_not_installed_names_the_command_that_installs_it(name: str, tmp_path: Path) -> None:
    kind = SERVERS.registry().get(name)
    assert kind.missing() == f"{name} is not installed; run: paceline servers install {name}"
    server = kind(settings_of(kind), need_of(kind), tmp_path, print)
    with pytest.raises(Unsupported, match=f"paceline servers install {name}"):
        server.prepare()
    server.stop()
    assert not server.is_alive()
    assert server.logs() == ""


@pytest.mark.parametrize("name", PYTHON)
def test_pinned_packages_are_pinned(name: str) -> None:
    kind = SERVERS.registry().get(name)
    assert issubclass(kind, Program)
    assert kind.requirements is not None
    assert kind.requirements.server == name
    assert kind.requirements.packages
    assert all("==" in package or ">=" in package for package in kind.requirements.packages)


@pytest.mark.parametrize("name", PYTHON)
def test_an_interpreter_is_not_named_from_the_network(name: str) -> None:
    kind = SERVERS.registry().get(name)
    with refused("not-from-network", key="server.python", value=sys.executable):
        kind.check(settings_of(kind, python=sys.executable), Need(model=need_of(kind).model))


def test_an_interpreter_that_a_user_has_made_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = Requirements(server="some-thing", packages=("x==1",), shown=("numpy",))
    assert requirements.python(Path(sys.executable)) == Path(sys.executable)
    with refused("not-an-interpreter", key="server.python", value=str(tmp_path)):
        requirements.python(tmp_path)
    monkeypatch.setenv("PACELINE_SOME_THING_PYTHON", sys.executable)
    assert requirements.missing() is None
    assert requirements.python() == Path(sys.executable)
    monkeypatch.setenv("PACELINE_SOME_THING_PYTHON", str(tmp_path / "none"))
    assert requirements.missing() == f"$PACELINE_SOME_THING_PYTHON = '{tmp_path / 'none'}' is not an interpreter"


def test_what_a_machine_lacks_is_told_before_it_is_installed() -> None:
    other = Requirements(server="x", packages=(), shown=(), machines=("vax",))
    assert other.missing() == f"there is no x for {os.uname().machine}, only for vax"
    program = Requirements(server="x", packages=(), shown=(), programs=(("no-such-program", "buy it"),))
    assert program.missing() == "x needs no-such-program, which is not installed; buy it"


def test_without_a_gpu_the_remedy_is_another_server_or_another_build(tmp_path: Path) -> None:
    kind = SERVERS.registry().get("sglang")
    if kind_named("cuda").count():
        pytest.skip("this machine has one")
    with pytest.raises(Unsupported, match=r"sglang needs a GPU.* use llama-cpp .*PACELINE_SGLANG_PYTHON") as refusal:
        kind(settings_of(kind), need_of(kind), tmp_path, print).prepare()
    assert str(refusal.value) == kind.missing()


def test_a_half_made_environment_is_not_taken_for_a_whole_one() -> None:
    requirements = Requirements(server="half", packages=("x==1",), shown=())
    python = folder_of("half") / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert requirements.missing() == "half is not installed; run: paceline servers install half"
    marker = folder_of("half") / "complete.json"
    marker.write_text(json.dumps({"made_for": ["x==1"]}))
    assert requirements.missing() is None
    marker.write_text(json.dumps({"made_for": ["x==0"]}))
    assert "was installed for another version" in str(requirements.missing())
    marker.write_text('{"made_for": ["x=')
    assert "paceline servers install half" in str(requirements.missing())
    marker.write_text(json.dumps({"made_for": ["x==1"]}))
    python.unlink()
    python.symlink_to("/no/such/interpreter")
    assert "paceline servers install half" in str(requirements.missing())


def test_onnx_runtime_for_the_cpu_is_not_asked_to_use_a_gpu() -> None:
    kind = SERVERS.registry().get("mlserver")
    with refused("needs-cpu", key="target", suggestion="cpu"):
        kind.check(settings_of(kind), Need(model=MODEL, device="cuda:0"))
    kind.check(settings_of(kind, python=sys.executable), Need(model=MODEL, device="cuda:0", allow_import=True))


def test_a_language_model_is_a_folder_or_generated(tmp_path: Path) -> None:
    kind = SERVERS.registry().get("transformers-serve")
    settings = settings_of(kind)
    kind.check(settings, Need(model="generated/llama:layers=1"))
    with refused("not-from-network", key="model"):
        kind.check(settings, Need(model=str(tmp_path)))
    with refused("not-a-model-folder", key="model"):
        kind.check(settings, Need(model=str(tmp_path), allow_import=True))
    (tmp_path / "config.json").write_text("{}")
    kind.check(settings, Need(model=str(tmp_path), allow_import=True))
    with refused("precision-not-served", key="precision", value="int3"):
        kind.check(settings, Need(model="generated/llama", precision="int3"))


def commands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: Need, **settings: Any) -> list[str]:
    """What would be started; the software itself is not there."""
    kind = SERVERS.registry().get(name)
    monkeypatch.setenv(f"PACELINE_{name.upper().replace('-', '_')}_PYTHON", sys.executable)
    server = kind(settings_of(kind, **settings), need, tmp_path, lambda _: None)
    server.prepare()
    return list(server._command())  # type: ignore[attr-defined]


def test_vllm_and_sglang_are_told_what_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = Need(model="generated/llama", device="cuda:1", precision="bf16")
    for name, options in {
        "vllm": ["--max-num-seqs 4", "--no-enable-prefix-caching", "--gpu-memory-utilization 0.5", "--dtype bfloat16"],
        "sglang": ["--max-running-requests 4", "--disable-radix-cache", "--mem-fraction-static 0.5"],
    }.items():
        (tmp_path / name).mkdir()
        told = " ".join(commands(name, tmp_path / name, monkeypatch, need, max_batch=4, gpu_memory="50%"))
        assert all(option in told for option in [*options, "--host 127.0.0.1", str(tmp_path / name / "model")])


def test_triton_is_told_what_was_set(tmp_path: Path) -> None:
    settings = settings_of(TritonServer, max_batch=4, max_delay="2ms", workers=2, threads=1)
    server = TritonServer(settings, LOCAL, tmp_path, lambda _: None)
    server.prepare()
    config = (tmp_path / "repository" / "model" / "config.pbtxt").read_text()
    assert "max_batch_size: 4" in config
    assert "max_queue_delay_microseconds: 2000" in config
    assert "count: 2 kind: KIND_CPU" in config
    assert 'input [ { name: "vectors" data_type: TYPE_FP32 dims: [ 16 ] } ]' in config
    assert (tmp_path / "repository" / "model" / "1" / "model.onnx").is_file()


@pytest.fixture(scope="module")
def onnx_app() -> ModuleType:
    """The code that runs in other environments, loaded as it is there: as a file, without Paceline."""
    path = Path(_apps.__path__[0]) / "onnx_model.py"
    spec = importlib.util.spec_from_file_location("onnx_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def app_model(onnx_app: ModuleType, tmp_path: Path) -> Any:
    artifact = export(Need(MODEL), "onnx", tmp_path)
    tensors = {
        key: [spec.metadata | {"dtype": spec.dtype.name} for spec in specs]
        for key, specs in (("inputs", artifact.inputs), ("outputs", artifact.outputs))
    }
    return onnx_app.OnnxModel({"model": "m", "path": str(artifact.path), "device": "cpu", "threads": 1} | tensors)


def test_requests_that_run_together_get_their_own_answers(app_model: Any) -> None:
    rows = np.random.default_rng(0).standard_normal((6, 16), np.float32)
    alone = app_model.run({"vectors": rows})["output_0"]
    parts = app_model.run_together([{"vectors": rows[:1]}, {"vectors": rows[1:3]}, {"vectors": rows[3:]}])
    joined = np.concatenate([part["output_0"] for part in parts])
    assert [len(part["output_0"]) for part in parts] == [1, 2, 3]
    np.testing.assert_allclose(joined, alone, rtol=1e-5, atol=1e-6)


def test_the_app_reads_flat_and_nested_data_and_refuses_others(onnx_app: ModuleType, app_model: Any) -> None:
    rows = np.arange(32, dtype=np.float32).reshape(2, 16)
    tensor = {"name": "vectors", "datatype": "FP32", "shape": [2, 16]}
    for data in (rows.ravel().tolist(), rows.tolist()):
        assert np.array_equal(app_model.decode({"inputs": [tensor | {"data": data}]})["vectors"], rows)
    for body in ({}, {"inputs": []}, {"inputs": [tensor]}, {"inputs": [tensor | {"data": [1.0]}]}, {"inputs": 5}):
        with pytest.raises(onnx_app.BadRequest):
            app_model.decode(body)


@pytest.mark.parametrize("path", sorted(Path(_apps.__path__[0]).glob("*.py")), ids=lambda path: path.name)
def test_what_runs_in_other_environments_does_not_need_paceline(path: Path) -> None:
    assert "import paceline" not in path.read_text()
    assert "from paceline" not in path.read_text()

"""Models that are objects: named alike in every run, taken to other processes, refused where that cannot work."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from paceline.api.run import named
from paceline.core.shipping import ship, unship
from paceline.models.sources import check_model, find_model
from paceline.models.sources.factory import FOLDER
from support.refused import refused

pytest.importorskip("cloudpickle", reason="install it with: pip install '.[python]'")


class Net(torch.nn.Module):
    """A layer of so many inputs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def make() -> Net:
    return Net(4)


def squared(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def test_names_are_those_of_classes_and_functions() -> None:
    with named([Net(), Net(4), make, Net, "resnet50"], None, None) as names:
        assert names == ["object:Net", "object:Net-2", "object:make", "object:Net-3", "resnet50"]
        folder = Path(os.environ[FOLDER])
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()
    assert FOLDER not in os.environ


def test_a_module_comes_with_inputs_and_loss() -> None:
    with named([Net()], torch.randn(3, 8), squared) as (name,):
        workload = find_model(name, allow_import=True).build("full")
    assert workload.batch_size == 3
    assert workload.loss_name == "squared"
    assert workload.facts["model_class"].endswith(".Net")
    assert type(workload.module).__name__ == "Net"


def test_a_factory_is_called_where_it_is_measured() -> None:
    with named([make], (torch.randn(2, 4),), None) as (name,):
        workload = find_model(name, allow_import=True).build("full")
    assert workload.module.layer.in_features == 4
    assert workload.loss_name.startswith("the mean of the output")


def test_sizes_of_inputs_may_be_written() -> None:
    with named([Net()], None, None) as (name,):
        assert find_model(name, allow_import=True, inputs="5x8").build("full").batch_size == 5
        with refused("missing-input"):
            find_model(name, allow_import=True)


@pytest.mark.slow
def test_it_is_tried_in_another_process_which_finds_its_class() -> None:
    with named([Net()], (torch.randn(3, 8),), None) as (name,):
        assert check_model(name, is_local=True).is_trainable
    with named([Net(4)], (torch.randn(3, 8),), None) as (name,), refused("failing-model", key="model"):
        check_model(name, is_local=True)  # the same name, another object: nothing is remembered


def test_an_object_that_is_gone_says_how_to_measure_it_again() -> None:
    with refused("object-is-gone", value="object:Net", says=r"paceline\.run"):
        find_model("object:Net", allow_import=True)
    with refused("not-from-network"):
        check_model("object:Net", is_local=False)


def test_a_loss_takes_the_output_alone() -> None:
    for loss, code in ((3, "not-a-function"), (torch.nn.CrossEntropyLoss(), "loss-needs-arguments")):
        with refused(code, key="loss"):
            paceline.run("train", model=Net(), inputs=(torch.randn(3, 8),), loss=loss)  # type: ignore[arg-type]


def test_what_cannot_be_pickled_is_refused() -> None:
    module = Net()
    module.lock = threading.Lock()  # type: ignore[assignment]
    with refused("not-picklable", key="model", says="a function that makes it there"):
        paceline.run("train", model=module, inputs=(torch.randn(3, 8),))


def test_without_cloudpickle_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with refused("missing-dependency", says="pip install cloudpickle"):
        ship(Net(), "model")


def test_a_module_that_others_would_not_find_travels_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that a test runner has imported from its file."""
    path = tmp_path / "mine.py"
    path.write_text("OFFSET = 2\n\ndef add(x):\n    return x + OFFSET\n")
    spec = importlib.util.spec_from_file_location("mine_by_another_name", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mine_by_another_name", module)
    spec.loader.exec_module(module)
    content = ship(module.add, "x")
    monkeypatch.delitem(sys.modules, "mine_by_another_name")
    assert unship(content)(1) == 3


def test_what_is_importable_goes_by_its_name() -> None:
    assert unship(ship(pickle.Pickler, "x")) is pickle.Pickler
    path = list(sys.path)
    assert unship(ship(Path, "x")) is Path
    assert sys.path == path


@pytest.mark.long
def test_a_module_is_trained_in_processes_of_its_own(tmp_path: Path) -> None:
    short: dict[str, Any] = {"steps": 3, "span": 0, "warm_up": "0.1s", "progress": False, "target": "cpu"}
    result = paceline.run("train", model=Net(), inputs=(torch.randn(3, 8),), store=tmp_path / "x.db", **short)
    assert result.ok, result
    assert result.case.facts["model_class"].endswith(".Net")
    assert result.case.facts["parameter_count"] == 18
    assert result.case.facts["loss_function"].startswith("the mean of the output")
    assert result["throughput"].unit == "samples/s"
    after = paceline.run("train", model=Net(), inputs=(torch.randn(3, 8),), store=tmp_path / "x.db", **short)
    assert len(paceline.compare(result, after).rows) == 1  # the same case, although another object

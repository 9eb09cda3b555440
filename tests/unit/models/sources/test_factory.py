"""Models of the user's own, given as code: found in the current folder, called as promised, refused with a reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.core.errors import InputError, MissingDependency
from paceline.models import Workload
from paceline.models.sources import find_model
from paceline.models.sources.factory import load_factory
from support.refused import refused

COMMON = """
import torch
from paceline.core.errors import MissingDependency
from paceline.models import Batch, ModelSpec, Workload

CALLS = []

def make_batch(samples, generator):
    return Batch((torch.randn(samples, 4, generator=generator),), (torch.zeros(samples, dtype=torch.int64),))

def workload(width=4):
    return Workload(torch.nn.Linear(4, width), make_batch, lambda output, batch: output.square().mean())
"""

Write = Callable[[str], str]
_numbers = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module into the current folder and give its name, new for every test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_module(code: str) -> str:
        name = f"users_module_{next(_numbers)}"
        Path(f"{name}.py").write_text(COMMON + code)
        return name

    return write_module


def test_a_factory_without_arguments(write: Write) -> None:
    module = write("def mine():\n    'Four numbers in.'\n    return workload()\n")
    spec = load_factory(f"{module}:mine")
    assert (spec.name, spec.family, spec.summary) == (f"{module}:mine", "user", "Four numbers in.")
    built = spec.build("full")
    batch = built.make_batch(2, torch.Generator())
    assert torch.isfinite(built.loss(built.module(*batch.inputs), batch))


@pytest.mark.parametrize("signature", ["scale", "*, scale", "scale='full'", "**options"])
def test_a_factory_that_takes_the_scale(write: Write, signature: str) -> None:
    used = "options['scale']" if signature == "**options" else "scale"
    module = write(f"def mine({signature}):\n    return workload(8 if {used} == 'full' else 2)\n")
    spec = load_factory(f"{module}:mine")
    widths = [spec.build(scale).module.out_features for scale in ("full", "tiny")]  # type: ignore[arg-type]
    assert widths == [8, 2]


def test_a_factory_that_promises_a_workload_is_not_called_to_be_looked_at(write: Write) -> None:
    module = write("def mine() -> Workload:\n    CALLS.append(1)\n    return workload()\n")
    spec = load_factory(f"{module}:mine")
    calls = __import__(module).CALLS
    assert calls == []
    assert isinstance(spec.build("full"), Workload)
    assert calls == [1]


def test_a_broken_promise_is_refused_when_built(write: Write) -> None:
    module = write("def mine() -> Workload:\n    return 3\n")
    with refused("not-a-model", value=f"{module}:mine"):
        load_factory(f"{module}:mine").build("full")


@pytest.mark.parametrize("code", ["def mine():\n    return SPEC\n", "mine = SPEC\n"])
def test_a_spec_is_taken_as_it_is(write: Write, code: str) -> None:
    spec = "SPEC = ModelSpec('my-net', 'mine', 'custom', 'my own', lambda scale: workload(), batch_size=7)\n"
    found = load_factory(f"{write(spec + code)}:mine")
    assert (found.name, found.batch_size) == ("my-net", 7)


@pytest.mark.parametrize("reference", ["a", "a:", ":b", "a:b:c", "a b:c", "a..b:c", "a:b.c", "../a:b", ""])
def test_a_malformed_reference(reference: str) -> None:
    with refused("malformed-reference", value=reference):
        load_factory(reference)


def test_a_missing_module() -> None:
    with refused("missing-module", says="there is no module 'no_such_package'"):
        load_factory("no_such_package.inner:mine")


def test_a_missing_module_inside_a_package() -> None:
    with refused("missing-module", says=r"'paceline\.no_such_module'"):
        load_factory("paceline.no_such_module:mine")


def test_a_module_that_needs_another(write: Write) -> None:
    with refused("missing-dependency", says="'no_such_dependency'"):
        load_factory(f"{write('import no_such_dependency')}:mine")


@pytest.mark.parametrize(("code", "said"), [("1 / 0", "ZeroDivisionError"), ("raise SystemExit(3)", "SystemExit: 3")])
def test_a_module_that_fails(write: Write, code: str, said: str) -> None:
    with refused("failing-import", says=said):
        load_factory(f"{write(code)}:mine")


def test_a_missing_attribute_names_those_that_exist(write: Write) -> None:
    with refused("missing-attribute", says=r"has no 'yours'; it has .*workload"):
        load_factory(f"{write('')}:yours")


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("mine = 3", "not-a-function", "object of type int"),
        ("def mine(): return torch.nn.Linear(1, 1)", "missing-input", "give --input SIZES"),
        ("def mine(): return torch.nn.Linear(1, 1), 3, 4, 5", "not-a-model", "type Linear, int, int, int"),
        ("def mine(): return torch.nn.Linear(1, 1), [3]", "not-an-input", "not tensors"),
        ("def mine(depth, scale): return workload()", "factory-needs-arguments", "needs depth"),
        ("def mine(): raise OSError('no disk')", "failing-factory", "OSError: no disk"),
    ],
)
def test_a_wrong_factory(write: Write, source: str, code: str, said: str) -> None:
    with refused(code, says=said):
        load_factory(f"{write(source)}:mine")


def test_a_refusal_names_the_parameter_and_keeps_its_cause(write: Write) -> None:
    with pytest.raises(InputError) as caught:
        find_model(f"{write('1 / 0')}:mine", allow_import=True, key="models")
    assert (caught.value.code, caught.value.key) == ("failing-import", "models")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_errors_of_ours_pass_through(write: Write) -> None:
    module = write("def mine(): raise MissingDependency('warpcore', 'install it')")
    with pytest.raises(MissingDependency, match="warpcore"):
        load_factory(f"{module}:mine")


def test_finding_by_name_or_reference(write: Write) -> None:
    module = write("def mine(): return workload()")
    assert find_model("resnet50", allow_import=False).name == "resnet50"
    assert find_model(f"{module}:mine", allow_import=True).name == f"{module}:mine"
    with refused("unknown-model", key="model", value="resnet5O", suggestion="resnet50"):
        find_model("resnet5O", allow_import=True)
    with refused("not-from-network", key="model"):
        find_model(f"{module}:mine", allow_import=False)

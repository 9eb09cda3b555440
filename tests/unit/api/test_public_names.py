"""`import paceline` is a product: its names are pinned, they are typed, and importing it costs next to nothing."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import import_module

import pytest

import paceline

NAMES = [
    "BenchmarkFunction",
    "CaseResult",
    "Comparison",
    "Diagnosis",
    "Figure",
    "InputError",
    "Job",
    "PacelineError",
    "Result",
    "__version__",
    "benchmark",
    "compare",
    "diagnose",
    "load",
    "run",
    "submit",
]
SIGNATURES = {
    "run": ["what", "model", "inputs", "loss", "store", "tags", "progress", "parameters"],
    "load": ["run", "store"],
    "compare": ["reference", "others", "metrics", "all_metrics", "store"],
    "diagnose": ["sources", "rules", "baseline", "store"],
    "submit": ["what", "leader", "token", "tags", "priority", "machines", "parameters"],
    "benchmark": ["function", "name"],
}


def modules_after(code: str) -> set[str]:
    words = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_public_names() -> None:
    assert paceline.__all__ == NAMES
    assert set(NAMES) <= set(dir(paceline))
    for name in NAMES:
        assert getattr(paceline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        paceline.rum  # noqa: B018


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_what_they_take(name: str) -> None:
    assert list(inspect.signature(getattr(paceline, name)).parameters) == SIGNATURES[name]


def test_every_public_name_has_a_docstring() -> None:
    for name in NAMES:
        if name != "__version__":
            assert inspect.getdoc(getattr(paceline, name)), name


def test_importing_it_imports_nothing_that_is_heavy() -> None:
    new = modules_after("import paceline") - modules_after("")
    assert not new & {"numpy", "pydantic", "torch", "sqlalchemy", "click", "rich", "yaml", "jinja2"}
    assert {name for name in new if name.startswith("paceline")} == {"paceline", "paceline.version"}


def test_decorating_a_function_does_not_either() -> None:
    new = modules_after("import paceline\n@paceline.benchmark\ndef f(n: int = 1): ...") - modules_after("")
    assert not new & {"numpy", "pydantic", "torch", "sqlalchemy", "click", "rich", "jinja2"}


def test_load_stays_the_function_when_the_package_of_that_name_is_imported() -> None:
    package = import_module("paceline.load.arrivals")
    assert sys.modules["paceline.load"] is import_module("paceline.load")
    assert package.__name__ == "paceline.load.arrivals"
    assert inspect.isfunction(paceline.load)

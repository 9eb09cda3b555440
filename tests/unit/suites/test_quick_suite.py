"""The suite `quick` shows a figure at once, and leads with models that people know."""

from __future__ import annotations

import pytest

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case, is_of_model
from paceline.core.suite import Here, expand
from paceline.measure import native
from paceline.runner.run import imports_of
from paceline.runner.suite_file import load_suite


def quick(gpus: int) -> list[Case]:
    return expand(load_suite("quick"), BENCHMARKS.registry().get, Here(devices={"cuda": gpus}))


@pytest.mark.parametrize("gpus", [0, 1])
def test_the_first_case_waits_for_no_heavy_import(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(native, "is_possible", lambda: True)
    first = quick(gpus)[0]
    assert imports_of(first) == (BENCHMARKS.get(first.benchmark).__module__,)


@pytest.mark.parametrize("gpus", [0, 1])
def test_it_measures_known_models_and_what_is_under_them(gpus: int) -> None:
    cases = quick(gpus)
    models = {case.parameters["model"] for case in cases if is_of_model(case.category)}
    assert {"resnet50", "gpt2-small"} <= models
    assert {"compute", "memory", "training", "inference", "harness"} <= {case.category for case in cases}


def test_every_case_of_a_suite_says_what_to_import() -> None:
    for name in ("quick", "serving-quick"):
        for case in expand(load_suite(name), BENCHMARKS.registry().get, Here()):
            assert imports_of(case)

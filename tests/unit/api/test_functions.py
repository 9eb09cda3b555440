"""`@paceline.benchmark`: what becomes of a function's parameters, and what is refused."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import paceline
from paceline.core.benchmark import BENCHMARKS
from support.refused import refused

QUICK = {"budget": "0.05s", "warm_up": "0.05s", "progress": False}


@paceline.benchmark
def decode(batch: int = 8, kind: str = "greedy", *, seed: int = 1) -> int:
    """Decodes a batch."""
    return batch * len(kind) * seed


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cloudpickle", reason="install it with: pip install '.[python]'")
    return tmp_path_factory.mktemp("functions") / "results.db"


def test_it_is_still_the_function() -> None:
    assert decode(2, "ab") == 4
    assert (decode.__name__, decode.__doc__, decode.name) == ("decode", "Decodes a batch.", "decode")


def test_its_keywords_are_parameters() -> None:
    fields = decode.plugin.Parameters.model_fields
    assert fields["batch"].annotation is int
    assert fields["batch"].default == 8
    assert decode.plugin.summary == "Decodes a batch."
    with refused("invalid-value", key="batch"):
        decode.plugin.Parameters.read({"batch": "many"})


def test_running_it_times_a_call(store: Path) -> None:
    result = decode.run(batch=[8, 16], store=store, **QUICK)
    assert [case.parameters["batch"] for case in result.cases] == [8, 16]
    assert [case.title for case in result.cases] == [f"decode batch={n} kind=greedy seed=1" for n in (8, 16)]
    figure = result.cases[0]["time"]
    assert figure.unit == "s"
    assert 0 < figure.value < 0.01
    assert result.cases[0].facts["calls_per_sample"] > 1
    with refused("unknown-suite-or-benchmark"):
        paceline.run("decode")
    assert not [name for name in sys.modules if name.startswith("paceline_file_function")]


def test_what_it_refers_to_goes_with_it(store: Path) -> None:
    table = {"a": 3}

    def look(key: str = "a") -> int:
        return table[key]

    assert paceline.run(look, store=store, **QUICK).ok
    failed = paceline.run(look, key="b", store=store, **QUICK)
    assert "KeyError" in failed.case.error


def test_a_redefined_function_is_the_new_one(store: Path) -> None:
    def version() -> None:
        raise ValueError("first")

    assert "first" in paceline.run(version, store=store, **QUICK).case.error

    def version() -> None:  # type: ignore[no-redef]
        raise ValueError("second")

    assert "second" in paceline.run(version, store=store, **QUICK).case.error


def test_the_name_of_another_benchmark_is_refused() -> None:
    @paceline.benchmark
    def gemm() -> None: ...

    with refused("name-taken", value="gemm"):
        gemm.run()
    assert BENCHMARKS.get("gemm").category == "compute"


def test_what_is_not_a_parameter_is_refused() -> None:
    def many(*values: int) -> None: ...
    def taken(budget: float = 1.0) -> None: ...
    def strange(thing: Path = Path(), other: object = None) -> None: ...
    def wrong(thing: threading_lock = None) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with refused("not-a-keyword", value="many"):
        paceline.run(many)
    with refused("name-taken", value="taken"):
        paceline.run(taken)
    assert set(paceline.benchmark(strange).plugin.arguments) == {"thing", "other"}
    assert paceline.benchmark(wrong).plugin.Parameters.read({"thing": 3})
    with refused("not-a-function"):
        paceline.benchmark(lambda: None)
    with refused("not-a-function"):
        paceline.benchmark(Path)


def test_another_name() -> None:
    @paceline.benchmark(name="my-gemm")
    def gemm() -> None: ...

    assert gemm.name == "my-gemm" == gemm.plugin.name


def test_a_module_that_runs_when_it_is_imported_does_not_start_processes_without_end(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported here, where its call measures, and by the process that measures, where another one is refused."""
    settings = f"store={str(store)!r}, budget='0.05s', warm_up='0.05s', progress=False"
    text = f"import paceline\n\ndef work():\n    return 1\n\nRESULT = paceline.run(work, {settings})\n"
    (tmp_path / "unguarded.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert "calls paceline.run" in importlib.import_module("unguarded").RESULT.case.error

"""`paceline explain` as a user types it: what it prints, formats, and what it refuses."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.analysis.compare.sides import MARKS
from paceline.cli.explain import agreement, command
from paceline.core.errors import InputError
from paceline.core.kept_output import FACT, KeptOutput
from paceline.core.record import Measurement, Record, RecordWarning
from paceline.core.subject import StepTrace
from paceline.core.trace_signs import Sign, StepDetails
from paceline.store import open_store
from support.profiled import gpu_spent
from support.records import LOSS, STARTED, STEP_TIME, case, record, run_of

LATER = STARTED + timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    sign = Sign(kind="cast", calls=2, seconds=1e-5, detail="fp32 to fp64", where="model.py:3 (forward)")
    trace = StepTrace(spent=gpu_spent(), details=StepDetails(signs=(sign,)), alternatives=("graph=on",))
    times = [Measurement.of_samples(STEP_TIME, [1e-4] * 5)]
    records = [
        record(case(0, "train", "resnet50 bf16"), times, trace=trace),
        record(case(1, "gemm", "fp32 8192")),
    ]
    path = str(tmp_path / "results.db")
    run = run_of(records)
    with open_store(path) as opened:
        opened.begin(run.run)
        for one in run.records:
            opened.add(one)
        opened.finish(run.run.id)
    return path


def explain(store: str, *words: str) -> Result:
    return CliRunner().invoke(command, [*words, "--store", store])


def test_the_budget_the_kernels_and_the_candidates(store: str) -> None:
    done = explain(store, "last")
    assert done.exit_code == 0, done.output
    for words in ("train resnet50 bf16: of 100 us a step", "launch and host", "unexplained", "1. remove the cast"):
        assert words in done.output
    assert "at model.py:3 (forward)" in done.output
    assert "--graph on" in done.output


def test_data_for_programs_adds_up(store: str) -> None:
    told = json.loads(explain(store, "last", "--json").output)
    assert sum(part["seconds"] for part in told["budget"]) == pytest.approx(told["step_seconds"])
    assert [one["setting"] for one in told["candidates"]] == ["", "graph=on"]
    assert told["candidates"][0]["gain"] == pytest.approx(1e-4 / 9e-5)


def test_the_last_run_is_not_the_one_that_tried_a_setting(store: str) -> None:
    tried = run_of([record(case(0, "train", "resnet50 bf16"))], name="explain graph=on", started_at=LATER).run
    with open_store(store) as opened:
        opened.begin(tried.model_copy(update={"id": "20260315-000000-trial"}))
    assert explain(store, "last").exit_code == 0


@pytest.mark.parametrize("words", ["1", "train", "resnet50 bf16"])
def test_a_case_by_its_number_or_words(store: str, words: str) -> None:
    assert explain(store, "last", words).exit_code == 0


def test_a_case_that_was_not_traced_says_how(store: str) -> None:
    done = explain(store, "last", "2")
    assert isinstance(done.exception, InputError)
    assert "paceline run gemm ... --explain" in done.exception.message


def test_an_unknown_case_lists_those_there_are(store: str) -> None:
    done = explain(store, "last", "bert")
    assert isinstance(done.exception, InputError)
    assert "1: train resnet50 bf16" in done.exception.message


def sides(second: list[float], **more: object) -> list[Record]:
    def one(mark: str, losses: list[float], **said: object) -> Record:
        measured = [Measurement.of_samples(LOSS, losses, statistic="single")] if losses else []
        return record(case(0, "train", f"resnet50 {mark}"), measured, **said)

    return [one(MARKS[0], [2.0, 1.0] if second else []), one(MARKS[1], second, **more)]


def test_whether_a_changed_side_computes_the_same() -> None:
    assert agreement(sides([2.0, 1.01]), "compile=on") == "the first losses differ by at most 1.00%"
    assert agreement(sides([2.0, 1.0]), "batch_size=8") == "not compared: other data"
    said = agreement(sides([], facts={"compared_with_uncompiled": "the output differs by 0.00%"}), "compile=on")
    assert said == "compared with uncompiled, the output differs by 0.00%"
    kept = [{FACT: KeptOutput(count=2, norm=norm, numbers=(0.0, norm)).model_dump()} for norm in (1.0, 0.8)]
    first, second = sides([])
    pair = [first.model_copy(update={"facts": kept[0]}), second.model_copy(update={"facts": kept[1]})]
    assert agreement(pair, "graph=on") == "the output differs by 20.00% of its norm, the norm by 20.00%"
    wrong = RecordWarning(kind="miscompiled", message="a gradient is missing", remedy="use --compile off")
    assert agreement(sides([2.0, 1.0], warnings=[wrong]), "compile=on") == "no: a gradient is missing"
    assert agreement([], "compile=on") == "not compared"

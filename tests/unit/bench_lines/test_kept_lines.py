"""Lines of the bench are kept in a file as they are made, and the same command goes on where the last one ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.scripted import ScriptedClock, ScriptedDevice

ratio = pytest.importorskip("bench.ratio", reason="is found from the repository: python -m pytest")
switches = pytest.importorskip("bench.switches", reason="is found from the repository, and needs torch")

NAMES = ("first", "second", "third")


def made(command: object, *words: str) -> str:
    found = CliRunner().invoke(command, list(words), catch_exceptions=True)  # type: ignore[arg-type]
    return found.output


def test_a_line_is_safe_before_the_next_one_fails_and_not_made_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def lines(wanted: ratio.Wanted) -> Iterator[ratio.Ratio]:
        for name in NAMES:
            if wanted(name):
                asked.append(name)
                if asked == ["first", "second"]:
                    raise RuntimeError("the device was lost")
                yield ratio.Ratio(name, 1.0, ">= 1", True, "of nothing")

    results = tmp_path / "lines.jsonl"
    command = ratio.kept("Lines.", lines)
    made(command, "--results", str(results))
    assert [json.loads(line)["name"] for line in results.read_text().splitlines()] == ["first"]
    assert "(done before)" in made(command, "--results", str(results))
    assert asked == ["first", "second", "second", "third"]


def test_what_there_is_no_time_for_is_named() -> None:
    def lines(wanted: ratio.Wanted) -> Iterator[ratio.Ratio]:
        yield from (ratio.Ratio(name, 1.0, ">= 1", True, "") for name in NAMES if wanted(name))

    assert "left for lack of time: first; third" in made(
        ratio.kept("Lines.", lines), "--seconds", "-1", "--only", "first", "--only", "third"
    )


def test_a_gain_is_that_of_each_sample_and_has_an_interval() -> None:
    clock = ScriptedClock()
    noise = iter([0.99, 1.01] * 10_000)
    slow = switches.Side(lambda: clock.advance(0.4 * next(noise)))
    fast = switches.Side(lambda: clock.advance(0.8), samples=4)
    row = switches.Switched("case", "batch_size=4", "cpu", "a CPU", 2.0)
    found = switches.measured(row, slow, fast, ScriptedDevice(clock), turn=4.0)
    assert found.measured == pytest.approx(2.0, rel=1e-2)
    assert found.low is not None and found.high is not None
    assert found.low < found.measured < found.high < 1.1 * found.low
    assert found.slow == pytest.approx(0.4, rel=1e-2)  # of a step, not of a sample


def test_a_gain_of_nothing_is_near_as_a_factor_only() -> None:
    def switched(predicted: float, measured: float) -> switches.Switched:
        return switches.Switched("case", "x=on", "cpu", "a CPU", predicted, measured, 0.98 * measured, 1.02 * measured)

    assert [switched(1.1, 1.05).is_near, switched(1.1, 1.05).is_near_in_time] == [True, False]
    assert [switched(2.2, 2.0).is_near, switched(2.2, 2.0).is_near_in_time] == [True, True]
    assert not switched(3.0, 2.0).is_near
    # 47 % of a step instead of 60 %: as a factor that is more than 30 % away, as the time that is saved it is not.
    assert [switched(1.89, 2.49).is_near, switched(1.89, 2.49).is_near_in_time] == [False, True]
    assert "near in time saved" in str(switched(1.89, 2.49))
    assert [switched(10.0, 400.0).is_near_in_time, switched(10.0, 4.0).is_near] == [True, False]


def test_a_book_knows_what_was_done_on_the_same_target(tmp_path: Path) -> None:
    path = tmp_path / "book.jsonl"
    book = switches.Book.read(path, "cpu", 60.0)
    book.add(switches.Switched("case", "x=on", "cpu", "a CPU", 2.0, 2.0, 1.9, 2.1))
    book.finish("case")
    again, other = (switches.Book.read(path, target, 60.0) for target in ("cpu", "cuda:0"))
    assert again.has("case", "x=on")
    assert again.finished == {"case"}
    assert not other.rows
    assert not other.finished

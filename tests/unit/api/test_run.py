"""`paceline.run` and what it returns, with commands and functions, which need no torch."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

import paceline
from paceline.api.progress import listener_for
from paceline.core.interrupt import interrupts_caught
from paceline.runner.run import Listener
from support.refused import refused

SHORT = {"steps": 3, "progress": False}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api") / "results.db"


@pytest.fixture(scope="module")
def swept(store: Path) -> paceline.Result:
    return paceline.run("command", exec="echo {value}", value=["a", "b"], store=store, tags="swept", **SHORT)


@pytest.fixture(scope="module")
def single(store: Path) -> paceline.Result:
    return paceline.run("command", exec="true", store=store, tags=["single", "x"], **SHORT)


def test_a_result_is_the_metrics_of_its_case(single: paceline.Result) -> None:
    assert list(single) == ["time", "user_time", "system_time", "peak_memory"]
    figure = single["time"]
    assert figure.unit == "s"
    assert len(figure.samples) == 3
    assert figure.value == sorted(figure.samples)[1] == float(figure)
    assert single["peak_memory"].interval is None
    assert single.ok
    assert single.case.headline == figure
    assert figure.warnings == single.case.warnings
    assert repr(single).splitlines()[0] == f"command, run {single.run_id} (single, x)"
    assert "✓ command true: " in repr(single)


def test_lists_make_a_sweep(swept: paceline.Result) -> None:
    assert [case.parameters["value"] for case in swept.cases] == ["a", "b"]
    assert [case.title for case in swept.cases] == ["command echo a", "command echo b"]
    with pytest.raises(KeyError, match=r"has 2 cases: take one of result\.cases"):
        swept["time"]
    assert swept.cases[0]["time"].value > 0
    assert swept
    assert list(swept) == []


def test_an_unknown_metric_names_the_nearest(single: paceline.Result) -> None:
    with pytest.raises(KeyError, match="did you mean 'user_time'"):
        single["usr_time"]


def test_what_was_run_can_be_loaded(store: Path, single: paceline.Result, swept: paceline.Result) -> None:
    assert repr(paceline.load(swept.run_id, store=store)) == repr(swept)
    assert paceline.load("single", store=store)["time"].samples == single["time"].samples
    assert paceline.load(store=store).run_id in (single.run_id, swept.run_id)
    with refused("unknown-run", suggestion="single"):
        paceline.load("singel", store=store)


def test_the_record_has_a_command_that_does_the_same(swept: paceline.Result) -> None:
    words = swept.records.run.command
    assert words == ["paceline", "run", "command", "--exec", "echo {value}", "--value", "a,b", "--steps", "3"]


def test_a_case_that_fails_raises_nothing_and_says_why(store: Path) -> None:
    result = paceline.run("command", exec="false", store=store, **SHORT)
    assert not result.ok
    assert not result
    assert "exit code 1" in result.case.error
    assert "✗ command false: failed" in repr(result)
    with pytest.raises(KeyError, match="no figures: failed"):
        result["time"]


def test_what_is_wrong_with_the_arguments_raises() -> None:
    with refused("unknown-suite-or-benchmark", suggestion="command"):
        paceline.run("comand")
    with refused("unknown-key", key="exek", suggestion="exec", says="^unknown key"):
        paceline.run("command", exek="true")
    with refused("not-a-parameter", key="exec", value="object"):
        paceline.run("command", exec=object())
    with refused("invalid-tag", key="tags"):
        paceline.run("command", exec="true", tags=["\n"])
    with refused("inputs-without-object", key="inputs"):
        paceline.run("inference", inputs=(1,))
    with refused("loss-without-object", key="loss"):
        paceline.run("train", model="resnet50", loss=print)
    with refused("not-a-suite"):
        paceline.run(3)  # type: ignore[arg-type]


def test_a_suite_file_and_a_file_of_benchmarks(store: Path, tmp_path: Path) -> None:
    suite = tmp_path / "mine.yaml"
    suite.write_text("name: mine\ncases:\n  - benchmark: command\n    exec: 'true'\n    steps: 2\n")
    result = paceline.run(suite, store=store, progress=False)
    assert (result.name, result["time"].samples.__len__()) == ("mine", 2)
    file = tmp_path / "bench.py"
    file.write_text("import paceline\n\n@paceline.benchmark\ndef add_up(n: int = 10):\n    return sum(range(n))\n")
    result = paceline.run(file, n=[5, 6], store=store, budget="0.05s", warm_up="0.05s", progress=False)
    assert [case.title for case in result.cases] == ["add-up n=5", "add-up n=6"]
    assert "PACELINE_PLUGIN_FILE" not in os.environ


def test_reports_and_charts(single: paceline.Result, swept: paceline.Result, tmp_path: Path) -> None:
    assert single.run_id in single.report(tmp_path / "report.html").read_text()
    assert single.report(tmp_path / "report.md").read_text().startswith("# command")
    with refused("unknown-format", key="path"):
        single.report(tmp_path / "report.txt")
    with refused("cannot-write", key="path"):
        single.report("/proc/report.html")
    svg = swept.chart()._repr_svg_()
    assert svg.startswith("<svg")
    assert svg.count("command echo") >= 2
    assert swept.chart().save(tmp_path / "bars.svg").read_text() == svg


def test_a_notebook_shows_figures_intervals_and_warnings_and_no_markup_of_a_title(store: Path) -> None:
    result = paceline.run("command", exec="echo '<b>&'", store=store, **SHORT)
    page = result._repr_html_()
    assert "<table>" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    rows = [re.findall(r"<t[hd]", row) for row in re.findall(r"<tr>.*?</tr>", page)]
    assert len({len(row) for row in rows}) == 1, "a cell for each header"
    for warning in result.case.warnings:
        assert warning.kind in page
    assert result.run_id in page


@pytest.mark.skipif(importlib.util.find_spec("pandas") is not None, reason="pandas is installed")
def test_without_pandas_a_data_frame_says_what_to_install(single: paceline.Result) -> None:
    with refused("missing-dependency", key="pandas"):
        single.to_dataframe()


def test_a_data_frame_has_a_row_for_each_measurement(swept: paceline.Result) -> None:
    pandas = pytest.importorskip("pandas", reason="install it with: pip install pandas")
    frame = swept.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    times = frame[frame["metric"] == "time"]
    assert list(times["value"]) == [case["time"].value for case in swept.cases]
    assert {"low", "high", "unit", "exec", "steps", "warnings"} <= set(frame.columns)


def test_progress_is_lines_or_silence(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paceline.run("command", exec="true", steps=2, store=store)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("suite command, 1 of 1 cases to measure")
    assert second.startswith("[1/1] ✓ command true: ")
    paceline.run("command", exec="true", store=store, **SHORT)
    assert capsys.readouterr().out == ""


class _Shell:
    kernel = object()


class _Display:
    """What IPython's display does, kept."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, *_: object, **__: object) -> _Display:
        return self

    def update(self, data: dict[str, str], **_: object) -> None:
        self.said.append(data["text/plain"])


def test_in_a_notebook_one_line_changes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _Display()
    module = type(sys)("IPython.display")
    vars(module)["display"] = shown
    ipython = type(sys)("IPython")
    vars(ipython).update(get_ipython=_Shell, display=module)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    paceline.run("command", exec="true", steps=2, store=store)
    assert shown.said[0] == "command: 1 cases to measure"
    assert shown.said[-1].startswith("[1/1] command true: ")


def test_no_progress_is_nobody() -> None:
    assert type(listener_for(False)) is Listener


def test_handlers_of_signals_are_given_back() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with interrupts_caught():
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_thread_may_measure_too(store: Path) -> None:
    results: list[paceline.Result] = []
    thread = threading.Thread(target=lambda: results.append(paceline.run("command", exec="true", store=store, **SHORT)))
    thread.start()
    thread.join()
    assert results[0].ok

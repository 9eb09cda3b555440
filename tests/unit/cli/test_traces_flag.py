"""`--profile [DIR]`: which word is its folder, which cases are traced, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.api.running import folder_of, refuse_if_none_can, with_traces
from paceline.cli._running import joined_value
from paceline.core.case import Case
from support.cli import Sandbox
from support.refused import refused


def joined(*words: str) -> list[str]:
    flags = {"--model"}

    def names_what(rest: object) -> bool:
        words = list(rest)  # type: ignore[call-overload]
        return any(not word.startswith("-") and words[i - 1] not in flags for i, word in enumerate(words))

    return joined_value(words, names_what)


def case(index: int, benchmark: str, **parameters: str) -> Case:
    return Case(index=index, benchmark=benchmark, parameters=parameters, title=f"{parameters.get('model')} fp32")


def test_the_word_after_the_flag_is_a_folder_if_another_says_what_to_run() -> None:
    assert joined("train", "--profile", "out", "--model", "x") == ["train", "--profile=out", "--model", "x"]
    assert joined("--profile", "out", "train") == ["--profile=out", "train"]
    assert joined("train", "--profile") == ["train", "--profile="]
    assert joined("train", "--profile", "--model", "x") == ["train", "--profile=", "--model", "x"]


def test_else_it_is_what_to_run_unless_it_is_a_path() -> None:
    assert joined("--profile", "train", "--model", "x") == ["--profile=", "train", "--model", "x"]
    assert joined("--profile", "suites/mine.yaml") == ["--profile=", "suites/mine.yaml"]
    assert joined("--profile", "./out") == ["--profile=./out"]


def test_other_words_stay_as_they_are() -> None:
    assert joined("train", "--profile=out") == ["train", "--profile=out"]
    assert joined("train") == ["train"]


def test_each_model_case_has_a_file_of_its_own(tmp_path: Path) -> None:
    cases = [case(0, "gemm"), case(1, "train", model="a/b:c d"), case(2, "inference", model="resnet50")]
    traced = with_traces(cases, tmp_path / "run")
    assert [one.trace.rpartition("/")[2] for one in traced] == [
        "",
        "02-train-a-b-c-d-fp32.json.gz",
        "03-inference-resnet50-fp32.json.gz",
    ]
    assert [one.key for one in traced] == [one.key for one in cases]  # traced or not, it is the same case


def test_the_home_folder_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (traced,) = with_traces([case(0, "train", model="resnet50")], tmp_path / "traces")
    assert traced.trace == "~/traces/01-train-resnet50-fp32.json.gz"


def test_a_run_that_cannot_be_traced_is_refused() -> None:
    with refused("not-traceable", key="--profile", suggestion="paceline run inference --model resnet50 --profile"):
        refuse_if_none_can([case(0, "serve", model="resnet50")])
    with refused("not-traceable", value="gemm", suggestion=None):
        refuse_if_none_can([case(0, "gemm")])
    refuse_if_none_can([case(0, "gemm"), case(1, "train", model="resnet50")])


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert folder_of(None) is None
    assert folder_of("") == tmp_path / "paceline" / "traces"
    assert folder_of("mine") == tmp_path / "mine"
    (tmp_path / "file").write_text("")
    with refused("cannot-make-folder", key="--profile", value=str(tmp_path / "file/below")):
        folder_of("file/below")


@pytest.mark.parametrize("words", [["--explain"], ["--profile="], ["--explain", "--dry-run"]])
def test_a_run_that_cannot_be_traced_is_refused_by_the_flag_that_was_given(words: list[str], sandbox: Sandbox) -> None:
    cases = "cases: [{benchmark: attention}, {benchmark: kv-copy}, {benchmark: gemm}]"
    (sandbox.work / "suite.yaml").write_text(f"name: three\n{cases}\n", encoding="utf-8")
    told = sandbox.ask("run", "./suite.yaml", "--set", "target=cpu", *words)
    flag = words[0].rstrip("=")
    assert told.returncode == 2
    assert f"{flag} traces the steps of a model, and attention, kv-copy and gemm have none" in told.stderr

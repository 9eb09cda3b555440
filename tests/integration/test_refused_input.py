"""Input that cannot be meant is refused with one line that says what is right, and nothing is half-stored."""

from __future__ import annotations

import pytest

from support.cli import Sandbox

NAP = {"benchmark": "nap"}


def assert_refused(sandbox: Sandbox, *arguments: str, says: tuple[str, ...]) -> None:
    done = sandbox.ask(*arguments, "--no-report")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("paceline: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for words in says:
        assert words in done.stderr
    assert done.stdout == ""
    assert not sandbox.store.exists()
    assert sandbox.left_behind() == []


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (
            {"benchmark": "nap", "duratoin": "1s"},
            ("case 2 (nap): unknown key 'duratoin'", "did you mean 'duration'?"),
        ),
        ({"benchmark": "nap", "time_out": "1s"}, ("unknown key 'time_out'", "did you mean 'timeout'?")),
        ({"benchmark": "nop"}, ("unknown benchmark 'nop'", "did you mean 'nap'?")),
        ({"benchmrk": "nap"}, ("'benchmark' is missing", "by 'benchmrk'")),
        ({"benchmark": "train", "model": "gpt2-smal"}, ("unknown model 'gpt2-smal'", "did you mean 'gpt2-small'?")),
        ({"benchmark": "train", "model": "lstm", "precision": "bf61"}, ("'precision'", "did you mean 'bf16'?")),
        ({"benchmark": "nap", "duration": "3 parsecs"}, ("'duration'", "unknown unit 'parsecs'", "ms")),
        ({"benchmark": "nap", "timeout": "soon"}, ("'timeout'", "'soon'", "30s")),
        ({"benchmark": "nap", "steps": 0}, ("'steps'", "greater than or equal to 1")),
        ({"benchmark": "nap", "ranks": 2}, ("'nap' runs on one rank", "ranks = 2")),
        ({"benchmark": "nap", "target": "gpu"}, ("'gpu' is not a target", "cuda:0")),
        ({"benchmark": "broken"}, ("'broken' is disabled", "licence has run out")),
    ],
    ids=lambda value: "-".join(map(str, value.values())).replace(" ", "_") if isinstance(value, dict) else "",
)
def test_a_mistake_in_one_case_refuses_the_suite_before_anything_runs(
    sandbox: Sandbox, case: dict[str, object], says: tuple[str, ...]
) -> None:
    assert_refused(sandbox, "run", sandbox.suite(NAP, case), says=says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ("empty",)),
        ("name: x\ncases: []\n", ("has no cases", "- benchmark: NAME")),
        ("- benchmark: nap\n", ("a suite is a mapping", "a list")),
        ("just words\n", ("a suite is a mapping", "a str")),
        ("name: x\ncase:\n  - benchmark: nap\n", ("unknown key 'case'", "did you mean 'cases'?")),
        ("cases:\n  - benchmark: nap\n", ("'name' is missing",)),
        ("name: x\ncases: nap\n", ("must be a list of mappings",)),
        ("name: x\ncases:\n  - benchmark: nap\n    steps: 1\n    steps: 2\n", ("line 5", "duplicate key 'steps'")),
        ("name: x\ncases:\n  - {benchmark: nap\n", ("line", "not valid YAML")),
        ("name: !!python/object/apply:os.getpid []\ncases: []\n", ("line 1", "write plain YAML")),
        ("name: x\ncases:\n\t- benchmark: nap\n", ("line 3", "with spaces, not with tabs")),
        (f"name: x\ncases: {'[' * 5000}\n", ("line 2", "nested more than 30 deep")),
    ],
    ids=["empty", "no-cases", "list", "words", "typo", "no-name", "no-list", "twice", "invalid", "code", "tab", "deep"],
)
def test_a_file_that_is_no_suite_is_refused(sandbox: Sandbox, text: str, says: tuple[str, ...]) -> None:
    assert_refused(sandbox, "run", sandbox.write("my.yaml", text), says=("my.yaml", *says))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing.yaml",), ("there is no suite file 'nothing.yaml'",)),
        (("trian",), ("'trian'", "did you mean 'train'?")),
        (("quikc",), ("'quikc'", "did you mean 'quick'?")),
        (("train", "--model", "restnet50"), ("unknown model 'restnet50'", "did you mean 'resnet50'?")),
        (("train", "--modle", "lstm"), ("'--modle'", "did you mean '--model'?")),
        (("train",), ("'model' is missing",)),
        (("nap", "--duration"), ("'duration'", "'--no-report' is not a duration")),
        (("nap", "--duration", "1fortnight"), ("unknown unit 'fortnight'",)),
        (("nap", "--set", "duraton=1s"), ("duraton", "did you mean 'duration'?")),
        (("nap", "--set", "duration"), ("key=value",)),
        (("nap", "crash"), ("unexpected extra argument", "crash")),
        (("train", "--model", "lstm", "--ranks", "two"), ("'ranks'", "whole number")),
        (("nap", "--retry-failed"), ("--resume",)),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_on_the_command_line_is_refused(
    sandbox: Sandbox, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    assert_refused(sandbox, "run", *arguments, says=says)


def test_resuming_a_run_that_nobody_knows_is_refused(sandbox: Sandbox) -> None:
    assert sandbox.ask("run", "nap", "--no-report").returncode == 0
    known = sandbox.load().run.id
    done = sandbox.ask("run", "--resume", known[:-1] + "x", "--no-report")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"paceline: unknown run '{known[:-1]}x': did you mean '{known}'?"]

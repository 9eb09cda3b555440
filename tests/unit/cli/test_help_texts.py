"""What `--help` and `show` say of parameters: units, allowed values, and no flag with two meanings."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from paceline.cli.main import paceline
from paceline.cli.run import command as run_command
from paceline.core.benchmark import BENCHMARKS
from paceline.core.suite import CaseKeys

PYTHON = re.compile(r"\b(None|True|False)\b|\w+\(\w+=|PydanticUndefined|<class|\[default:? \d+\.0\]")


def help_of(*words: str) -> str:
    answer = CliRunner().invoke(paceline, [*words], terminal_width=200)
    assert answer.exit_code == 0, answer.output
    return answer.output


@pytest.mark.parametrize("name", sorted(BENCHMARKS.registry().entries))
def test_no_text_of_a_benchmark_shows_how_python_writes_values(name: str) -> None:
    for text in (help_of("show", name), help_of("run", name, "--help")):
        assert PYTHON.search(text) is None, PYTHON.search(text)


def test_defaults_have_their_unit_and_choices_are_listed() -> None:
    shown = help_of("show", "train")
    assert "at most [default 10 s; duration, more than 0]" in shown
    assert "[default adamw; one of adamw, sgd]" in shown
    asked = help_of("run", "disk", "--help")
    assert "--budget DURATION" in asked
    assert "[default: 3 s; more than 0]" in asked
    assert "[default: 256 MiB; at least 1 MiB]" in asked


def test_a_choice_that_may_be_left_out_is_listed_as_well() -> None:
    assert "--wire kserve-json|kserve-binary" in help_of("run", "serve", "--help")


@pytest.mark.parametrize("name", sorted(BENCHMARKS.registry().entries))
def test_no_parameter_takes_the_name_of_a_flag_of_run(name: str) -> None:
    flags = {flag for option in run_command.params if isinstance(option, click.Option) for flag in option.opts}
    parameters = {f"--{key.replace('_', '-')}" for key in BENCHMARKS.get(name).Parameters.model_fields}
    ours = {f"--{key.replace('_', '-')}" for key in CaseKeys.model_fields}
    assert not parameters & (flags | ours)


def test_hosts_of_a_suite_are_those_that_measure() -> None:
    answer = CliRunner().invoke(paceline, ["run", "fabric-check", "--hosts", "localhost", "--dry-run"])
    assert answer.exit_code == 0, answer.output
    assert "collective" in answer.output


def test_the_earlier_flag_for_another_host_is_answered_with_its_name_now() -> None:
    answer = CliRunner().invoke(paceline, ["run", "tcp", "--peer", "10.0.0.2", "--dry-run"])
    assert "another host is named with --remote-host" in str(answer.exception)

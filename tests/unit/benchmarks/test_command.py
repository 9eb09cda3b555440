"""Any command is timed with the same statistics; what cannot be started, or fails, is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks.command import Command, CommandParameters
from paceline.cli._flags import flags_of, read_flags
from paceline.core.benchmark import BENCHMARKS, Context
from paceline.core.case import Case
from paceline.core.errors import CaseError
from paceline.core.network import is_closed, rule_of
from paceline.core.record import Result
from support.refused import refused


def case() -> Case:
    return Case(index=0, benchmark="command", parameters={}, title="", target="cpu")


def measure(**parameters: Any) -> Result:
    return Command().measure(CommandParameters(**parameters), Context(case()))


def test_every_run_is_a_sample_and_the_first_is_not(tmp_path: Path) -> None:
    runs, prepared = tmp_path / "runs", tmp_path / "prepared"
    result = measure(exec=f"echo x >> {runs}", prepare=f"echo x >> {prepared}", steps=5)
    time, user, system, memory = result.measurements
    assert [one.metric.name for one in result.measurements] == ["time", "user_time", "system_time", "peak_memory"]
    assert (len(time.samples), len(user.samples), len(system.samples)) == (5, 5, 5)
    assert min(time.samples) > 0 < memory.value
    assert len(runs.read_text().split()) == len(prepared.read_text().split()) == 6
    assert "by way of /bin/sh" in result.facts["timing"]


def test_a_plain_command_needs_no_shell() -> None:
    assert "without a shell" in measure(exec="true --x '1 2'", steps=1).facts["timing"]


def test_a_value_takes_its_place(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = measure(exec=f"echo {{value}} > {out}", value="16", steps=1)
    assert out.read_text() == "16\n"
    assert result.facts["command"] == f"echo 16 > {out}"


def test_a_command_that_fails_ends_the_case_with_its_last_words() -> None:
    with pytest.raises(CaseError, match="exit code 3") as caught:
        measure(exec="echo no disk >&2; exit 3", steps=1)
    assert caught.value.detail == "no disk"
    assert measure(exec="exit 3;", steps=2, ignore_failure=True).facts["exit_codes"] == [3]


@pytest.mark.parametrize(
    ("parameters", "code", "said"),
    [
        ({"exec": "no-such-program --x"}, "no-such-program", "there is no such program"),
        ({"exec": "/etc/passwd"}, "no-such-program", r"chmod \+x"),
        ({"exec": "echo 'x"}, "not-a-command", "No closing quotation"),
        ({"exec": "true", "value": "8"}, "value-without-place", "write {value}"),
        ({"exec": "echo {value}"}, "value-without-place", "--value 8,16"),
        ({"exec": "true", "prepare": "no-such-program"}, "no-such-program", "no such program"),
    ],
)
def test_a_wrong_command_is_refused_before_it_runs(parameters: dict[str, str], code: str, said: str) -> None:
    with refused(code, says=said):
        Command.check(CommandParameters(**parameters), case())


def test_commas_belong_to_the_command_and_repetition_compares() -> None:
    flags = {flag.name for flag in flags_of(Command.Parameters.model_fields)}
    assert {"parameter__exec__whole", "parameter__value"} <= flags
    given = {"parameter__exec__whole": ("./x --sizes 1,2", "./y"), "parameter__value": ("8,16",)}
    assert read_flags(given) == {"exec": ["./x --sizes 1,2", "./y"], "value": ["8", "16"]}


def test_the_network_runs_no_command() -> None:
    for name in ("exec", "prepare", "value"):
        field = CommandParameters.model_fields[name]
        rule = rule_of(field)
        assert not is_closed(field.annotation) and (rule is None or rule.check is None)
    assert BENCHMARKS.get("command") is Command

"""How the values of flags are read."""

from __future__ import annotations

import pytest

from paceline.benchmarks.serving.serve import Serve
from paceline.cli._flags import flags_of, read_value
from paceline.cli.run import command as run_command
from paceline.core.errors import InputError


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("64", "64"),
        ("64,128", ["64", "128"]),
        ("a, b", ["a", "b"]),
        ("generated/fc:layers=2,width=64", "generated/fc:layers=2,width=64"),
        ("resnet50,generated/fc:layers=2, width=64,lstm", ["resnet50", "generated/fc:layers=2, width=64", "lstm"]),
        ("generated/fc,generated/fc:width=8", ["generated/fc", "generated/fc:width=8"]),
        ("uniform(1, 8),uniform(1, 4)", ["uniform(1, 8)", "uniform(1, 4)"]),
        ("p99=50ms,p99.9=80ms", "p99=50ms,p99.9=80ms"),
        ("[1, 2]", [1, 2]),
    ],
)
def test_a_comma_parts_values_unless_it_is_within_one(text: str, read: object) -> None:
    assert read_value([text]) == read


@pytest.mark.parametrize(
    ("words", "known", "unknown"),
    [
        ([], "--server.engine", "--server.model"),
        (["--server.kind", "url"], "--server.model", "--server.engine"),
        (["--server.kind=url"], "--server.model", "--server.engine"),
        (["--set", "server.kind=url"], "--server.model", "--server.engine"),
        (["--server.kind", "[url, embedded]"], "--server.model", "--server.nothing"),
    ],
)
def test_the_flags_of_a_server_are_those_of_the_one_that_is_named(words: list[str], known: str, unknown: str) -> None:
    flags = {flag for option in flags_of(Serve.Parameters.model_fields, words=words) for flag in option.opts}
    assert known in flags
    assert unknown not in flags


def test_what_is_empty_as_an_unset_variable_is_no_default_suite() -> None:
    with pytest.raises(InputError, match="unknown suite or benchmark ''"):
        run_command.make_context("run", ["", "--dry-run"])


@pytest.mark.parametrize(
    ("words", "is_on"),
    [(["--phases", "true"], True), (["--phases", "false"], False), (["--phases=false"], False), (["--phases"], True)],
)
def test_a_switch_may_have_its_value_as_in_a_file(words: list[str], is_on: bool) -> None:
    for order in (["train", "--model", "resnet18", *words], [*words, "train", "--model", "resnet18"]):
        params = run_command.make_context("run", [*order, "--dry-run"]).params
        assert [value for name, value in params.items() if name.endswith("phases")] == [is_on]
        assert params["what"] == "train"

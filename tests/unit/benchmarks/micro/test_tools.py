"""Programs of others: how they failed is said in words, and what they said until then is not lost."""

from __future__ import annotations

from functools import partial

import pytest

from paceline.benchmarks._micro.tools import ToolError, run_tool


@pytest.mark.parametrize("run", [partial(run_tool, timeout=60), partial(run_tool, on_line=print)])
def test_a_program_that_a_signal_ended_says_which(run) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ToolError, match=r"sh was ended by SIGKILL.*--retry-failed"):
        run(["sh", "-c", "kill -9 $$"])


@pytest.mark.parametrize("run", [partial(run_tool, timeout=60), partial(run_tool, on_line=print)])
def test_a_failure_carries_what_was_said(run) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ToolError, match="sh ended with exit code 3: why") as caught:
        run(["sh", "-c", "echo out; echo why >&2; exit 3"])
    assert caught.value.written is not None
    assert caught.value.written.output == "out\n"


def test_lines_are_heard_as_they_come() -> None:
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line)
        if len(heard) == 2:
            raise RuntimeError("heard enough")

    with pytest.raises(RuntimeError, match="heard enough"):  # and it did not wait for the end
        run_tool(["sh", "-c", "echo one; echo two; exec sleep 600"], on_line=hear)
    assert heard == ["one\n", "two\n"]


def test_a_program_that_is_none_is_an_error_in_words() -> None:
    with pytest.raises(ToolError, match=r"cannot be started: No such file"):
        run_tool(["/no/such/program"], on_line=print)


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(ToolError, match="sleep did not end within 0 s"):
        run_tool(["sleep", "600"], timeout=0.2)

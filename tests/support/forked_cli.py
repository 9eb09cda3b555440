"""A process that has imported Paceline and answers each line of its input with a copy of itself that runs a command.

Importing takes longer than most commands, so that tests of what a command says have it done once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

from paceline.cli.main import Verbs, main, paceline


def import_all() -> None:
    """Every verb, and everything that is registered."""
    assert isinstance(paceline, Verbs)
    context = paceline.make_context("paceline", [], resilient_parsing=True)
    for verb in paceline.list_commands(context):
        paceline.get_command(context, verb)
    with contextlib.redirect_stdout(io.StringIO()):
        paceline.main(["list"], standalone_mode=False)


def answer_all() -> dict[str, Any]:
    """Returns in each copy, with what is asked of it; the first process ends with its input."""
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        copy = os.fork()
        if copy == 0:
            return asked
        print(copy, flush=True)
        _, status = os.waitpid(copy, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)


def become(asked: dict[str, Any]) -> None:
    """The process that would have been started: its streams, its environment, its folder and its arguments."""
    for number, path in enumerate((os.devnull, asked["stdout"], asked["stderr"])):
        stream = os.open(path, os.O_RDWR)
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    os.setsid()
    sys.path.insert(0, asked["folder"])
    sys.argv = ["paceline", *asked["arguments"]]


if __name__ == "__main__":
    import_all()
    become(answer_all())
    main()

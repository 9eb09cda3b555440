"""The entry point: finds the verbs in this folder and imports only the one that was typed."""

from __future__ import annotations

import ast
import atexit
import gc
import importlib
import io
import os
import stat
import sys
from pathlib import Path
from typing import Any

import click

from paceline.core.errors import PacelineError, nearest
from paceline.core.registry import Kind
from paceline.version import VERSION

_FOLDER = Path(__file__).parent
_ORDER = (
    *("run", "list", "show", "machine", "doctor", "results", "report"),
    *("compare", "recommend", "leaderboard", "baseline", "diagnose", "select", "plan", "simulate"),
)

_BRIEF = ("results", "report", "compare", "recommend", "leaderboard", "baseline", "diagnose")  # many objects, seconds


_FOLLOWING = "logs"  # goes on for as long as somebody reads it

VERBS: Kind[click.Command] = Kind("verb", "cli", click.Command, key=lambda command: str(command.name))


class Verbs(click.Group):
    """Every module of this folder that is not a helper is a verb; its first docstring line is the verb's help.

    Others add theirs as click commands in their plug-in.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        verbs = {path.stem for path in _FOLDER.glob("*.py") if not path.stem.startswith("_") and path.stem != "main"}
        ours = [verb for verb in _ORDER if verb in verbs] + sorted(verbs.difference(_ORDER))
        return ours + sorted(VERBS.of_others().entries.keys() - verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            guess = nearest(cmd_name, self.list_commands(ctx))
            ctx.fail(f"no such verb '{cmd_name}'" + (f": did you mean '{guess}'?" if guess else ""))
        if cmd_name in VERBS.of_others().entries and not (_FOLDER / f"{cmd_name}.py").exists():
            return VERBS.of_others().get(cmd_name)
        command: click.Command = importlib.import_module(f"paceline.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        helps = []
        for verb in self.list_commands(ctx):
            path = _FOLDER / f"{verb}.py"
            if path.exists():  # ours are read without importing them
                doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
                helps.append((verb, doc.partition("\n")[0]))
            else:
                helps.append((verb, VERBS.of_others().get(verb).get_short_help_str(80)))
        with formatter.section("Verbs"):
            formatter.write_dl(helps)


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="paceline")
def paceline() -> None:
    """Measure deep learning, from one kernel to a whole cluster.

    \b
    paceline run                         the default suite on this machine
    paceline run train --model resnet50 --precision bf16
    paceline run my-suite.yaml --set batch_size=64
    """


def main() -> None:
    """Run the command line; bad input ends with one clear message and exit code 2."""
    # Write nowhere if the caller closed an output, and never fail because of its encoding.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 -- for as long as the process lives
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")
            if sys.argv[1:2] != [_FOLLOWING]:
                setattr(sys, name, _without_broken_pipes(stream))
    if sys.argv[1:2] and sys.argv[1] in _BRIEF:
        gc.disable()  # the process is over before garbage could matter
        atexit.register(gc.freeze)  # otherwise the interpreter goes through all objects once more before it ends
    try:
        code = paceline.main(prog_name="paceline", standalone_mode=False)
    except PacelineError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except SystemExit as ending:  # click's own way to say that the reader of a pipe is gone
        pacified = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")
        sys.exit(0 if pacified else ending.code)
    except OSError as error:
        if error.filename is not None:
            raise
        _fail(f"the output cannot be written: {error.strerror}", 1)
    sys.exit(code if isinstance(code, int) else 0)


class _Pipe(io.FileIO):
    """A pipe whose reader may leave, as `head` does: what is written from then on goes nowhere."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def _without_broken_pipes(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same stream, if it is a pipe: a command goes on to its verdict, whoever reads what it prints."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return stream
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _fail(message: str, code: int) -> None:
    from paceline.report.text import clean  # it may repeat what a case or another program wrote

    click.echo(f"paceline: {clean(message)}", err=True)
    sys.exit(code)

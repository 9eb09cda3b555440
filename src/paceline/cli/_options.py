"""What several verbs share: output formats and targets, how values are read, and names that a shell completes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from paceline.core.errors import InputError, PacelineError
from paceline.core.files import write_atomic
from paceline.core.quantity import parse_duration

if TYPE_CHECKING:
    from paceline.report.document import Document


Value = TypeVar("Value")

FORMATS = {
    "html": "A self-contained page.",
    "md": "Markdown.",
    "csv": "The figures, one row each.",
    "json": "For programs.",
    "png": "The chart as a picture.",
}
FILES = ("html", "png", "xlsx")  # formats that are not for a terminal or a pipe

price_option = click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="[MACHINE=]PRICE",
    help="Of an hour of a GPU, or of a machine: '2.5 USD/h', or an instance such as c7g.large.",
)


def check_labels(labels: Iterable[str]) -> None:
    """Refuse a label that no job could ask for."""
    if bad := [label for label in labels if not label.strip() or "," in label]:
        message = f"--label {bad[0]!r}: a label is one word without commas"
        raise InputError("invalid-label", message, key="--label", value=bad[0])


@dataclass(frozen=True)
class Answer:
    """How the user wants the answer."""

    kind: str | None  # the format; None is the terminal
    output: str | None  # the file to write

    def give(self, document: Document, name: str, data: Mapping[str, Callable[[], str | bytes]]) -> None:
        """Show the document, or write it; `data` makes the formats for programs, by name."""
        if self.kind is None:
            from paceline.report.render import terminal

            terminal.show(document)
            return
        if self.kind in data:
            content = data[self.kind]()
        else:
            from paceline.report.charts import draw_first
            from paceline.report.render import html, markdown

            if self.kind == "png":
                content = draw_first(document.charts)
            else:
                content = {"html": html, "md": markdown}[self.kind].render(document)
        write(content, self.output or (f"{name}.{self.kind}" if self.kind in FILES else "-"))


def format_options(
    formats: dict[str, str] = FORMATS,
    suffixes: Mapping[str, str] | None = None,  # format by file suffix, where they are not the same word
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A flag for each format, and -o for the file to write; the command gets them as its `answer`."""
    flags = {name: f"as_{name.replace('-', '_')}" for name in formats}
    by_suffix = {f".{name}": name for name in formats} | {".htm": "html"} if suffixes is None else suffixes

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option("-o", "--output", metavar="PATH", help="Output file; '-' is standard output.")
        @wraps(command)
        def decorated(*arguments: Any, output: str | None, **options: Any) -> None:
            chosen = [name for name, flag in flags.items() if options.pop(flag)]
            if len(chosen) > 1:
                raise click.UsageError(f"--{' and --'.join(chosen)} exclude each other; choose one")
            kind = chosen[0] if chosen else None
            if kind is None and output is not None:
                kind = by_suffix.get(Path(output).suffix.lower())
                if kind is None:
                    flags_named = ", --".join(formats)
                    raise click.UsageError(f"the format is not clear from '{output}'; add one of --{flags_named}")
            command(*arguments, answer=Answer(kind, output), **options)

        for name, summary in reversed(formats.items()):
            decorated = click.option(f"--{name}", flags[name], is_flag=True, help=summary)(decorated)
        return decorated

    return decorate


def write(content: str | bytes, target: str) -> None:
    """Write a file and print its path; `-` is standard output."""
    if target == "-":
        click.echo(content, nl=False)
    else:
        click.echo(str(save(content, target)))


def save(content: str | bytes, target: str) -> Path:
    """Write a file; nothing is printed, so that a reader of the output who leaves cannot prevent it."""

    try:
        return write_atomic(target, content)
    except OSError as error:
        message = f"cannot write '{target}': {error.strerror}; choose another file with -o"
        raise InputError("cannot-write", message, key="-o", value=target) from None


class FiniteRange(click.FloatRange):
    """A number between two others, which 'nan' is not, though it is neither below nor above them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def value_of(flag: str, text: str, read: Callable[[str], Value]) -> Value:
    """What a flag's text means; a refusal names the flag."""
    try:
        return read(text)
    except ValueError as error:
        raise InputError("invalid-value", str(error), where=flag, key=flag, value=text) from None


def duration_of(flag: str, text: str) -> timedelta:
    """The duration behind a flag; a refusal names both."""
    try:
        return timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError) as error:
        raise InputError("not-a-duration", str(error), where=f"{flag} {text}", key=flag, value=text) from None


def age_of(flag: str, text: str) -> timedelta:
    """How old something has to be to be deleted; a bare number is refused, as most people mean days by it."""
    age = duration_of(flag, text)
    if age and text.strip()[-1].isdigit():
        number = text.strip()
        message = f"'{text}' has no unit; write {number}d for days, or {number}h for hours"
        raise InputError("not-a-duration", message, where=f"{flag} {text}", key=flag, value=text)
    return age


_NEWEST = 200  # runs that are offered


def complete_cases(_context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem | str]:
    """What can be run: suites and benchmarks; where none begins like it, files."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.runner.suite_file import shipped

    return _beginning(start, [*shipped(), *BENCHMARKS.registry().entries]) or [CompletionItem(start, type="file")]


def complete_models(_context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem | str]:
    """The models of the zoo; where none begins like it, files."""
    from paceline.models import MODELS

    return _beginning(start, MODELS.registry().entries) or [CompletionItem(start, type="file")]


def complete_runs(context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem | str]:
    """Runs, the newest first, and their tags."""
    from paceline.store.location import default_url, locate
    from paceline.store.reader import open_file

    with suppress(PacelineError):
        reader = open_file(locate(context.params.get("store") or default_url()))
        if reader is not None:
            with reader:
                rows = reader.runs(_NEWEST)
            tags = dict.fromkeys(tag for row in rows for tag in row.tags)
            return _beginning(start, ["last", *tags, *(row.id for row in rows)])
    return []


def _beginning(start: str, names: Iterable[str]) -> list[CompletionItem | str]:
    return [name for name in names if name.startswith(start)]

"""Output formats and targets of the verbs that answer a question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.report.document import Document

FORMATS = {
    "html": "A self-contained page.",
    "md": "Markdown.",
    "csv": "The figures, one row each.",
    "json": "For programs.",
    "png": "The chart as a picture.",
}

price_option = click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="[MACHINE=]PRICE",
    help="Of an hour of a GPU, or of a machine: '2.5 USD/h', or an instance such as c7g.large.",
)


def format_options(formats: dict[str, str] = FORMATS) -> Callable[[Any], Any]:
    """A flag for each format, and -o for the file to write."""

    def decorate(function: Any) -> Any:
        function = click.option("-o", "--output", metavar="PATH", help="Output file; '-' is standard output.")(function)
        for name, summary in reversed(formats.items()):
            function = click.option(f"--{name}", f"as_{name.replace('-', '_')}", is_flag=True, help=summary)(function)
        return function

    return decorate


def chosen_format(
    flags: Mapping[str, bool],
    output: str | None,
    formats: Mapping[str, str] = FORMATS,
    suffixes: Mapping[str, str] | None = None,  # format by file suffix, where they are not the same word
) -> str | None:
    """The format given by a flag or by the suffix of the output file; None is the terminal."""
    chosen = [name for name in formats if flags[f"as_{name.replace('-', '_')}"]]
    if len(chosen) > 1:
        raise click.UsageError(f"--{' and --'.join(chosen)} exclude each other; choose one")
    if chosen or output is None:
        return chosen[0] if chosen else None
    by_suffix = {f".{name}": name for name in formats} | {".htm": "html"} if suffixes is None else suffixes
    kind = by_suffix.get(Path(output).suffix.lower())
    if kind is None:
        raise click.UsageError(f"the format is not clear from '{output}'; add one of --{', --'.join(formats)}")
    return kind


def give(
    document: Document, kind: str | None, output: str | None, name: str, data: Mapping[str, Callable[[], str | bytes]]
) -> None:
    """Show the document, or write it; `data` makes the formats for programs, by name."""
    if kind is None:
        from paceline.report.render import terminal

        terminal.show(document)
        return
    if kind in data:
        content = data[kind]()
    else:
        from paceline.report.render import html, markdown, png

        content = {"html": html, "md": markdown, "png": png}[kind].render(document)
    write(content, output or (f"{name}.{kind}" if kind in ("html", "png") else "-"))


def write(content: str | bytes, target: str) -> None:
    """Write a file and print its path; `-` is standard output."""
    from paceline.core.errors import InputError
    from paceline.core.files import write_atomic

    if target == "-":
        click.echo(content, nl=False)
        return
    try:
        click.echo(str(write_atomic(target, content)))
    except OSError as error:
        message = f"cannot write '{target}': {error.strerror}; choose another file with -o"
        raise InputError("cannot-write", message, key="-o", value=target) from None

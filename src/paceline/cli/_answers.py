"""What verbs that answer a question share: in which format, and where to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.report.document import Document

Data = Mapping[str, Callable[[], str | bytes]]  # by format

FORMATS = {
    "html": "A self-contained page.",
    "md": "Markdown.",
    "csv": "The figures, one row each.",
    "json": "For programs.",
    "png": "The chart as a picture.",
}
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".csv": "csv", ".json": "json", ".png": "png"}


def format_options(function: Any) -> Any:
    """Flags for the formats, and where to write."""
    function = click.option("-o", "--output", metavar="PATH", help="Where to write; '-' is standard output.")(function)
    for name, what in reversed(FORMATS.items()):
        function = click.option(f"--{name}", f"as_{name}", is_flag=True, help=what)(function)
    return function


def chosen_format(flags: Mapping[str, bool], output: str | None) -> str | None:
    """The format that flags or the file's name tell; None is the terminal."""
    chosen = [name for name in FORMATS if flags[f"as_{name}"]]
    if len(chosen) > 1:
        raise click.UsageError(f"--{' and --'.join(chosen)} exclude each other; choose one")
    if chosen or output is None:
        return chosen[0] if chosen else None
    kind = _SUFFIXES.get(Path(output).suffix.lower())
    if kind is None:
        raise click.UsageError(f"'{output}' does not tell the format; add one of --{', --'.join(FORMATS)}")
    return kind


def give(document: Document, kind: str | None, output: str | None, name: str, data: Data) -> None:
    """Show the document, or write it; `data` makes the formats for programs."""
    if kind is None:
        from paceline.report.render import terminal

        terminal.show(document)
        return
    write(_made(document, kind, data), output or (f"{name}.{kind}" if kind in ("html", "png") else "-"))


def write(content: str | bytes, target: str) -> None:
    """Write a file and say where it is; `-` is standard output."""
    from paceline.core.errors import InputError
    from paceline.core.files import write_atomic

    if target == "-":
        click.echo(content, nl=False)
        return
    try:
        click.echo(str(write_atomic(target, content)))
    except OSError as error:
        message = f"cannot write '{target}': {error.strerror}; choose another place with -o"
        raise InputError("cannot-write", message, key="-o", value=target) from None


def _made(document: Document, kind: str, data: Data) -> str | bytes:
    from paceline.report.render import html, markdown, png

    if kind in data:
        return data[kind]()
    return png.render(document) if kind == "png" else (html if kind == "html" else markdown).render(document)

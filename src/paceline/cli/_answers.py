"""What verbs that answer a question share: in which format, and where to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.report.answer_page import Page

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


def give(page: Page, kind: str | None, output: str | None, name: str, data: Mapping[str, Callable[[], str]]) -> None:
    """Show the page, or write it; `data` makes the formats for programs."""
    from paceline.report import answer_page

    if kind is None:
        answer_page.show(page)
        return
    content = _made(page, kind, data)
    target = output or (f"{name}.{kind}" if kind in ("html", "png") else "-")
    if target == "-":
        click.echo(content, nl=False)
        return
    from paceline.core.errors import InputError
    from paceline.core.files import write_atomic

    try:
        click.echo(str(write_atomic(target, content)))
    except OSError as error:
        raise InputError(f"cannot write '{target}': {error.strerror}; choose another place with -o") from None


def _made(page: Page, kind: str, data: Mapping[str, Callable[[], str]]) -> bytes:
    from paceline.core.errors import InputError
    from paceline.report import answer_page
    from paceline.report.charts import draw_png

    if kind in data:
        return data[kind]().encode()
    if kind != "png":
        return (answer_page.html(page) if kind == "html" else answer_page.markdown(page)).encode()
    chart = answer_page.first_chart(page)
    if chart is None:
        raise InputError("there is nothing to draw: no case has the figures for a chart")
    return draw_png(chart)

"""Names that a shell completes: benchmarks and suites, models, runs and tags."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from paceline.core.errors import PacelineError

_NEWEST = 200  # runs that are offered


def cases(_context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem | str]:
    """What can be run: suites and benchmarks; where none begins like it, files."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.runner.suite_file import shipped

    return _beginning(start, [*shipped(), *BENCHMARKS.registry().entries]) or [CompletionItem(start, type="file")]


def models(_context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem | str]:
    """The models of the zoo; where none begins like it, files."""
    from paceline.models import MODELS

    return _beginning(start, MODELS.registry().entries) or [CompletionItem(start, type="file")]


def runs(context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem | str]:
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

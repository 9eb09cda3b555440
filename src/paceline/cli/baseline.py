"""Make a baseline from the results of many nodes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli._options import save
from paceline.core.metric import Better
from paceline.core.quantity import show_interval
from paceline.report.text import percent, show_value

if TYPE_CHECKING:
    from paceline.analysis.baseline import Baseline, Reference
    from paceline.report.document import Document

SHOWN = 30  # metrics on a terminal


@click.command("baseline")
@click.argument("sources", nargs=-1, required=True, metavar="RUN|TAG|FILE...")
@click.option("-o", "--output", metavar="PATH", help="Where to write the file; unset shows the figures only.")
@click.option("--extend", type=click.Path(path_type=Path), help="Keep this baseline's figures, and add what it lacks.")
@click.option("--superbench", is_flag=True, help="Write SuperBench's form and names: a number for each metric.")
@click.option("--json", "as_json", is_flag=True, help="The file on standard output.")
@click.option("--store", metavar="URL", help="Where results are stored.")
def command(
    sources: tuple[str, ...],
    output: str | None,
    extend: Path | None,
    superbench: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Say what healthy nodes measure: the median over the nodes, which fewer than half of them cannot move.

    The nodes are those behind runs, tags, or files of results, ours or SuperBench's results-summary.jsonl.
    """
    from paceline.analysis import baseline as baselines
    from paceline.api.sources import pin_sources, read_table
    from paceline.report.render import terminal

    previous = baselines.read_baseline(extend) if extend else None
    wants_theirs = superbench or (previous is not None and previous.names == "superbench")
    table, is_theirs = read_table(sources, store, superbench=wants_theirs)
    made = baselines.make_baseline(table, sources, names="superbench" if is_theirs else "paceline")
    if previous is not None:
        made = baselines.extend(previous, made)
    content = baselines.as_superbench(made) if superbench else baselines.as_json(made)
    if as_json or output == "-":
        click.echo(content, nl=False)
        return
    path = save(content, output) if output is not None else None
    pinned = pin_sources(sources, store) if path is not None else 0
    terminal.show(_document(made, table.by_run))
    if path is not None:
        click.echo(str(path))
    if pinned:
        click.echo(f"{pinned} of its runs are pinned now: `paceline results prune` leaves them.", err=True)


def _document(made: Baseline, by_run: bool) -> Document:
    from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone

    nodes = f"{made.nodes} {'run' if by_run else 'node'}{'s' if made.nodes != 1 else ''}"
    warning = (f"{nodes} cannot outvote a bad one: give at least 3.",) if made.nodes < 3 else ()
    # What a user asks for first: metrics with a direction, all ranks together.
    directed = {name: one for name, one in made.metrics.items() if one.better is not Better.NEITHER}
    shown: dict[str, Reference] = {}
    for name, one in (directed or made.metrics).items():
        of_all_ranks = re.sub(r":\d+$", "", name)
        if len(shown) < SHOWN and (of_all_ranks == name or of_all_ranks not in made.metrics):
            shown[name] = one
    figures = shown.values()
    intervals = [show_interval(one.value, one.interval, partial(show_value, unit=one.unit)) for one in figures]
    spreads = [percent(one.spread / abs(one.value)) if one.spread is not None and one.value else "" for one in figures]
    directions = [one.better.value if one.better is not Better.NEITHER else "" for one in figures]
    columns = (
        Column.of("Metric", list(shown), numeric=False),
        Column.of("Median", [show_value(one.value, one.unit) for one in figures]),
        Column.of("", intervals),
        Column.of("Spread", spreads),
        Column.of("Nodes", [str(one.nodes or "") for one in figures]),
        Column.of("Better", directions, numeric=False),
    )
    left_out = len(made.metrics) - len(shown)
    more = (f"and {left_out} more in the file, with single ranks and return codes",) if left_out else ()
    sections = (
        Section(items=(Lines(warning, Tone.WARNING),)),
        Section(items=(Table(columns), Lines(more, Tone.TEXT))),
    )
    return Document("Baseline", (Block(f"A baseline of {len(made.metrics)} metrics from {nodes}.", "", sections),))

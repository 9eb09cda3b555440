"""Make a baseline from the results of many nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli._answers import write
from paceline.core.metric import Better

if TYPE_CHECKING:
    from paceline.analysis.baseline import Baseline

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
    from paceline.cli._sources import read_table

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
    _show(made, table.by_run)
    if output is not None:
        write(content, output)


def _show(made: Baseline, by_run: bool) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from paceline.report.numbers import half_width, show_value
    from paceline.report.render.terminal import open_console
    from paceline.report.text import one_line, plain

    console = open_console()
    ascii_only = not console.is_terminal or console.options.ascii_only
    kind = "run" if by_run else "node"
    nodes = f"{made.nodes} {kind}{'s' if made.nodes != 1 else ''}"
    console.print(Text(f"A baseline of {len(made.metrics)} metrics from {nodes}.", "bold"))
    if made.nodes < 3:
        console.print(Text(f"{nodes} cannot outvote a bad one: give at least 3.", "yellow"))
    console.print()
    # What a user asks for first: metrics with a direction, all ranks together.
    directed = {name: one for name, one in made.metrics.items() if one.better is not Better.NEITHER}
    shown = []
    for name, one in (directed or made.metrics).items():
        of_all_ranks = re.sub(r":\d+$", "", name)
        if of_all_ranks == name or of_all_ranks not in made.metrics:
            shown.append((name, one))
    table = Table(box=box.ASCII2 if ascii_only else box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("Metric", overflow="fold")
    for header in ("Median", "", "Spread", "Nodes"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("Better", no_wrap=True)

    def text(content: str) -> Text:
        return Text(one_line(plain(content) if ascii_only else content))

    for name, one in shown[:SHOWN]:
        spread = f"{100 * one.spread / abs(one.value):.2g} %" if one.spread is not None and one.value else ""
        warning = half_width(one.interval.relative(one.value)) if one.interval and one.value else ""
        better = one.better.value if one.better is not Better.NEITHER else ""
        cells = (name, show_value(one.value, one.unit), warning, spread, str(one.nodes or ""), better)
        table.add_row(*(text(cell) for cell in cells))
    console.print(table)
    left_out = len(made.metrics) - min(len(shown), SHOWN)
    if left_out:
        console.print(text(f"and {left_out} more in the file, with single ranks and return codes"))

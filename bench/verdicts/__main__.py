"""Prints the table, or one part of it; `python -m bench verdicts` is the same."""

from __future__ import annotations

import math
import pkgutil
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module

import click

import bench.verdicts
from bench.verdicts.cell import Cell

NOT_PARTS = ("__main__", "cell")
REPLICATES = 2000
SEED = 20


@click.command("verdicts")
@click.argument("parts", nargs=-1)
@click.option("--replicates", default=REPLICATES, show_default=True, help="of each cell; parts may scale it")
@click.option("--seed", default=SEED, show_default=True)
@click.option("--markdown", is_flag=True, help="as the documentation has it")
def main(parts: Sequence[str], replicates: int, seed: int, markdown: bool) -> None:
    """Put every kind of sentence to the test; the exit code says whether all claims held."""
    known = [name for _, name, _ in pkgutil.iter_modules(bench.verdicts.__path__) if name not in NOT_PARTS]
    for part in parts:
        if part not in known:
            raise click.BadParameter(f"'{part}' is none of {', '.join(known)}")
    cells: list[Cell] = []
    begun = time.monotonic()
    for part in parts or known:
        for cell in import_module(f"bench.verdicts.{part}").cells(replicates, seed):
            cells.append(cell)
            click.echo(f"{time.monotonic() - begun:6.0f} s  {_text(cell)}", err=True)
    click.echo("\n".join(_markdown(cells) if markdown else _plain(cells)))
    sys.exit(0 if all(cell.is_met(len(cells)) for cell in cells) else 1)


HEADS = ("Sentence", "Data", "Claim", "Measured", "Withheld", "Width", "Holds")


def _row(cell: Cell, cells: int) -> tuple[str, ...]:
    sign = "<=" if cell.at_most else ">="
    return (
        cell.part,
        cell.case + (f" ({cell.note})" if cell.note else ""),
        f"{cell.claim} {sign} {_figure(cell, cell.bound)}",
        f"{_figure(cell, cell.measured)} ± {_figure(cell, cell.standard_error)}" if _has_figure(cell) else "–",
        f"{cell.withheld / (cell.tries + cell.withheld):.1%}" if cell.withheld else "",
        "" if cell.width is None else f"{cell.width:.2f}",
        "yes" if cell.is_met(cells) else "NO",
    )


def _has_figure(cell: Cell) -> bool:
    return math.isfinite(cell.measured)


def _figure(cell: Cell, value: float) -> str:
    return f"{value:.4g}" if cell.value is not None else f"{value:.1%}"


def _text(cell: Cell) -> str:
    return "  ".join(_row(cell, 1))


def _plain(cells: Sequence[Cell]) -> Iterator[str]:
    rows = [HEADS, *(_row(cell, len(cells)) for cell in cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _markdown(cells: Sequence[Cell]) -> Iterator[str]:
    yield "| " + " | ".join(HEADS) + " |"
    yield "|:--|:--|:--|--:|--:|--:|:--|"
    for cell in cells:
        yield "| " + " | ".join(_row(cell, len(cells))) + " |"


if __name__ == "__main__":
    main()

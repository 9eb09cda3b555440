"""Prints the table, or one part of it; `python -m bench verdicts` is the same."""

from __future__ import annotations

import math
import pkgutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from importlib import import_module
from multiprocessing import get_context

import click

import bench.verdicts
from bench.verdicts.cell import Cell, pooled

NOT_PARTS = ("__main__", "cell")
REPLICATES = 2000
SEED = 20


@click.command("verdicts")
@click.argument("parts", nargs=-1)
@click.option("--replicates", default=REPLICATES, show_default=True, help="of each cell; parts may scale it")
@click.option("--seed", default=SEED, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="processes; each draws its share of the replicates")
@click.option("--markdown", is_flag=True, help="as the documentation has it")
def main(parts: Sequence[str], replicates: int, seed: int, jobs: int, markdown: bool) -> None:
    """Put every kind of sentence to the test; the exit code says whether all claims held."""
    known = [name for _, name, _ in pkgutil.iter_modules(bench.verdicts.__path__) if name not in NOT_PARTS]
    for part in parts:
        if part not in known:
            raise click.BadParameter(f"'{part}' is none of {', '.join(known)}")
    begun = time.monotonic()
    cells: list[Cell] = []
    for cell in _drawn(parts or known, replicates, seed, jobs):
        cells.append(cell)
        click.echo(f"{time.monotonic() - begun:6.0f} s  {_text(cell)}", err=True)
    click.echo("\n".join(_markdown(cells) if markdown else _plain(cells)))
    sys.exit(0 if all(cell.is_met(len(cells)) for cell in cells) else 1)


def _drawn(parts: Sequence[str], replicates: int, seed: int, jobs: int) -> Iterator[Cell]:
    if jobs == 1:
        for part in parts:
            yield from import_module(f"bench.verdicts.{part}").cells(replicates, seed)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        shares: dict[Future[list[Cell]], str] = {}
        done: dict[str, list[list[Cell]]] = {part: [] for part in parts}
        for part in parts:
            for share in range(jobs):
                shares[pool.submit(_share, part, math.ceil(replicates / jobs), seed * 1000 + share)] = part
        for one in as_completed(shares):
            done[shares[one]].append(one.result())
            if len(done[shares[one]]) == jobs:
                yield from pooled(done[shares[one]])


def _share(part: str, replicates: int, seed: int) -> list[Cell]:
    return list(import_module(f"bench.verdicts.{part}").cells(replicates, seed))


HEADS = ("Sentence", "Data", "Claim", "Measured", "Withheld", "Width", "Holds")


def _row(cell: Cell, cells: int) -> tuple[str, ...]:
    sign = "<=" if cell.at_most else ">="
    return (
        cell.part,
        cell.case + (f" ({cell.note})" if cell.note else ""),
        f"{cell.claim} {sign} {_figure(cell, cell.bound)}",
        f"{_figure(cell, cell.measured)} ± {_figure(cell, cell.standard_error)}" if _has_figure(cell) else "–",
        f"{cell.withheld / (cell.tries + cell.withheld):.1%}" if cell.withheld else "",
        "" if cell.relative_width is None else f"{cell.relative_width:.2f}",
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

"""Say which nodes are defective, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.analysis.diagnose.judge import Diagnosis

FORMATS = {
    "json": "one JSON object, for programs",
    "jsonl": "one JSON object per node",
    "csv": "what the chart draws: one row per metric and node",
    "md": "Markdown",
    "html": "a self-contained page",
    "png": "the chart as a picture; needs 'paceline[charts]'",
    "xlsx": "an Excel workbook; needs 'paceline[exports]'",
}
DEFECTIVE = 1  # the exit code


def _format_options(function: Any) -> Any:
    for name, what in reversed(FORMATS.items()):
        function = click.option(f"--{name}", is_flag=True, help=f"{what[0].upper()}{what[1:]}.")(function)
    return function


@click.command("diagnose")
@click.argument("sources", nargs=-1, required=True, metavar="RUN|TAG|FILE...")
@click.option(
    "--rules", type=click.Path(path_type=Path), help="Rules, ours or SuperBench's; unset is 5 % and failures."
)
@click.option("--baseline", type=click.Path(path_type=Path), help="What to compare with; unset is the other nodes.")
@_format_options
@click.option("-o", "--output", metavar="PATH", help="Where to write; '-' is standard output.")
@click.option("--store", metavar="URL", help="Where results are kept.")
def command(
    sources: tuple[str, ...],
    rules: Path | None,
    baseline: Path | None,
    output: str | None,
    store: str | None,
    **chosen: bool,
) -> None:
    """Judge the nodes behind runs, tags, or files of results, ours or SuperBench's results-summary.jsonl.

    Exit code 1 when a node is defective.
    """
    kind = _kind([name for name in FORMATS if chosen[name]], output)
    found = _diagnose(sources, rules, baseline, store)
    _give(found, kind, output)
    sys.exit(DEFECTIVE if found.defective else 0)


def _diagnose(sources: tuple[str, ...], rules: Path | None, baseline: Path | None, store: str | None) -> Diagnosis:
    from paceline.analysis.baseline import read_baseline
    from paceline.analysis.diagnose.judge import diagnose
    from paceline.analysis.diagnose.rules import default_rules, read_rules
    from paceline.cli._sources import read_table
    from paceline.core.errors import InputError

    asked = read_rules(rules) if rules else default_rules()
    given = read_baseline(baseline) if baseline else None
    wants_theirs = asked.is_theirs or (given is not None and given.names == "superbench")
    if given is not None and given.names != "superbench" and asked.is_theirs:
        raise InputError(
            "rules-with-other-names",
            f"the rules '{rules}' have SuperBench's names of metrics, but the baseline '{baseline}' has Paceline's: "
            "make it with `paceline baseline RUN... --superbench`",
            key="--baseline",
            value=str(baseline),
        )
    table, is_theirs = read_table(sources, store, superbench=wants_theirs)
    if is_theirs and given is not None and given.names != "superbench":
        message = f"the results have SuperBench's names of metrics, but the baseline '{baseline}' has Paceline's"
        raise InputError("results-with-other-names", message, key="--baseline", value=str(baseline))
    return diagnose(table, asked, given)


def _kind(chosen: list[str], output: str | None) -> str | None:
    if len(chosen) > 1:
        raise click.UsageError(f"--{' and --'.join(chosen)} exclude each other; choose one")
    if chosen or output is None:
        return chosen[0] if chosen else None
    suffix = Path(output).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise click.UsageError(f"'{output}' does not tell the format; add one of --{', --'.join(FORMATS)}")
    return suffix


def _give(found: Diagnosis, kind: str | None, output: str | None) -> None:
    from paceline.cli._answers import Data, give
    from paceline.report.diagnose import files
    from paceline.report.diagnose.document import document

    data: Data = {
        "json": lambda: files.as_json(found),
        "jsonl": lambda: files.as_jsonl(found),
        "csv": lambda: files.as_csv(found),
        "png": lambda: files.as_png(found),
        "xlsx": lambda: files.as_xlsx(found),
    }
    if kind == "xlsx":
        output = output or "paceline-diagnosis.xlsx"
    give(document(found), kind, output, "paceline-diagnosis", data)

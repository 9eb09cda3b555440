"""Writes docs/reference from the code; with --check it only says whether that is still up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from pydantic.fields import FieldInfo

import paceline
from paceline import models
from paceline.cli.main import paceline as command_line
from paceline.core.benchmark import BENCHMARKS
from paceline.core.errors import InputError
from paceline.core.parameters import show_default, show_values
from paceline.core.suite import CaseKeys, Here, expand
from paceline.models.base import ModelSpec
from paceline.runner.suite_file import load_suite, shipped

FOLDER = Path(__file__).parent / "reference"
SUITES = Path(paceline.__file__).parent / "suites"
WIDTH = 100


def main() -> int:
    """Write the pages, or check them; the exit code says whether they are fresh."""
    pages = {
        "benchmarks.md": benchmarks_page(),
        "models.md": models_page(),
        "suites.md": suites_page(),
        "cli.md": cli_page(),
    }
    if "--check" not in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for name, text in pages.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    stale = [name for name, text in pages.items() if _written(FOLDER / name) != text]
    for name in stale:
        click.echo(f"docs/reference/{name} is out of date; run: make docs", err=True)
    return 1 if stale else 0


def benchmarks_page() -> str:
    """Every benchmark with its parameters and metrics."""
    intro = (
        "What each of the [micro benchmarks](../guide/micro-benchmarks.md) measures, and how, is in their guide. "
        "How to write one is in [CONTRIBUTING](../../CONTRIBUTING.md)."
    )
    parts = [_head("Benchmarks", intro)]
    ours = {name: cls for name, cls in BENCHMARKS.registry().entries.items() if _is_ours(cls.__module__)}
    for name, benchmark in sorted(ours.items()):
        ranks = "one or several" if benchmark.distributed else "one"
        metrics = [
            (f"`{m.name}`", m.unit or "–", m.better.value, m.merge.value, m.description) for m in benchmark.metrics
        ]
        parts += [
            f"## {name}",
            f"{_sentence(benchmark.summary)} Category: {benchmark.category}. Ranks: {ranks}. "
            f"It leads with `{benchmark.primary}`.",
            _fields_table(benchmark.Parameters.model_fields),
            _table(("Metric", "Unit", "Better", "Ranks merged by", "Meaning"), metrics),
        ]
    return _page(parts)


def models_page() -> str:
    """The zoo."""
    intro = (
        "FLOPs are those of one sample's forward pass at the full scale; a training step counts three times as many. "
        "How they are counted is in [the measuring guide](../guide/measuring.md#flops-and-mfu)."
    )
    parts = [_head("Models", intro)]
    found = [spec for spec in models.MODELS.registry().entries.values() if _is_ours(_builder(spec).__module__)]
    for task in dict.fromkeys(spec.task for spec in found):
        rows = [
            (
                f"`{spec.name}`",
                f"{spec.parameters:,}" if spec.parameters else "–",
                f"{spec.flops / 1e9:,.2f} G" if spec.flops else "–",
                f"{spec.batch_size} {spec.sample}s",
                "yes" if spec.fp8 else "no",
                spec.summary,
            )
            for spec in found
            if spec.task == task
        ]
        parts += [
            f"## {task.capitalize()}",
            _table(("Model", "Parameters", "FLOPs", "Default batch", "fp8", "What it is"), rows),
        ]
    return _page(parts)


def suites_page() -> str:
    """The suites that ship, and the keys that every case takes."""
    parts = [_head("Suites", "How to write one is in [the guide to suites](../guide/suites.md).")]
    for name, path in sorted(shipped().items()):
        if path.parent != SUITES:
            continue
        suite = load_suite(name)
        counts = {where: _case_count(name, gpus) for where, gpus in (("without a GPU", 0), ("with a GPU", 1))}
        told = ", ".join(f"{count} {where}" for where, count in counts.items())
        link = f"[`{path.name}`](../../src/paceline/suites/{path.name})"
        parts += [f"## {name}", f"{_sentence(suite.description)} Cases: {told}. Source: {link}."]
    parts += [
        "## Keys of every case",
        "Beside the [parameters of its benchmark](benchmarks.md).",
        _fields_table(CaseKeys.model_fields, "Key"),
    ]
    return _page(parts)


def cli_page() -> str:
    """What each verb's --help says."""
    intro = (
        "`paceline run WHAT --help` also lists the parameters of WHAT as flags; "
        "they are those of [the benchmarks](benchmarks.md)."
    )
    root = click.Context(command_line, info_name="paceline", terminal_width=WIDTH, **command_line.context_settings)
    parts = [_head("Command line", intro), _text_block(command_line.get_help(root))]
    for verb in command_line.list_commands(root):
        command = command_line.get_command(root, verb)
        if command is not None:
            context = click.Context(command, info_name=verb, parent=root, terminal_width=WIDTH)
            parts += [f"## paceline {verb}", _text_block(command.get_help(context))]
    return _page(parts)


def _case_count(name: str, gpus: int) -> int:
    try:
        return len(expand(load_suite(name), BENCHMARKS.registry().get, Here.with_devices(gpus, None, world=1, nodes=1)))
    except InputError:  # a suite for GPUs leaves nothing without one
        return 0


def _fields_table(fields: dict[str, FieldInfo], title: str = "Parameter") -> str:
    rows = [
        (f"`{name}`", show_values(f, choice="`{}`"), show_default(f), f.description or "") for name, f in fields.items()
    ]
    return _table((title, "Values", "Default", "Meaning"), rows)


def _builder(spec: ModelSpec) -> Any:
    return getattr(spec.build, "func", spec.build)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "paceline"


def _head(title: str, intro: str) -> str:
    return f"# {title}\n\n<!-- Generated by docs/generate.py; edit the code, then run `make docs`. -->\n\n{intro}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _text_block(text: str) -> str:
    return "```text\n" + "\n".join(line.rstrip() for line in text.splitlines()) + "\n```"


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _written(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())

"""Measures this machine's ceilings for the verb `machine`, stores them as its profile, and shows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from paceline.analysis.roofline import ceilings_of
from paceline.cli import _running
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.profile import Ceiling, Profile
from paceline.core.run import RunRecords
from paceline.machine.profile import (
    MEASURE_AGAIN,
    changes_since,
    identity_of,
    save_profile,
    software_of,
    with_datasheets,
)
from paceline.report.numbers import half_width, show_value
from paceline.report.render.terminal import open_console
from paceline.report.text import one_line, when
from paceline.runner.launcher_ranks import World
from paceline.runner.suite_file import load_suite

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SUITE = "ceilings"


def measure(overrides: dict[str, Any], store: str | None, *, as_json: bool) -> int:
    """Measure the suite of ceilings as any other, and store the result; returns the exit code."""
    if World.of_environment() is not None:
        message = "--measure starts the processes it needs by itself: run it without a launcher"
        raise InputError("measure-with-launcher", message, key="--measure")

    def keep(records: RunRecords) -> None:
        profile = profile_of(records)
        if not profile.ceilings:
            click.echo("paceline: nothing could be measured, so the profile stays as it was", err=True)
            return
        path = save_profile(profile)
        if as_json:
            click.echo(json.dumps({"event": "profile", "path": str(path)} | profile.model_dump(mode="json")))
            return
        show(profile, open_console())
        click.echo(f"\nProfile: {path}")

    output = _running.Output(as_json=as_json, report=False, answer=keep)
    return _running.start(load_suite(SUITE), overrides, store, output, None)


def profile_of(records: RunRecords) -> Profile:
    """The profile of the machine that a run was measured on."""
    environment = Environment.model_validate(records.run.environment)
    ceilings, absent = ceilings_of(records)
    return Profile(
        measured_at=records.run.started_at,
        version=records.run.version,
        run_id=records.run.id,
        identity=identity_of(environment),
        software=software_of(environment),
        ceilings=with_datasheets(ceilings, environment),
        absent=tuple(absent),
    )


def show(profile: Profile, console: Console, now: Environment | None = None) -> None:
    """Print a profile: a table for each device, and what is absent; `now` is to see whether it is out of date."""
    from rich.text import Text

    console.print(Text(f"ceilings, measured {when(profile.measured_at)}, run {profile.run_id}", "bold"))
    changed = changes_since(profile, now) if now else []
    if changed:
        console.print(Text(f"measured with other software: {'; '.join(changed)}; {MEASURE_AGAIN}", "yellow"))
    by_device: dict[tuple[str, str], list[Ceiling]] = {}
    for ceiling in profile.ceilings:
        by_device.setdefault((ceiling.device, ceiling.device_name), []).append(ceiling)
    for (device, name), ceilings in by_device.items():
        console.print()
        console.print(_table(f"{device}: {one_line(name)}" if name != device else device, ceilings))
    warnings = dict.fromkeys(f"{one.kind}: {one.remedy}" for ceiling in profile.ceilings for one in ceiling.warnings)
    _list(console, "warnings, and what to do", warnings)
    _list(console, "not measured", [f"{one.what} on {one.device}: {one.reason}" for one in profile.absent])


def _list(console: Console, title: str, lines: Any) -> None:
    from rich.padding import Padding
    from rich.text import Text

    if not lines:
        return
    console.print()
    console.print(Text(title, "bold yellow"))
    for line in lines:
        console.print(Padding(Text(one_line(line)), (0, 0, 0, 2), expand=False))


def _table(title: str, ceilings: list[Ceiling]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    has_datasheet = any(one.datasheet for one in ceilings)
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("kind", style="dim", no_wrap=True)
    table.add_column("ceiling", overflow="fold")
    for header in ("measured", "", *(("datasheet", "of it") if has_datasheet else ())):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("warnings", style="yellow", overflow="fold")
    for one in ceilings:
        width = None
        if one.low is not None and one.high is not None:
            width = max(one.high - one.value, one.value - one.low) / one.value
        cells = [one.kind, one_line(one.name), show_value(one.value, one.unit), half_width(width)]
        if has_datasheet:
            cells.append(show_value(one.datasheet, one.unit) if one.datasheet else "")
            cells.append(f"{one.share:.0f} %" if one.share else "")
        cells.append(", ".join(dict.fromkeys(warning.kind for warning in one.warnings)))
        table.add_row(*(Text(cell) for cell in cells))
    return table

"""Measures this machine's ceilings for the verb `machine`, stores them as its profile, and shows it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click

from paceline.analysis.roofline import ceilings_of
from paceline.api.cases import expand_here
from paceline.cli import _running
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.grouping import group_by
from paceline.core.profile import Ceiling, Profile
from paceline.core.quantity import show_interval
from paceline.core.run import RunRecords
from paceline.machine.profile import (
    MEASURE_AGAIN,
    changes_since,
    identity_of,
    save_profile,
    software_of,
    with_datasheets,
)
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.render import terminal
from paceline.report.text import one_line, show_value, when
from paceline.runner.launcher_ranks import World
from paceline.runner.suite_file import load_suite

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
        terminal.show(document(profile))
        click.echo(f"\nProfile: {path}")

    output = _running.Output(as_json=as_json, report=False, answer=keep)
    suite = load_suite(SUITE)
    return _running.start(suite.name, expand_here(suite, overrides), store, output)


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


def document(profile: Profile, now: Environment | None = None) -> Document:
    """A table for each device, and what is absent; `now` is to see whether it is out of date."""
    changed = changes_since(profile, now) if now else []
    other = (f"measured with other software: {'; '.join(changed)}; {MEASURE_AGAIN}",) if changed else ()
    sections = [Section(items=(Lines(other, Tone.WARNING),))]
    for (device, name), ceilings in group_by(profile.ceilings, lambda one: (one.device, one.device_name)).items():
        sections.append(Section(f"{device}: {one_line(name)}" if name != device else device, (_table(ceilings),)))
    warnings = dict.fromkeys(f"{one.kind}: {one.remedy}" for ceiling in profile.ceilings for one in ceiling.warnings)
    absent = tuple(f"{one.what} on {one.device}: {one.reason}" for one in profile.absent)
    sections.append(Section("warnings, and what to do", (Lines(tuple(warnings)),), Tone.WARNING))
    sections.append(Section("not measured", (Lines(absent),), Tone.WARNING))
    answer = f"ceilings, measured {when(profile.measured_at)}, run {profile.run_id}"
    return Document("Ceilings", (Block(answer, "", tuple(sections)),))


def _table(ceilings: list[Ceiling]) -> Table:
    intervals = [show_interval(one.value, one.interval, partial(show_value, unit=one.unit)) for one in ceilings]
    columns = [
        Column.of("kind", [one.kind for one in ceilings], numeric=False),
        Column.of("ceiling", [one.name for one in ceilings], numeric=False),
        Column.of("measured", [show_value(one.value, one.unit) for one in ceilings]),
        Column.of("", intervals),
    ]
    if any(one.datasheet for one in ceilings):
        datasheets = [show_value(one.datasheet, one.unit) if one.datasheet else "" for one in ceilings]
        columns.append(Column.of("datasheet", datasheets))
        columns.append(Column.of("of it", [f"{one.share:.0f} %" if one.share else "" for one in ceilings]))
    warnings = [", ".join(dict.fromkeys(warning.kind for warning in one.warnings)) for one in ceilings]
    return Table((*columns, Column.of("warnings", warnings, numeric=False)))

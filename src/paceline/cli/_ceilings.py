"""What is known of the machine that a run was measured on: its profile, and the datasheets of its devices."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from paceline.analysis.ceilings import DEVICE_MEMORY
from paceline.analysis.roofline import MEASURE, KnownCeilings
from paceline.analysis.traffic import WORD
from paceline.core.errors import PacelineError
from paceline.core.profile import Ceiling, Profile
from paceline.core.run import RunRecords
from paceline.machine.datasheet import datasheet
from paceline.machine.environment import Environment
from paceline.machine.profile import identity_of, load_profile


def known_ceilings(records: RunRecords) -> KnownCeilings:
    """The ceilings of the run's own machine; a profile of another machine says nothing of it."""
    profile = _profile_of(records)
    names = {str(name) for record in records.records if (name := record.facts.get("device"))}
    return KnownCeilings(
        measured=profile.ceilings if profile else (),
        source=f"{MEASURE}, {profile.measured_at:%Y-%m-%d}, run {profile.run_id}" if profile else "",
        promised=tuple(one for name in sorted(names) for one in _promised(name)),
    )


def _profile_of(records: RunRecords) -> Profile | None:
    try:
        return load_profile(identity_of(Environment.model_validate(records.run.environment)))
    except (
        ValidationError,
        PacelineError,
    ):  # several hosts, or a profile of which `paceline machine` says what is wrong
        return None


def _promised(device_name: str) -> Iterator[Ceiling]:
    sheet = datasheet(device_name)
    if sheet is None:
        return
    for precision in WORD:
        rate = sheet.rate(precision)
        if rate:
            unit = "OP/s" if precision == "int8" else "FLOP/s"
            yield Ceiling(device="cuda", device_name=device_name, kind="compute", name=precision, value=rate, unit=unit)
    yield Ceiling(
        device="cuda", device_name=device_name, kind="memory", name=DEVICE_MEMORY, value=sheet.memory_bandwidth,
        unit="B/s",
    )  # fmt: skip

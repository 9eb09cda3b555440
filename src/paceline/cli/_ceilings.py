"""What is known of the machine that a run was measured on: its profile, and the datasheets of its devices."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from paceline.analysis.roofline import MEASURE, KnownCeilings
from paceline.core.errors import PacelineError
from paceline.core.profile import Ceiling, Profile
from paceline.core.run import RunRecords
from paceline.core.subject import BYTES, DEVICE_MEMORY
from paceline.devices import accelerators
from paceline.machine.profile import identity_of, load_profile


def known_ceilings(records: RunRecords) -> KnownCeilings:
    """The ceilings of the run's own machine; a profile of another machine says nothing of it."""
    profile = _profile_of(records)
    names = {name for record in records.records if (name := record.subject.device)}
    return KnownCeilings(
        measured=profile.ceilings if profile else (),
        source=f"{MEASURE}, {profile.measured_at:%Y-%m-%d}, run {profile.run_id}" if profile else "",
        promised=tuple(one for name in sorted(names) for one in _promised(name)),
    )


def _profile_of(records: RunRecords) -> Profile | None:
    try:
        return load_profile(identity_of(records.run.environment))
    except (
        ValidationError,
        PacelineError,
    ):  # several hosts, or a profile of which `paceline machine` says what is wrong
        return None


def _promised(device_name: str) -> Iterator[Ceiling]:
    for kind in accelerators():
        sheet = kind.datasheet(device_name)
        if sheet is None:
            continue
        at = {"device": kind.name, "device_name": device_name}
        for precision in BYTES:
            rate = sheet.rate(precision)
            if rate:
                unit = "OP/s" if precision == "int8" else "FLOP/s"
                yield Ceiling(**at, kind="compute", name=precision, value=rate, unit=unit)
        yield Ceiling(**at, kind="memory", name=DEVICE_MEMORY, value=sheet.memory_bandwidth, unit="B/s")

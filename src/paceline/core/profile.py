"""A machine's profile: the most it was measured to do, alongside the vendors' datasheets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from paceline.core.record import RecordWarning
from paceline.core.stats import CONFIDENCE, Interval
from paceline.core.subject import CeilingKind


class ProfilePart(BaseModel):
    """Base of everything in a profile; a later version's extra fields are kept out, not refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class GpuIdentity(ProfilePart):
    """Which GPU it is."""

    name: str
    uuid: str


class Identity(ProfilePart):
    """What makes a machine this machine, as far as its ceilings are concerned."""

    host: str | None = None  # where no GPU tells one machine from another like it
    architecture: str | None = None
    cpu: str | None = None
    cores: float | None = None  # that may be used: fewer of them are another machine
    gpus: tuple[GpuIdentity, ...] = ()

    @property
    def key(self) -> str:
        """A short name for files: different machines have different ones."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


class Ceiling(ProfilePart):
    """The most that one device was measured to do of one thing."""

    device: str  # the target: cpu, cuda:0, cuda:*
    device_name: str  # as its maker calls it
    kind: CeilingKind
    name: str  # a precision, a level of memory, a direction of copying, ...
    value: float = Field(gt=0)
    unit: str
    low: float | None = None  # of the interval; None where the value was seen once
    high: float | None = None
    warnings: tuple[RecordWarning, ...] = Field(default=(), validation_alias=AliasChoices("warnings", "doubts"))
    datasheet: float | None = None  # the vendor's figure; None where that is not known

    @property
    def interval(self) -> Interval | None:
        """Where its true value lies; None where the value was seen once."""
        if self.low is None or self.high is None:
            return None
        return Interval(low=self.low, high=self.high, confidence=CONFIDENCE)

    @property
    def share(self) -> float | None:
        """Percent of the datasheet; None for a device that has none."""
        return 100.0 * self.value / self.datasheet if self.datasheet else None


class Absent(ProfilePart):
    """What could not be measured, and why."""

    what: str
    device: str
    reason: str


class Profile(ProfilePart):
    """What one machine can do at most, and when that was measured."""

    format: Literal[1] = 1
    measured_at: datetime
    version: str  # of Paceline
    run_id: str
    identity: Identity
    software: dict[str, str] = Field(default_factory=dict)  # versions that bear on the figures
    ceilings: tuple[Ceiling, ...]
    absent: tuple[Absent, ...] = ()

    def ceiling(self, kind: CeilingKind, name: str, *, device_name: str) -> Ceiling | None:
        """What a device of this name can do at most, if it was measured; "cpu" is the host's processor."""
        return next(
            (
                one
                for one in self.ceilings
                if (one.kind, one.name) == (kind, name) and device_name in (one.device_name, one.device)
            ),
            None,
        )


@dataclass(frozen=True)
class Price:
    """One kind of machine, or a part of one, to rent."""

    instance: str
    usd_per_hour: float
    devices: int
    device: str
    basis: str  # whose price, from when

    @property
    def per_device(self) -> float:
        """For an hour of one of its devices."""
        return self.usd_per_hour / self.devices

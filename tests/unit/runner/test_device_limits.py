"""The process that holds a device to a limit: what becomes of it reaches the record or the reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.case import Case
from paceline.core.errors import Unsupported
from paceline.devices import kind_of
from paceline.runner import device_limits
from support.cli import Sandbox
from support.dimmable_kind import BEFORE, dimmable_machine, environment, limits_set


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    # This process does not have the device: only the variables of the case show it.
    monkeypatch.setattr(device_limits, "kind_of", lambda _: kind_of("cpu"))
    with dimmable_machine(tmp_path / "sandbox") as sandbox:
        yield sandbox


def limited(place: Sandbox, clock: float | None = None) -> Case:
    made = Case(index=0, benchmark="nap", parameters={}, title="nap", target="dimmable:0", env=environment(place))
    return made.model_copy(update={"power_limit": 400.0, "clock_limit": clock})


def test_the_variables_of_the_case_say_which_device_is_limited(place: Sandbox) -> None:
    with device_limits.held_limits(limited(place)) as warnings:
        assert limits_set(place) == [BEFORE, 400]
    assert limits_set(place) == [BEFORE, 400, BEFORE]
    assert warnings == []


def test_a_keeper_that_dies_is_a_warning(place: Sandbox) -> None:
    (place.folder / "dies").touch()
    with device_limits.held_limits(limited(place)) as warnings:
        pass
    assert limits_set(place) == [BEFORE, 400]
    (warning,) = warnings
    assert warning.kind == "limit-not-restored"
    assert "the process that restores ended with 3" in warning.message


def test_what_could_not_be_undone_is_part_of_a_refusal(place: Sandbox) -> None:
    (place.folder / "stuck").touch()
    with pytest.raises(Unsupported) as refused, device_limits.held_limits(limited(place, clock=1000.0)):
        pass
    assert "does not know how to set the clock" in str(refused.value)
    assert "could not be restored" in str(refused.value) and "the knob is stuck" in str(refused.value)


def test_a_driver_that_does_not_answer(place: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_limits, "RESTORING_SECONDS", 0.0)
    with pytest.raises(Unsupported, match="the driver has not answered"), device_limits.held_limits(limited(place)):
        pass
    deadline = time.monotonic() + 60.0
    while limits_set(place) != [BEFORE, 400, BEFORE]:
        assert time.monotonic() < deadline, "what was set late is restored all the same"
        time.sleep(0.02)

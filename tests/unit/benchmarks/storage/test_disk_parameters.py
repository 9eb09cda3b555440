"""What would destroy data, or cannot be meant, is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.benchmarks.storage import disk
from paceline.benchmarks.storage._fio import FioJob
from paceline.benchmarks.storage.disk import Disk, DiskParameters, DiskTarget, _facts
from paceline.core.case import Case
from support.refused import refused


@pytest.fixture
def free_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name is one of a device that nothing uses."""
    monkeypatch.setattr(disk, "check_raw_device", lambda name: None)


def check(origin: str = "local", **given: Any) -> None:
    parameters = DiskParameters.read(given)
    case = Case(index=0, benchmark="disk", parameters=given, title="", origin=origin)  # type: ignore[arg-type]
    Disk.check(parameters, case)


@pytest.mark.usefixtures("free_device")
@pytest.mark.parametrize("pattern", ["write", "random-write", "mixed", "random-mixed"])
def test_a_raw_device_is_written_only_when_that_is_said(pattern: str) -> None:
    with refused("would-destroy-data", key="destroy_data"):
        check(pattern=pattern, raw_device="/dev/sdz")
    check(pattern=pattern, raw_device="/dev/sdz", destroy_data=True)


@pytest.mark.usefixtures("free_device")
@pytest.mark.parametrize("pattern", ["read", "random-read"])
def test_a_raw_device_may_be_read(pattern: str) -> None:
    check(pattern=pattern, raw_device="/dev/sdz")


def test_the_network_names_no_raw_device() -> None:
    with refused("not-from-network", key="raw_device"):
        check(origin="network", raw_device="/dev/sdz")


def test_the_folders_of_another_machine_are_not_looked_for_here() -> None:
    check(origin="network", folder="/no/such/folder")


@pytest.mark.parametrize(
    ("given", "code", "key"),
    [
        ({"destroy_data": True}, "key-does-not-apply", "destroy_data"),
        ({"raw_device": "/dev/sdz", "folder": "/tmp"}, "conflicting-keys", "folder"),
        ({"engine": "psync", "depth": 4}, "conflicting-keys", "depth"),
        ({"read_share": "50%"}, "key-does-not-apply", "read_share"),
        ({"size": "1MiB", "jobs": 2}, "too-small", "size"),
        ({"folder": "/no/such/folder"}, "missing-folder", "folder"),
        ({"folder": "/etc/hostname"}, "not-a-folder", "folder"),
        ({"raw_device": "/dev/null"}, "not-a-block-device", "raw_device"),
        ({"raw_device": "/dev/not-there"}, "missing-device", "raw_device"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], code: str, key: str) -> None:
    with refused(code, key=key):
        check(**given)


def test_a_pattern_that_does_not_exist_is_refused_with_the_known_ones() -> None:
    with refused("invalid-value", key="pattern", suggestion="random-read"):
        check(pattern="randread")


@pytest.mark.parametrize(
    ("rw", "work", "words"),
    [
        ("read", 100, "each another part of the data; after 10 of them it begins again"),
        ("read", 2500, "each goes 2.5 times over all of the data"),
        ("randread", 250, "each touches 25% of the blocks"),
        ("randread", 2000, "each goes 2.0 times over all of the data"),
    ],
)
def test_the_record_says_how_much_of_the_data_comes_again(rw: str, work: int, words: str) -> None:
    job = FioJob("f", rw, 10, "psync", True, 1, 1, region=1000)
    assert words in _facts(DiskTarget("f", 1000, "a file"), job, work)["windows"]

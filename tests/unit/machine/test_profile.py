"""The profile on disk: one for each machine, found again only by that machine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from paceline.core.environment import Cpu, Driver, Environment, Gpu, Software
from paceline.core.errors import PacelineError
from paceline.core.profile import Ceiling, Identity, Profile
from paceline.machine import describe
from paceline.machine.profile import (
    changes_since,
    identify,
    identity_of,
    load_profile,
    profile_path,
    save_profile,
    software_of,
    with_datasheets,
)


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def environment(*gpus: Gpu, torch: str = "2.11.0", driver: str | None = None, **changed: Any) -> Environment:
    return Environment(
        host="n1",
        cpu=Cpu(model="EPYC 9654", architecture="x86_64", usable=96.0),
        gpus=list(gpus),
        driver=Driver(version=driver) if driver else None,
        software=Software(python="3.12.1", implementation="CPython", paceline="0.1.0", packages={"torch": torch}),
    ).model_copy(update=changed)


def ceiling(**changed: Any) -> Ceiling:
    values = {"device": "cuda:0", "device_name": "NVIDIA H200", "kind": "compute", "name": "bf16", "unit": "FLOP/s"}
    return Ceiling.model_validate({"value": 1e12} | values | changed)


def profile(identity: Identity, **changed: Any) -> Profile:
    values: dict[str, Any] = {
        "measured_at": datetime(2026, 3, 14, 9, 26, tzinfo=UTC),
        "version": "0.1.0",
        "run_id": "20260314-092653-k7qd",
        "identity": identity,
        "ceilings": (ceiling(),),
    }
    return Profile.model_validate(values | changed)


def test_this_machine_finds_its_profile_again() -> None:
    kept = profile(identity_of(describe()))
    assert load_profile() is None
    path = save_profile(kept)
    assert path == profile_path(identify())
    assert load_profile() == kept


def test_another_machine_with_the_same_home_finds_none_and_keeps_its_own() -> None:
    here, there = identity_of(environment()), identity_of(environment(host="n2"))
    save_profile(profile(here))
    assert load_profile(there) is None
    save_profile(profile(there, run_id="other"))
    assert load_profile(here).run_id == "20260314-092653-k7qd"  # type: ignore[union-attr]


def test_a_file_that_says_it_is_of_another_machine_is_not_believed() -> None:
    here, there = identity_of(environment()), identity_of(environment(host="n2"))
    profile_path(here).parent.mkdir(parents=True)
    profile_path(here).write_text(profile(there).model_dump_json())
    assert load_profile(here) is None


def test_gpus_tell_a_machine_whatever_it_is_called_and_in_whatever_order(
    fake_nvml: Callable[..., Any],
) -> None:
    one, two = (Gpu(index=index, name="NVIDIA H200", uuid=f"GPU-{index}") for index in (0, 1))
    assert identity_of(environment(one, two)) == identity_of(environment(two, one, host="a-new-container"))
    assert identity_of(environment(one)) != identity_of(environment(two))
    fake_nvml("NVIDIA H200")
    assert [gpu.uuid for gpu in identify().gpus] == ["GPU-0aaa"]


def test_fewer_cores_are_another_machine() -> None:
    fewer = environment(cpu=Cpu(model="EPYC 9654", architecture="x86_64", usable=2.0))
    assert identity_of(fewer) != identity_of(environment())


@pytest.mark.parametrize("text", ["", "{", '{"format": 2}', "[]"])
def test_a_broken_profile_says_where_it_is_and_what_to_do(text: str) -> None:
    here = identity_of(environment())
    profile_path(here).parent.mkdir(parents=True)
    profile_path(here).write_text(text)
    with pytest.raises(PacelineError, match=r"cannot be read .*; measure again: paceline machine --measure") as caught:
        load_profile(here)
    assert str(profile_path(here)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_place_that_takes_no_file_is_named(data_home: Path) -> None:
    (data_home / "paceline").write_text("a file where a folder must be")
    with pytest.raises(PacelineError, match="profile cannot be written"):
        save_profile(profile(identity_of(environment())))


def test_newer_software_is_told() -> None:
    then = environment(driver="570.86.15")
    kept = profile(identity_of(then), software=software_of(then))
    assert changes_since(kept, then) == []
    now = environment(torch="2.13.0", driver="580.1")
    assert changes_since(kept, now) == ["torch was 2.11.0 and is 2.13.0", "driver was 570.86.15 and is 580.1"]
    assert changes_since(kept, environment()) == ["driver was 570.86.15 and is absent"]


def test_datasheets_stand_beside_what_they_promise() -> None:
    gpu = Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", pcie_generation=1, pcie_generation_max=5, pcie_width=16)
    cases = {
        989.4e12: ceiling(),
        4.8e12: ceiling(kind="memory", name="device memory"),
        63.015e9: ceiling(kind="link", name="host to device, pinned"),
        450e9: ceiling(kind="link", name="all-reduce, 8 GPUs", device="cuda:*"),
    }
    found = with_datasheets(cases.values(), environment(gpu))
    assert [one.datasheet for one in found] == pytest.approx(list(cases), rel=1e-3)


@pytest.mark.parametrize(
    "unknown",
    [
        ceiling(device_name="NVIDIA H20"),
        ceiling(device="cpu", device_name="EPYC 9654"),
        ceiling(kind="memory", name="copy within device memory"),
        ceiling(kind="launch", name="issuing a kernel"),
        ceiling(kind="link", name="tcp loopback", device="cpu"),
        ceiling(kind="link", name="host to device, pinned", device_name="NVIDIA GH200 480GB"),
    ],
    ids=lambda one: f"{one.device_name} {one.name}",
)
def test_without_a_promise_there_is_no_percentage(unknown: Ceiling) -> None:
    gpus = [Gpu(index=0, name=unknown.device_name, uuid="GPU-0", pcie_generation_max=5, pcie_width=16)]
    (found,) = with_datasheets([unknown], environment(*gpus))
    assert found.datasheet is None
    assert found.share is None

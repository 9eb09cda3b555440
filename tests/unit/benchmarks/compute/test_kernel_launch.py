"""The loop that launches kernels: it compiles without a warning, really runs, and says why where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from paceline.benchmarks.compute.kernel_launch import (
    KERNEL,
    SOURCE,
    EmptyLoop,
    KernelLaunch,
    KernelLaunchParameters,
    Launcher,
    paced_by,
)
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, Unsupported
from paceline.devices import device_count
from paceline.devices.cuda import _EMPTY_KERNEL
from paceline.measure import native

SUPPORT = Path(__file__).parents[3] / "support"


@pytest.fixture
def c_compiler() -> None:
    try:
        native.compiler()
    except MissingDependency:
        pytest.skip("there is no C compiler here: apt-get install gcc")


@pytest.mark.usefixtures("c_compiler")
def test_the_source_compiles_without_a_warning(tmp_path: Path) -> None:
    command = native.build_command(SOURCE, tmp_path / "built.so")
    done = subprocess.run(
        [*command, "-Wall", "-Wextra", "-Werror"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("c_compiler")
def test_the_empty_loop_takes_longer_for_more_launches() -> None:
    """A loop that the compiler had seen through would take no time however long it is."""
    loop = EmptyLoop()
    short = min(loop.launch(10_000, 10_000).wall for _ in range(20))
    long = min(loop.launch(1_000_000, 1_000_000).wall for _ in range(5))
    assert long > 20 * short > 0


@pytest.mark.usefixtures("c_compiler")
def test_issuing_the_first_few_is_over_before_everything_has_ended() -> None:
    times = EmptyLoop().launch(100_000, 1000)
    assert 0 < times.issued < times.wall


@pytest.fixture(scope="session")
def scripted_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the loader finds the driver of a scripted device."""
    folder = tmp_path_factory.mktemp("driver")
    try:
        command = native.build_command(SUPPORT / "scripted_driver.c", folder / "libcuda.so.1")
    except MissingDependency:
        pytest.skip("there is no C compiler here: apt-get install gcc")
    subprocess.run(command, check=True, timeout=120)
    return folder


def launched(driver: Path, host_ns: int, device_ns: int) -> dict[str, Any]:
    """What kernel-launch measures of a device whose launches cost host and device so much."""
    scripted = {"SCRIPTED_HOST_NS": str(host_ns), "SCRIPTED_DEVICE_NS": str(device_ns)}
    parameters = {"launches": 500, "steps": 20, "warm_up": "10ms"}
    done = subprocess.run(
        [sys.executable, SUPPORT / "scripted_driver.py", json.dumps(parameters)],
        env={**os.environ, **scripted, "LD_LIBRARY_PATH": str(driver)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("host_ns", "device_ns", "paced"), [(2000, 200, "the host:"), (500, 4000, "the device:"), (2000, 2000, "the host:")]
)
def test_clock_and_events_time_the_same_launches(
    scripted_driver: Path, host_ns: int, device_ns: int, paced: str
) -> None:
    """One sample of each view for every step, and what the events see lies within what the clock sees."""
    answer = launched(scripted_driver, host_ns, device_ns)
    samples = answer["samples"]
    views = list(zip(samples["wall_time"], samples["event_time"], samples["issue_time"], strict=True))
    assert len(views) == 20
    assert all(0 < event <= wall for wall, event, _ in views)
    assert answer["facts"]["paced_by"].startswith(paced)
    if paced == "the device:":  # of most: the machine may pause while launches are issued
        assert median(issue for *_, issue in views) < median(event for _, event, _ in views)


@pytest.mark.parametrize(
    ("event", "issue", "paced"),
    [(3.6e-6, 3.5e-6, "the host"), (3.0e-6, 3.5e-6, "the host"), (4.6e-6, 3.5e-6, "the device")],
)
def test_who_sets_the_pace(event: float, issue: float, paced: str) -> None:
    assert paced_by(event, issue).startswith(f"{paced}: ")


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.skipif(device_count() > 0, reason="here is a driver")
def test_a_machine_without_a_driver_says_so() -> None:
    with pytest.raises(Unsupported, match=r"libcuda\.so\.1.*paceline doctor"):
        Launcher(0, _EMPTY_KERNEL.format(target="sm_75", name=KERNEL))


def test_a_cpu_is_refused_with_what_to_use() -> None:
    case = Case(index=0, benchmark="kernel-launch", parameters={}, title="", target="cpu")
    with pytest.raises(Unsupported, match=r"needs an NVIDIA GPU.*--target cuda:0"):
        KernelLaunch().measure(KernelLaunchParameters(), Context(case=case))

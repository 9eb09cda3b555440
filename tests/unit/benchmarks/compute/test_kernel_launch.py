"""The loop that launches kernels: it compiles without a warning, really runs, and says why where it cannot."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from paceline.benchmarks.compute.kernel_launch import (
    KERNEL,
    SOURCE,
    EmptyLoop,
    KernelLaunch,
    KernelLaunchParameters,
    Launcher,
)
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, Unsupported
from paceline.devices import device_count
from paceline.devices.cuda import _EMPTY_KERNEL
from paceline.measure import native


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
    short = min(loop.on_host(10_000).ended for _ in range(20))
    long = min(loop.on_host(1_000_000).ended for _ in range(5))
    assert long > 20 * short > 0


@pytest.mark.usefixtures("c_compiler")
def test_issuing_is_over_before_everything_has_ended() -> None:
    issued, ended = EmptyLoop().on_host(1000)
    assert 0 < issued <= ended


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.skipif(device_count() > 0, reason="here is a driver")
def test_a_machine_without_a_driver_says_so() -> None:
    with pytest.raises(Unsupported, match=r"libcuda\.so\.1.*paceline doctor"):
        Launcher(0, _EMPTY_KERNEL.format(target="sm_75", name=KERNEL))


def test_a_cpu_is_refused_with_what_to_use() -> None:
    case = Case(index=0, benchmark="kernel-launch", parameters={}, title="", target="cpu")
    with pytest.raises(Unsupported, match=r"needs an NVIDIA GPU.*--target cuda:0"):
        KernelLaunch().measure(KernelLaunchParameters(), Context(case=case))

"""The ceilings of a real GPU: each line has a figure, and known devices have their datasheet beside it."""

from __future__ import annotations

import pytest

from paceline.core.profile import Profile
from paceline.devices import datasheet, device_count
from support.cli import Sandbox, events

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")]


def test_a_gpu_has_compute_memory_link_and_launch_ceilings(sandbox: Sandbox) -> None:
    done = sandbox.run("machine", "--measure", "--json", "--set", "budget=200ms", "--set", "warm_up=200ms", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    told = next(event for event in events(done.stdout) if event["event"] == "profile")
    profile = Profile.model_validate(told)
    own = {(one.kind, one.name): one for one in profile.ceilings if one.device == "cuda:0"}
    assert {
        ("compute", "fp32"),
        ("compute", "fp16"),
        ("memory", "device memory"),
        ("link", "host to device, pinned"),
        ("link", "device to host, pinned"),
        ("launch", "issuing a kernel"),
    } <= set(own)
    name = own["compute", "fp16"].device_name
    for key in (("compute", "fp16"), ("memory", "device memory")):
        assert (own[key].datasheet is not None) == (datasheet(name) is not None)
        share = own[key].share
        assert share is None or 5 < share < 110

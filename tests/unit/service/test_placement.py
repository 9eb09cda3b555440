"""What a machine lacks for a job, and what people are told who wait for one."""

from __future__ import annotations

import pytest

from paceline.service.engines.base import FollowerState
from paceline.service.jobs import MachineNeeds
from paceline.service.placement import could_run, is_unheard_of, lacks, why_it_waits
from support.scripted_followers import START


def machine(
    name: str, gpus: int = 0, gpu: str = "NVIDIA A100", memory: int = 80, labels: tuple[str, ...] = ()
) -> FollowerState:
    return FollowerState(
        id=name,
        host=name,
        gpus=(gpu,) * gpus,
        gpu_memory_gib=(memory,) * gpus,
        labels=labels,
        seen_at=START,
        address=name,
    )


@pytest.mark.parametrize(
    ("state", "needs", "told"),
    [
        (machine("a"), MachineNeeds(gpus=1), ["has no GPU"]),
        (machine("a", 2), MachineNeeds(gpu="h200"), ["is not h200"]),
        (machine("a", 2), MachineNeeds(gpus=8, memory_gib=141), ["has GPUs of 80 GiB, not 141", "has 2 of the 8 GPUs"]),
        (machine("a", labels=("fast",)), MachineNeeds(labels=("slow",)), ["is not slow"]),
        (machine("a"), MachineNeeds(follower="b"), ["is not b"]),
        (machine("a"), MachineNeeds(follower="a"), []),
        (machine("a", 8, labels=("Fast",)), MachineNeeds(gpu="a100", gpus=8, labels=("fast",)), []),
    ],
)
def test_what_a_machine_lacks(state: FollowerState, needs: MachineNeeds, told: list[str]) -> None:
    assert lacks(state, needs) == told
    assert could_run(state, needs) == (not told)


def test_the_nearest_machine_is_named() -> None:
    needs = MachineNeeds(gpus=4, memory_gib=141)
    here = [machine("none"), machine("few", 2, memory=141), machine("old", 2)]
    assert why_it_waits(needs, here, here).endswith("the nearest, few, has 2 of the 4 GPUs")
    assert why_it_waits(needs, [], []) == "no machine is here"
    assert is_unheard_of(needs, here)


def test_a_machine_that_is_away_is_waited_for() -> None:
    needs = MachineNeeds(gpus=1)
    here, away = [machine("plain")], machine("gpus", 1)
    told = why_it_waits(needs, here, [*here, away])
    assert told == "none of the machines here can run it; it waits for gpus to return"
    assert not is_unheard_of(needs, [*here, away])


def test_machines_of_a_gang_must_be_alike() -> None:
    needs = MachineNeeds(gpus=1, nodes=2)
    unlike = [machine("a", 1), machine("b", 2)]
    assert "2 machines with the same GPUs and labels" in why_it_waits(needs, unlike, unlike)
    assert is_unheard_of(needs, unlike)
    alike = [machine("a", 1), machine("b", 1)]
    assert why_it_waits(needs, alike, alike) == ""
    alike[0] = alike[0].model_copy(update={"memory_gib": 251.9})
    assert why_it_waits(needs, alike, alike) == "", "the kernel keeps more of the memory of one for itself"
    assert not is_unheard_of(needs, alike)


def test_machines_whose_address_nobody_knows_make_no_gang() -> None:
    known = machine("a")
    hidden = known.model_copy(update={"address": ""})
    assert could_run(hidden, MachineNeeds())
    assert lacks(hidden, MachineNeeds(nodes=2)) == ["is not reached by the others of a gang"]
    assert lacks(known, MachineNeeds(nodes=2)) == []

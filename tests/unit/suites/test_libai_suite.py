"""The suite `libai` holds every published layout, and each machine gets those that fit it."""

from __future__ import annotations

import pytest

from paceline.analysis.published import libai_rows
from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case
from paceline.core.layout import Layout
from paceline.core.suite import Here, expand
from paceline.runner.suite_file import load_suite

ONE_GPU = {
    f"{word.format(precision)}_1n1g"
    for precision in ("fp16", "bf16")
    for word in (
        "gpt2/nl24_{}_1x1x1_mb6_gb6",
        "gpt2/nl24_{}_1x1x1_ac_mb32_gb256",
        "bert/nl24_{}_1x1x1_mb24_gb24",
        "bert/nl24_{}_1x1x1_ac_mb128_gb1024",
    )
} | {"gpt2/nl24_bf16_1x1x1_mb32_gb32_1n1g", "bert/nl24_bf16_1x1x1_ac_mb128_gb128_1n1g"}


def cases(here: Here) -> list[Case]:
    return expand(load_suite("libai"), BENCHMARKS.registry().get, here)


def words(here: Here) -> set[str]:
    return {case.title.partition(" ")[0] for case in cases(here)}


def test_one_gpu_trains_what_was_published_of_one() -> None:
    assert words(Here(devices={"cuda": 1})) == ONE_GPU


@pytest.mark.parametrize("gpus", [2, 4, 7, 8])
def test_one_host_trains_what_its_gpus_suffice_for(gpus: int) -> None:
    expected = {str(row.layout) for row in libai_rows() if row.layout.nodes == 1 and row.layout.world_size <= gpus}
    assert words(Here(devices={"cuda": gpus})) == expected | ONE_GPU


@pytest.mark.parametrize("nodes", [2, 4])
def test_several_hosts_train_what_is_for_all_of_them(nodes: int) -> None:
    expected = {str(row.layout) for row in libai_rows() if row.layout.nodes == nodes}
    assert expected
    assert words(Here(devices={"cuda": 8}, world=8 * nodes, nodes=nodes)) == expected


def test_a_cpu_trains_small_models_over_at_most_two_processes() -> None:
    found = cases(Here())
    assert {case.ranks for case in found} == {1, 2}
    assert all(case.parameters["hidden"] <= 64 for case in found)
    layouts = [Layout.parse(case.title.partition(" ")[0]) for case in found]
    assert {layout.model for layout in layouts} == {"gpt2", "bert"}
    assert {layout.mesh for layout in layouts} == {"1x1x1", "2x1x1", "1x2x1", "1x1x2"}

"""The suite `libai` with its peer on a CPU: both are measured in turns, and the published tables are printed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from paceline.core.record import Outcome
from support.cli import Sandbox

# Whether it is there, without the seconds that importing it takes.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("megatron"), reason="needs megatron-core: pip install '.[megatron]'"),
]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param([], id="whole", marks=pytest.mark.long),
        pytest.param(["--only", "gpt2/nl2_fp32_1x1x1"], id="one layout"),
    ],
)
def test_the_comparison_is_one_command(sandbox: Sandbox, chosen: list[str]) -> None:
    short = ["--set", "budget=300ms", "--set", "warm_up=100ms"]
    done = sandbox.run("run", "libai", "--peer", "megatron-core", "--no-report", *short, *chosen, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    records = sandbox.load().records
    assert [record.case.benchmark for record in records] == ["parallel", "megatron-core"] * (len(records) // 2)
    assert all(record.outcome is Outcome.OK for record in records)
    printed = done.stdout.partition("Compared with LiBai's published figures: Data Parallel")[2]
    filled = [
        line.split("|") for line in printed.splitlines() if "hidden=64" in line and line.startswith(("BERT", "GPT"))
    ]
    assert len(filled) == len(records) // 2
    for line in filled:
        ours, peer, ratio = (cell.split()[0] for cell in line[2:5])
        assert float(ratio) == pytest.approx(float(ours.replace(",", "")) / float(peer.replace(",", "")), abs=0.02)
    assert "1207.65" in printed  # theirs on 32 GPUs, although nothing of the kind was run
    assert "8x1x1_mb16_gb64_1n4g *" in printed
    assert "megatron-core " in printed.partition("Measured on")[2]

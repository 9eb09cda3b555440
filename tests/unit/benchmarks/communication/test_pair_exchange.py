"""Exchanges of pairs by RDMA: which end serves, and what perftest's figure of both ways means for one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.benchmarks.communication import _pair_exchange, rdma
from paceline.benchmarks.communication._pair_exchange import RdmaExchange
from paceline.benchmarks.communication.pairs import PairsParameters
from support.perftest import MEET
from support.refused import refused

# The client reports 160 Gbit/s of both ways together.
STAND_IN = (
    """#!{python}
import socket, sys
from pathlib import Path
def of(name): return sys.argv[sys.argv.index(name) + 1]
port, size, count = int(of("--port")), of("--size"), of("--iters")
assert "--bidirectional" in sys.argv
role = "serves" if sys.argv[-1] == str(port) else "asks"
with open({log!r}, "a") as log: print(of("--ib-dev"), role, file=log)
"""
    + MEET
    + """rule = "-" * 87
print(rule)
print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
print(f" {{size}}      {{count}}      161.00             160.00             0.02")
print(rule)
"""
)


class Meeting:
    """Ranks as threads: what each says is known to all."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=60)
        self._said: dict[int, Any] = {}
        self.count = count

    def rank(self, number: int) -> Any:
        return SimpleNamespace(rank=number, world_size=self.count, gather=lambda mine: self._gather(number, mine))

    def swap(self, ranks: Any, mine: Mapping[int, int]) -> dict[int, int]:
        said = self._gather(ranks.rank, dict(mine))
        return {other: said[other][ranks.rank] for other in mine}

    def _gather(self, number: int, mine: Any) -> list[Any]:
        self._said[number] = mine
        self._barrier.wait()
        said = [self._said[one] for one in range(self.count)]
        self._barrier.wait()
        return said

    def together(self, work: Callable[[Any], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.count) as threads:
            return list(threads.map(lambda number: work(self.rank(number)), range(self.count)))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two adapters and a perftest, which writes down what is asked of it."""
    for name in ("mlx5_0", "mlx5_1"):
        (tmp_path / "infiniband" / name).mkdir(parents=True)
    program, log = tmp_path / "ib_write_bw", tmp_path / "log"
    program.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    program.chmod(0o755)
    monkeypatch.setattr(rdma, "DEVICES", tmp_path / "infiniband")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    return log


@pytest.mark.parametrize("count", [2, 3])
def test_the_later_rank_serves_and_the_earlier_has_the_figure_of_one_way(
    log: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    meeting = Meeting(count)
    monkeypatch.setattr(_pair_exchange, "swap", meeting.swap)

    def work(ranks: Any) -> tuple[int, dict[int, list[float]]]:
        exchange = RdmaExchange(ranks, 10 * 1024**2, ranks.rank)
        return exchange.size, exchange.time([other for other in range(count) if other != ranks.rank], 2)

    for rank, (size, times) in enumerate(meeting.together(work)):
        assert size == 10 * 1024**2
        for other, seconds in times.items():
            expected = [size / 10e9] * 2 if rank < other else []  # 160 Gbit/s of both ways are 10 GB/s of each
            assert seconds == pytest.approx(expected)
    lines = log.read_text().split("\n")
    assert lines.count("mlx5_0 asks") >= 3, "the rank's place chooses the adapter, and the first exchange is not timed"
    assert "mlx5_0 serves" not in lines or count == 3
    assert lines.count("mlx5_1 serves") == 3


def test_collectives_have_an_all_to_all_of_their_own() -> None:
    with refused("invalid-value", says="all-to-all is for tcp and rdma"):
        PairsParameters.read({"pattern": "all-to-all"})
    assert PairsParameters.read({"pattern": "all-to-all", "by": "tcp"}).streams == 4

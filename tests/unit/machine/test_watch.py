"""What is read of a machine again and again, and what is kept of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.watch import Watched, WatchSeries
from paceline.devices import kind_of
from paceline.machine import conditions
from paceline.machine.conditions import MOST_POINTS, summarize_looks, watcher

STAT = "cpu  {busy} 0 0 900 0 0 0 {steal} 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\ncpu1 1 0 0 1 0 0 0 0 0 0\nintr 5\n"
NET = """\
Inter-| Receive | Transmit
 face | bytes packets errs drop fifo frame compressed multicast | bytes packets errs drop fifo colls carrier compressed
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
  eth0: 500 5 1 2 0 0 0 0 700 7 3 4 0 0 0 0
  idle: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    write(tmp_path, "proc/stat", STAT.format(busy=200, steal=10))
    write(tmp_path, "proc/net/dev", NET)
    write(tmp_path, "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "2400000\n")
    counters = "sys/class/infiniband/mlx5_0/ports/1/counters"
    for name, count in {"port_xmit_data": 25, "port_rcv_data": 50, "symbol_error": 1, "link_downed": 2}.items():
        write(tmp_path, f"{counters}/{name}", f"{count}\n")
    return tmp_path


def named(watched: Watched) -> dict[tuple[str, str], WatchSeries]:
    return {(one.of, one.name): one for one in watched.series}


def test_a_look_at_cores_networks_and_ports(machine: Path) -> None:
    seen = watcher(["cpu"], {1}, machine)()
    ticks = conditions._TICKS
    assert seen["cpu", "busy"] == 200 / ticks / 2, "seconds of all cores, divided by their number"
    assert seen["cpu", "steal"] == 10 / ticks / 2
    assert seen["cpu", "frequency"] == 2400
    assert {name: seen["eth0", name] for name in ("received", "sent", "errors", "drops")} == {
        "received": 500,
        "sent": 700,
        "errors": 4,
        "drops": 6,
    }
    assert (seen["mlx5_0/1", "sent"], seen["mlx5_0/1", "received"], seen["mlx5_0/1", "errors"]) == (100, 200, 3)
    assert not {of for of, _ in seen} & {"lo", "idle"}


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert watcher(["cpu"], {0}, tmp_path)() == {}


def test_shares_rates_and_growth(machine: Path) -> None:
    read = watcher(["cpu"], {1}, machine)
    before = read()
    ticks = conditions._TICKS
    write(machine, "proc/stat", STAT.format(busy=200 + ticks, steal=10 + ticks // 2))
    write(machine, "proc/net/dev", NET.replace("500 5 1", "4500 5 8"))
    seen = named(summarize_looks([(0.0, before), (2.0, read())]))
    assert seen["cpu", "busy"].value == pytest.approx(0.25), "one second of the two of two cores"
    assert seen["cpu", "steal"].value == pytest.approx(ticks // 2 / ticks / 4)
    assert seen["cpu", "steal"].values == [None, pytest.approx(ticks // 2 / ticks / 4)]
    received, errors = seen["eth0", "received"], seen["eth0", "errors"]
    assert (received.value, received.unit, received.metric) == (2000, "B/s", "watch/eth0/received_mean")
    assert (errors.value, errors.values, errors.metric) == (7, [0, 7], "watch/eth0/errors_new")
    assert seen["cpu", "frequency"].values == [2400], "what did not change is kept once"


def test_the_length_is_bounded_and_no_maximum_is_lost() -> None:
    count = 10 * MOST_POINTS + 7
    looks = [
        (float(second), {("gpu", "temperature"): 99.0 if second == 777 else 50.0, ("gpu", "power"): float(second)})
        for second in range(count)
    ]
    seen = summarize_looks(looks)
    assert MOST_POINTS / 2 <= len(seen.times) <= MOST_POINTS
    assert seen.times[0] == 0 and seen.times[-1] > 0.9 * count
    steps = {after - before for before, after in pairwise(seen.times)}
    assert len(steps) == 1, "they stay evenly apart"
    series = named(seen)
    assert series["gpu", "temperature"].value == 99.0
    assert series["gpu", "power"].value == pytest.approx((count - 1) / 2)
    assert len(series["gpu", "power"].values) == len(seen.times)


def test_what_appears_late_is_missed_once_or_is_not_known() -> None:
    looks = [
        (0.0, {("cpu", "frequency"): 1000.0, ("cpu", "odd"): 1.0}),
        (1.0, {("eth0", "sent"): 10.0}),
        (2.0, {("cpu", "frequency"): 3000.0, ("eth0", "sent"): 40.0}),
    ]
    seen = named(summarize_looks(looks))
    assert seen["cpu", "frequency"].values == [1000, None, 3000]
    assert seen["eth0", "sent"].values == [None, None, 30]
    assert seen["eth0", "sent"].value == 30
    assert ("cpu", "odd") not in seen


def test_a_single_look_gives_no_rate() -> None:
    looks = [(0.0, {("eth0", "sent"): 10.0, ("gpu", "temperature"): 40.0})]
    assert [one.name for one in summarize_looks(looks).series] == ["temperature"]


def test_a_gpu_through_its_driver(fake_nvml: Any) -> None:
    fake = fake_nvml("NVIDIA H200", "NVIDIA H200")
    fake.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, fake.NVML_FI_DEV_REMAPPED_COR, fake.NVML_FI_DEV_REMAPPED_UNC = 4, 142, 143
    fake.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    fake.counters |= {4: 1, 142: 2, 143: 3, 138: 10}
    events: list[Any] = []
    fake.nvmlEventTypeXidCriticalError = 8
    fake.nvmlEventSetCreate = lambda: "events"
    fake.nvmlDeviceRegisterEvents = lambda *_: None
    fake.nvmlEventSetWait_v2 = lambda *_: events.pop()
    look = kind_of("cuda:*").watcher("cuda:*")
    first, second = look()
    assert first == second
    assert (first["temperature"], first["power"], first["sm_clock"]) == (31, 76.5, 345)
    assert (first["throttled"], first["power_capped"]) == (1, 1)
    assert (first["ecc_uncorrected"], first["remapped_rows"], first["sent"]) == (1, 5, 10 * 1024)
    assert first["xid"] == 0
    events.append(SimpleNamespace(eventData=79))
    assert [one["xid"] for one in look()] == [79, 0]
    assert [one["xid"] for one in look()] == [79, 0], "it stays the last one"


def test_a_driver_that_answers_little(fake_nvml: Any) -> None:
    fake_nvml(unsupported=("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"))
    (seen,) = kind_of("cuda:0").watcher("cuda:0")()
    assert seen["temperature"] == 31
    assert not {"power", "ecc_uncorrected", "xid"} & seen.keys()

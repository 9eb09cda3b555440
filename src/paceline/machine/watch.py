"""Looks at the machine again and again while something is measured on it: its cores, networks and devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import pairwise
from pathlib import Path

from paceline.core.probe import ROOT, attempt, read_int, read_text
from paceline.core.watch import KINDS, Readings, Watched, WatchSeries
from paceline.devices import kind_of
from paceline.machine.cpu import frequency_mhz

MOST_POINTS = 120  # of a series; of more looks, every second one, every third, and so on
_TICKS = os.sysconf("SC_CLK_TCK")
# Of an InfiniBand port; data is counted in units of four bytes.
_PORT = {
    "received": (("port_rcv_data",), 4.0),
    "sent": (("port_xmit_data",), 4.0),
    "errors": (("symbol_error", "link_downed", "port_rcv_errors"), 1.0),
    "drops": (("port_xmit_discards",), 1.0),
}


def watcher(targets: Sequence[str], cpus: Set[int], root: Path = ROOT) -> Callable[[], Readings]:
    """What reads everything at once: the host, whose clock is that of the given cores, and the targets' devices."""
    cpus = cpus if frequency_mhz(root, cpus) is not None else frozenset()  # to ask in vain takes long
    ports = sorted(root.glob("sys/class/infiniband/*/ports/*/counters"))
    devices = [(target, attempt(partial(_device_watcher, target))) for target in targets]

    def read() -> Readings:
        found: dict[tuple[str, str], float] = {}
        for of, name, value in (*_cores(root, cpus), *_networks(root), *_ports(ports)):
            found[of, name] = value
        for target, look in devices:
            of_devices = (attempt(look) if look is not None else None) or ()
            for index, readings in enumerate(of_devices):
                of = target if len(of_devices) == 1 else f"{kind_of(target).name}:{index}"
                found.update({(of, name): value for name, value in readings.items()})
        return found

    return read


def _device_watcher(target: str) -> Callable[[], Sequence[Mapping[str, float]]]:
    return kind_of(target).watcher(target)


def _cores(root: Path, cpus: Set[int]) -> Iterator[tuple[str, str, float]]:
    """Seconds of all cores together, divided by their number, so that growth in a second is a share."""
    lines = (read_text(root / "proc/stat") or "").splitlines()
    count = sum(line.startswith("cpu") for line in lines) - 1
    if count > 0:
        user, nice, system, _idle, _waiting, interrupts, soft, steal = map(int, lines[0].split()[1:9])
        yield "cpu", "busy", (user + nice + system + interrupts + soft) / _TICKS / count
        yield "cpu", "steal", steal / _TICKS / count
    if cpus and (clock := frequency_mhz(root, cpus)) is not None:
        yield "cpu", "frequency", clock


def _networks(root: Path) -> Iterator[tuple[str, str, float]]:
    """Bytes, errors and drops of each interface that was ever used, but the loopback."""
    for line in (read_text(root / "proc/net/dev") or "").splitlines()[2:]:
        name, _, numbers = line.partition(":")
        columns = [int(word) for word in numbers.split()]
        if name.strip() != "lo" and len(columns) >= 16 and columns[0] + columns[8]:
            counts = (columns[0], columns[8], columns[2] + columns[10], columns[3] + columns[11])
            yield from ((name.strip(), what, count) for what, count in zip(_PORT, counts, strict=True))


def _ports(folders: Sequence[Path]) -> Iterator[tuple[str, str, float]]:
    for folder in folders:
        of = f"{folder.parents[2].name}/{folder.parent.name}"
        for name, (files, scale) in _PORT.items():
            counts = [count for file in files if (count := read_int(folder / file)) is not None]
            if counts:
                yield of, name, scale * sum(counts)


def summarize_looks(looks: Sequence[tuple[float, Readings]]) -> Watched:
    """The series that looks at these times give, each with its figure from all of them, and a part of its points."""
    kept = [at for at, _ in looks[:: -(-len(looks) // MOST_POINTS)]]
    series = []
    for of, name in dict.fromkeys(key for _, readings in looks for key in readings if key[1] in KINDS):
        kind = KINDS[name]
        points = [(at, readings[of, name]) for at, readings in looks if (of, name) in readings]
        (began, first), (ended, last) = points[0], points[-1]
        shown = dict(points)
        if kind.is_rate:
            rates = {at: (now - before) / (at - since) for (since, before), (at, now) in pairwise(points)}
            shown = {at: min(rate, kind.most) for at, rate in rates.items()}
            figure = min((last - first) / (ended - began), kind.most) if shown else None
        elif kind.figure == "new":
            shown, figure = {at: now - first for at, now in points}, last - first
        else:
            figure = max(shown.values()) if kind.figure == "max" else sum(shown.values()) / len(shown)
        if figure is not None:
            values = [float(f"{shown[at]:.4g}") if at in shown else None for at in kept]  # as exact as a sensor is
            values = values[:1] if len(set(values)) == 1 else values
            series.append(
                WatchSeries(of=of, name=name, unit=kind.unit, figure=kind.figure, value=figure, values=values)
            )
    return Watched(times=[round(at, 2) for at in kept], series=series)

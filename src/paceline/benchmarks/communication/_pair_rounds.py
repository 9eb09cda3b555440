"""Which ranks exchange data in which round: everybody with everybody, within groups, or across the network's distances.

A round is an array with the partner of each rank, -1 where it rests. Distances are hops between hosts, from the output
of `ibnetdiscover`: two hosts at one switch are 2 apart. Hosts pass nothing on: all ways lead through switches alone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError

Round = NDArray[np.int64]

_DEVICE = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*#\s*"([^"]*)"')
_PORT = re.compile(r'^\[\d+\][^"]*"([^"]+)"\[\d+\]')
_NOT_OF_HOSTS = ("Aggregation Node", "ufm")  # what calls itself so computes or manages inside the network


def partners(number: int, ranks: int) -> Round:
    """With whom each rank exchanges data in a round of a tournament.

    All but the last sit in a circle that turns: those whose places add up to the number of the round meet, and who
    would meet itself meets the last, which is nobody where the number of ranks is odd.
    """
    places = ranks - 1 + ranks % 2
    met = (number - np.arange(places)) % places
    alone = int(np.flatnonzero(met == np.arange(places))[0])
    met[alone] = places if places < ranks else -1
    return np.append(met, alone) if places < ranks else met


def pair_wise(ranks: int) -> list[Round]:
    """Every pair once."""
    return [partners(number, ranks) for number in range(ranks - 1 + ranks % 2)]


def check_batch(ranks: int, batch: int) -> None:
    """Refuse groups of more ranks than there are."""
    if batch > ranks:
        message = f"batch = {batch} is larger than the number of ranks, {ranks}; give a smaller one"
        raise InputError("invalid-value", message, key="batch", value=batch)


def k_batch(ranks: int, batch: int) -> list[Round]:
    """Every pair of each group of so many ranks that follow each other, all groups at once; what is left over rests."""
    check_batch(ranks, batch)
    first = np.arange(ranks) // batch * batch
    rounds = []
    for met in pair_wise(batch):
        within = met[np.arange(ranks) - first]
        is_resting = (within < 0) | (first + batch > ranks)
        rounds.append(np.where(is_resting, -1, first + within))
    return rounds


def topology_aware(
    nodes: Sequence[str], apart: Mapping[str, NDArray[np.int64]], names: Sequence[str], least: int, most: int
) -> dict[int, Round]:
    """For each distance as many pairs of nodes that far apart as meet at once: the round, of ranks on `nodes`.

    `apart` has for each of `names` how far it is from all of them. The ranks of a node meet those of the other in their
    order.
    """
    ranks_of = {name: [rank for rank, node in enumerate(nodes) if node == name] for name in names}
    rounds = {}
    for distance in range(least, most + 1):
        met, is_free = np.full(len(nodes), -1), np.ones(len(names), dtype=bool)
        for place, name in enumerate(names):
            others = np.flatnonzero(is_free & (apart[name] == distance)) if is_free[place] else ()
            for other in others[:1]:
                is_free[[place, other]] = False
                for one, two in zip(ranks_of[name], ranks_of[names[other]], strict=False):
                    met[one], met[two] = two, one
        if (met >= 0).any():
            rounds[distance] = met
    return rounds


def distances(ibnetdiscover: str, names: Sequence[str], ibstat: str = "") -> dict[str, NDArray[np.int64]]:
    """How many hops each of these hosts is from all of them; 0 where no way is known.

    A host is known by the first word of its adapters' description, or by their GUIDs where `ibstat` lists these: a line
    `VM_hostname NAME`, then a line with the GUID of each adapter.
    """
    host_of_guid, name = {}, ""
    for line in map(str.strip, ibstat.splitlines()):
        if line.startswith("VM_hostname"):
            name = line.split()[-1]
        elif re.fullmatch(r"[0-9a-f]{16}", line) and line.strip("0"):
            host_of_guid[line] = name
    links: dict[str, set[str]] = {}  # of each switch, the switches next to it
    switches_of: dict[str, set[str]] = {name: set() for name in names}
    device = owner = ""
    for line in map(str.strip, ibnetdiscover.splitlines()):
        if found := _DEVICE.match(line):
            kind, device, text = found.groups()
            is_host = kind == "Ca" and not any(word in text for word in _NOT_OF_HOSTS)
            guid = device.partition("-")[2]
            owner = (host_of_guid.get(guid, "") if host_of_guid else text.split(" ")[0]) if is_host else ""
            if kind != "Ca":
                links.setdefault(device, set())
        elif (port := _PORT.match(line)) and port[1].startswith("S-"):
            if device in links:
                links[device].add(port[1])
                links.setdefault(port[1], set()).add(device)
            elif owner in switches_of:
                switches_of[owner].add(port[1])
    if unknown := [name for name, switches in switches_of.items() if not switches]:
        message = (
            f"the topology does not say where {unknown[0]} is connected; it needs the output of ibnetdiscover, with "
            f"hosts by their names or with the GUIDs of their adapters in the file of --ibstat"
        )
        raise InputError("unknown-host", message, key="topology", value=unknown[0])
    groups = {frozenset(switches): _hops(links, switches) for switches in switches_of.values()}
    far = len(links) + 1
    rows = {
        group: np.array([2 + min(hops.get(switch, far) for switch in switches_of[other]) for other in names])
        for group, hops in groups.items()
    }
    apart = {}
    for place, name in enumerate(names):
        row = rows[frozenset(switches_of[name])].copy()
        row[place] = 0
        apart[name] = np.where(row > far, 0, row)
    return apart


def _hops(links: Mapping[str, set[str]], start: set[str]) -> dict[str, int]:
    hops = dict.fromkeys(start, 0)
    waiting = deque(start)
    while waiting:
        switch = waiting.popleft()
        for other in links.get(switch, ()):
            if other not in hops:
                hops[other] = hops[switch] + 1
                waiting.append(other)
    return hops

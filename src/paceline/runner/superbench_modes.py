"""The modes of SuperBench's config files: how many processes they start, where, and what of that cannot be so here."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.core.errors import InputError
from paceline.core.suite import Asked, AskedOf, Here, Suite

LOCAL = "local"
MODES = (LOCAL, "torch.distributed", "mpi")
MODE_KEYS = {"name", "proc_num", "node_num", "prefix", "env", "mca", "parallel", "pattern"}
_VISIBLE = re.compile(r"(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES=(\S+)")
_DEVICE_OF_RANK = re.compile(r"\{proc_rank\}|\$\(\(\{proc_rank\}%([1-9]\d*)\)\)")
_OF_RANK = re.compile(r"(PROC_RANK|NUMA_NODES)=\S+")
_ADAPTERS = re.compile(r"IB_DEVICES=(\S+)")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(\S*)")


@dataclass
class LeftOut:
    """What of a config is not measured as it says, gathered while it is read."""

    notes: list[str] = field(default_factory=list)  # what has no counterpart, and why
    needless: list[str] = field(default_factory=list)  # what is not needed here, and why
    asked: list[Asked] = field(default_factory=list)  # what depends on the machine

    def ask(self, what: str, count: int, of: AskedOf) -> None:
        """Whether so many of them measure is seen where the cases are made."""
        one = Asked(what=what, count=count, of=of)
        if one not in self.asked:
            self.asked.append(one)

    def note(self, text: str) -> None:
        """What several entries of a benchmark have in common is said once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class Mode:
    """How SuperBench starts the processes of a benchmark."""

    title: str  # of the benchmark
    kind: str
    processes: int | None  # on each host; None where the config leaves it open
    nodes: int | None
    is_each: bool  # each process has a device of its own
    at_once: bool
    env: Mapping[str, Any]
    adapters: list[str] | None  # one for each process

    def place(self, made: Mapping[str, Any], keys: Mapping[str, Any], left: LeftOut) -> dict[str, Any]:
        """An entry with what its mode says, as far as the benchmark leaves it open where it runs."""
        each = {"target": "auto:each", "at_once": self.at_once} if self.is_each else {"target": "auto"}
        entry = {**(each if self.kind == LOCAL else {"target": "auto:*"}), **keys, **made}
        if entry["target"] != "auto:each":
            entry.pop("at_once", None)
        if (most := self._most_devices(entry, left)) is not None:
            entry["most_devices"] = most
        if self.nodes is not None and entry["target"] == "auto:*":
            left.ask(self._said("node_num", self.nodes), self.nodes, "hosts")
        elif (self.nodes or 1) > 1:
            left.note(f"{self._said('node_num', self.nodes)}: one host measures it")
        return entry

    def _most_devices(self, entry: dict[str, Any], left: LeftOut) -> int | None:
        """How many devices its processes take; None where that is all of them, or one in any case."""
        target, processes = entry["target"], self.processes or 1  # as SuperBench has it for a mode that does not say
        of_process: int | None = entry.pop("most_devices", None)
        said = self._said("proc_num", processes)
        if target == "auto:*" and self.kind != LOCAL:
            if self.processes is None:
                if of_process is not None:
                    left.note(f"{self.title}, parameters, ngpus, {of_process}: all devices take part without proc_num")
                return None
            count = processes * (of_process or 1)
            left.ask(f"{said} with ngpus, {of_process}" if of_process else said, count, "ranks")
            return count
        if target == "auto:*":
            if processes > 1:
                left.note(f"{said}: one case over the devices, none side by side")
            if of_process is not None:
                left.ask(f"{self.title}, parameters, ngpus, {of_process}", of_process, "ranks")
            return of_process
        if target == "auto:each" and self.is_each and self.kind == LOCAL:
            left.ask(said, processes, "each")
            return processes
        if self.adapters is not None and processes > len(self.adapters):
            left.note(f"{said}: IB_DEVICES names {len(self.adapters)} adapters")
        elif self.adapters is None and processes > 1:
            left.note(f"{said}: one process measures it, not several side by side")
        return None

    def _said(self, key: str, value: object) -> str:
        return f"{self.title}, mode {self.kind}, {key}, {value}"


def read_mode(title: str, kind: str, mode: Mapping[str, Any], env: Mapping[str, Any], left: LeftOut) -> Mode:
    """What a mode says; what of it has no counterpart is noted."""
    processes = read_count("proc_num", mode.get("proc_num"))
    given = mode.get("node_num")  # which SuperBench does not look at in a local mode
    nodes = None if kind == LOCAL or given == "all" else read_count("node_num", given)
    if mode.get("mca"):
        left.notes.append(f"{title}, mca: ranks are started without MPI, by Paceline itself")
    words = str(mode.get("prefix") or "").split()
    binding = next((place for place, word in enumerate(words) if word == "numactl"), None)
    if binding is not None:
        left.notes.append(f"{title}, prefix, {' '.join(words[binding:])}: processes are not bound to NUMA nodes")
        words = words[:binding]
    is_each, variables, adapters = False, dict(env), None
    for word in words:
        if match := _VISIBLE.fullmatch(word):
            is_each = "{proc_rank}" in word
            own = _DEVICE_OF_RANK.fullmatch(match[1])
            if own is None and match[1] != "0":
                left.notes.append(f"{title}, prefix, {word}: devices are taken in their order, from the first")
            elif own is not None and own[1] and processes is not None and processes > int(own[1]):
                why = f"each of {own[1]} devices measures once"
                left.notes.append(f"{title}, mode {kind}, proc_num, {processes}: {why}")
                processes = int(own[1])
        elif match := _ADAPTERS.fullmatch(word):
            adapters = match[1].split(",")[: processes or 1]
        elif not _OF_RANK.fullmatch(word):
            if (match := _VARIABLE.fullmatch(word)) and "{" not in word:
                variables[match[1]] = match[2]
            else:
                left.notes.append(f"{title}, prefix, {word}: no command is put in front of a process")
    at_once = bool(mode.get("parallel", True))
    return Mode(title, kind, processes, nodes, is_each, at_once, variables, adapters)


def read_count(key: str, value: object) -> int | None:
    """How many there are of something; None where it is not said."""
    if value is None:
        return None
    text = str(value)
    if isinstance(value, int | str) and not isinstance(value, bool) and text.isdecimal() and int(text) >= 1:
        return int(text)
    message = f"'{key}' = {value!r} must be a whole number of at least 1: write how many, or leave it out"
    raise InputError("not-a-count", message, key=key, value=value)


def not_as_asked(suite: Suite, here: Here, of: Collection[AskedOf] = ("hosts", "ranks", "each")) -> list[str]:
    """What another number of hosts or devices measures here than the config asks for, each with which."""
    reasons = {one.what: _reason(one, here) for one in suite.asked if one.of in of}
    return [f"{what}: {reason}" for what, reason in reasons.items() if reason]


def _reason(one: Asked, here: Here) -> str:
    if one.of == "hosts":
        if one.count == here.nodes:
            return ""
        if here.nodes == 1:
            return "one host measures it by itself; --hosts A,B joins several"
        alone = "; --each measures every host by itself" if one.count == 1 else ""
        return f"all {here.nodes} hosts take part{alone}"
    if one.of == "ranks" and here.world > 1:
        if one.count * here.nodes == here.world:
            return ""
        if here.nodes == 1:
            return f"{here.world} ranks on one host take part; --hosts A:{one.count} starts others"
        return (
            f"{here.world} ranks on {here.nodes} hosts take part; --hosts with :{one.count} behind each starts others"
        )
    if one.count <= max(1, here.gpus):
        return ""
    if here.gpus == 0:
        return "there is no GPU here, so one process measures on the CPU"
    return "the only device takes part" if here.gpus == 1 else f"all {here.gpus} devices take part"

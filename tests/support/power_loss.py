"""Records what work changes on a disk, and lets a machine lose power at any moment of it.

    LD_PRELOAD=bad_disk.so python power_loss.py FOLDER WORK SAMPLES SEED [FLAW]

WORK is some of store, spool and follower, joined by commas.
A sample is a moment, and what the disk has by then: all that was synchronised; of
every other write, all, nothing, or some of its sectors; of the names in each directory, the first so many changes. So
it is stricter than the file systems in use, which order more than that. What was acknowledged before the moment is then
looked for. The flaw `no-sync` takes every synchronisation for void, which must be noticed. Prints what was tried.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import struct
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.bad_disk import BadDisk, Call
from support.fault_sweep import Sweep

SECTOR = 512
HEADER = struct.Struct("<5q")
ACKNOWLEDGED = "acknowledged"  # the file whose lines say what was


@dataclass(frozen=True)
class Change:
    """One call, as it was recorded."""

    call: Call
    path: Path
    other: Path
    offset: int
    data: bytes


@dataclass(eq=False)
class File:
    """A file: what it holds for sure, and what was done to it since."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # nothing to write is a truncation

    def sync(self) -> None:
        for offset, data in self.pending:
            apply(self.content, offset, data)
        self.pending = []

    def after_loss(self, chance: random.Random) -> bytes:
        content = bytearray(self.content)
        for offset, data in self.pending:
            fate = chance.random()
            if fate < 0.4:
                apply(content, offset, data)
            elif fate < 0.6 and data is not None:
                # Sectors as the disk has them: each is written whole or not at all.
                start = offset
                while start < offset + len(data):
                    end = min((start // SECTOR + 1) * SECTOR, offset + len(data))
                    if chance.random() < 0.5:
                        apply(content, start, data[start - offset : end - offset])
                    start = end
        return bytes(content)


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is not None:
        content[offset : offset + len(data)] = data


Entry = File | None  # a directory has no content of its own


class Disk:
    """Directories by their path, files by their names in them."""

    def __init__(self, root: Path, *, syncs: bool = True) -> None:
        self.root = root
        self.syncs = syncs
        self.current: dict[Path, Entry] = {}  # as the process sees it
        self.certain: dict[Path, Entry] = {}  # as it is after any loss of power
        self.pending: defaultdict[Path, list[tuple[Path, Entry, bool]]] = defaultdict(list)  # name, entry, is there

    def do(self, change: Change) -> None:
        entry = self.current.get(change.path)
        match change.call:
            case Call.CREATE:
                self._name(change.path, File(), True)
            case Call.MKDIR:
                self._name(change.path, None, True)
            case Call.UNLINK:
                self._name(change.path, entry, False)
            case Call.RENAME:
                self._name(change.other, entry, True)
                self._name(change.path, entry, False)
            case Call.WRITE if entry is not None:
                entry.pending.append((change.offset, change.data))
            case Call.TRUNCATE if entry is not None:
                entry.pending.append((change.offset, None))
            case Call.SYNC if self.syncs:
                if entry is not None:
                    entry.sync()
                else:
                    for name, one, is_there in self.pending.pop(change.path, []):
                        put(self.certain, name, one, is_there)

    def _name(self, path: Path, entry: Entry, is_there: bool) -> None:
        put(self.current, path, entry, is_there)
        self.pending[path.parent].append((path, entry, is_there))

    def write_after_loss(self, target: Path, chance: random.Random) -> None:
        """What is there when the power is back."""
        names = dict(self.certain)
        for changes in self.pending.values():
            for name, entry, is_there in changes[: chance.randint(0, len(changes))]:
                put(names, name, entry, is_there)
        for name, entry in sorted(names.items(), key=lambda item: len(item[0].parts)):
            place = target / name.relative_to(self.root)
            if not place.parent.is_dir():
                continue  # of a directory that is gone
            if entry is None:
                place.mkdir()
            else:
                place.write_bytes(entry.after_loss(chance))


def put(names: dict[Path, Entry], name: Path, entry: Entry, is_there: bool) -> None:
    if is_there:
        names[name] = entry
    else:
        names.pop(name, None)


def read_changes(path: Path) -> list[Change]:
    changes, data, at = [], path.read_bytes(), 0
    while at < len(data):
        call, length, of_other, offset, size = HEADER.unpack_from(data, at)
        at += HEADER.size
        name, at = data[at : at + length].decode(), at + length
        other, at = data[at : at + of_other].decode(), at + of_other
        content, at = (data[at : at + size], at + size) if call == Call.WRITE else (b"", at)
        changes.append(Change(Call(call), Path(name), Path(other), offset, content))
    return changes


def record(sweep: Sweep, log: Path) -> None:
    """Do the work once, in a process of its own, with every change written down."""
    shutil.rmtree(sweep.folder, ignore_errors=True)
    (sweep.folder / "tmp").mkdir(parents=True)
    child = os.fork()
    if child == 0:
        disk = BadDisk()
        disk.watch(sweep.folder)
        disk.record(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600))
        marks = os.open(sweep.folder / ACKNOWLEDGED, os.O_WRONLY | os.O_CREAT, 0o600)
        sweep.run(lambda word: os.write(marks, f"{word}\n".encode()) and None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def main() -> None:
    folder, works, samples, seed, *flaw = sys.argv[1:]
    logging.disable()
    chance = random.Random(int(seed))
    sweeps = {work: Sweep(Path(folder), work) for work in works.split(",")}
    summary = {work: lost_power(sweep, int(samples), chance, syncs=not flaw) for work, sweep in sweeps.items()}
    print(json.dumps(summary))


def lost_power(sweep: Sweep, samples: int, chance: random.Random, *, syncs: bool) -> dict[str, Any]:
    """What is lost of what was acknowledged, over so many moments."""
    log = sweep.folder.with_name("changes")
    record(sweep, log)
    changes = read_changes(log)
    losses: list[str] = []
    acknowledged: list[str] = []
    unsynced = 0
    disk = Disk(sweep.folder, syncs=syncs)
    disk.certain[sweep.folder / "tmp"] = disk.current[sweep.folder / "tmp"] = None
    moments = chance.choices(range(1, len(changes) + 1), k=samples)
    for number, change in enumerate(changes, 1):
        if change.path.name == ACKNOWLEDGED:
            acknowledged += change.data.decode().split("\n")[:-1]
        else:
            disk.do(change)
        for _ in range(moments.count(number)):
            unsynced += sum(len(entry.pending) for entry in set(disk.current.values()) if entry is not None)
            shutil.rmtree(sweep.folder)
            sweep.folder.mkdir()
            disk.write_after_loss(sweep.folder, chance)
            try:
                lost = sweep.missing(acknowledged)
            except Exception as error:
                lost = [f"cannot be read: {error!r}"]
            losses += [f"after change {number} of {len(changes)}: {word}" for word in lost]
    return {"changes": len(changes), "acknowledged": len(acknowledged), "unsynced": unsynced, "losses": losses}


if __name__ == "__main__":
    main()

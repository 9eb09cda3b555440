"""Lets every call that changes a file, or reaches a server, fail once in each way, and looks for what was lost.

    LD_PRELOAD=bad_disk.so python fault_sweep.py FOLDER WORK LIMIT [URL]

WORK is some of store, spool, follower and server, joined by commas; of each kind of call so many faults are tried, or
with 0 all. Each fault has a process of its own,
forked from this one; what it acknowledged is looked for afterwards, on a disk that works. Prints what was tried.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support import disk_work
from support.bad_disk import BadDisk, Fault

Acknowledge = disk_work.Acknowledge


class Sweep:
    """One kind of work, in a folder that is new for every fault."""

    def __init__(self, folder: Path, work: str, url: str = "") -> None:
        self.disk = BadDisk()
        self.folder = folder / "disk"
        self.work = work
        self.url = url
        os.environ["XDG_DATA_HOME"] = str(self.folder / "data")
        os.environ["TMPDIR"] = str(self.folder / "tmp")

    def attempt(self, number: int, fault: Fault) -> tuple[list[str], str, str]:
        """What a process acknowledged whose call of this number failed, the calls it made, and which failed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "tmp").mkdir(parents=True)
        if self.url:
            empty_database(self.url)
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiver)
            os._exit(self._work(number, fault, lambda word: os.write(sender, f"{word}\n".encode())))
        os.close(sender)
        with os.fdopen(receiver) as lines:
            *acknowledged, last = lines.read().splitlines()
        os.waitpid(child, 0)
        calls, _, failed = last.removeprefix("end ").partition(" ")
        return acknowledged, calls, failed

    def _work(self, number: int, fault: Fault, acknowledge: Callable[[str], object]) -> int:
        logging.disable()
        port = urlsplit(self.url).port or 0 if self.url else 0
        self.disk.watch(self.folder, port)
        self.disk.arm(number, fault)
        try:
            self.run(lambda word: acknowledge(word) and None)
        except Exception as error:
            # A refusal that is explained is fine: the work is cut short, and what was acknowledged counts.
            is_explained = isinstance(error, (disk_work.StoreError, disk_work.InputError))
            if not is_explained:
                acknowledge(f"unexplained {traceback.format_exc()!r}")
        calls, (call, name) = self.disk.calls, self.disk.failed
        acknowledge(f"end {calls} {call} {Path(name).name}")
        return 0

    def run(self, acknowledge: Acknowledge) -> None:
        match self.work:
            case "store":
                disk_work.use_store(str(disk_work.store_of(self.folder)), acknowledge)
            case "spool":
                disk_work.use_spool(self.folder, acknowledge)
            case "follower":
                disk_work.use_follower(self.folder, acknowledge)
            case "server":
                disk_work.use_store(self.url, acknowledge)

    def missing(self, acknowledged: list[str]) -> list[str]:
        """What is lost, on a disk that works again."""
        unexplained = [word for word in acknowledged if word.startswith("unexplained")]
        acknowledged = [word for word in acknowledged if word not in unexplained]
        match self.work:
            case "follower":
                return unexplained + disk_work.missing_of_follower(self.folder, acknowledged)
            case "server":
                return unexplained + disk_work.missing_of_store(self.url, acknowledged)
        path = disk_work.store_of(self.folder)
        lost = disk_work.missing_of_store(str(path), acknowledged)
        return unexplained + lost + disk_work.damage_of_file(path)


def empty_database(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


def some_of(call: str, calls: str, limit: int) -> list[tuple[int, Fault]]:
    """Faults of one kind of call, spread evenly over the work and over the ways to fail; with 0 all of them."""
    all_of_kind = [(number, fault) for number, one in enumerate(calls, 1) if one == call for fault in Fault]
    if not limit or len(all_of_kind) <= limit:
        return all_of_kind
    step = (len(all_of_kind) - 1) / (limit - 1)
    return [all_of_kind[round(step * place)] for place in range(limit)]


def main() -> None:
    folder, works, limit, *more = sys.argv[1:]
    logging.disable()
    print(json.dumps({work: swept(Sweep(Path(folder), work, *more), int(limit)) for work in works.split(",")}))


def swept(sweep: Sweep, limit: int) -> dict[str, Any]:
    """What was tried, and what was lost by it."""
    acknowledged, calls, _ = sweep.attempt(0, Fault.IO_ERROR)
    losses = [f"without a fault: {word}" for word in sweep.missing(acknowledged)]
    faults = [fault for call in sorted(set(calls)) for fault in some_of(call, calls, limit)]
    tried: Counter[str] = Counter()
    for number, fault in faults:
        acknowledged, _, failed = sweep.attempt(number, fault)
        call = failed.partition(" ")[0]
        tried[call] += bool(call)  # the last calls are not made in every run
        try:
            lost = sweep.missing(acknowledged)
        except Exception as error:
            lost = [f"cannot be read: {error!r}"]
        losses += [f"{fault.name} of call {number} ({failed}): {word}" for word in lost]
    return {"calls": len(calls), "faults": tried.total(), "by_call": dict(+tried), "losses": losses}


if __name__ == "__main__":
    main()

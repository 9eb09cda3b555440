"""Reads what Slurm tells the tasks of a step that srun started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Steps that are no launch of tasks: the shell of an interactive allocation, a batch script, what Slurm keeps beside.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
# Below the ports that kernels give away by themselves.
_FIRST_PORT, _PORTS = 15_000, 15_000

_HOSTS = re.compile(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*")
_RANGES = re.compile(r"\[([^\]]*)\]")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class SlurmTask:
    """This process among the tasks of its step."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> SlurmTask | None:
        """None outside of a step, as in the script of sbatch or the shell of salloc; raises ValueError or KeyError."""
        step = environment.get("SLURM_STEP_ID", "")
        if not step.isdecimal() or int(step) >= _FIRST_SPECIAL_STEP or "SLURM_PROCID" not in environment:
            return None
        size = int(environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"])
        hosts = expand_hosts(environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"])
        tasks = expand_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE") or environment["SLURM_TASKS_PER_NODE"])
        job = int(environment.get("SLURM_JOB_ID") or environment["SLURM_JOBID"])
        return cls(
            rank=int(environment["SLURM_PROCID"]),
            size=size,
            local_rank=int(environment["SLURM_LOCALID"]),
            local_size=tasks[int(environment["SLURM_NODEID"])],
            address=hosts[0] if len(hosts) > 1 else "127.0.0.1",
            port=_FIRST_PORT + (31 * job + int(step)) % _PORTS,
        )


def expand_hosts(compressed: str) -> list[str]:
    """`node[01-03,7],gpu5` as its hosts, in order."""
    hosts = [host for part in _HOSTS.findall(compressed) for host in _expand(part)]
    if not hosts:
        raise ValueError(f"the list of nodes '{compressed}' names none")
    return hosts


def expand_tasks(compressed: str) -> list[int]:
    """`2(x3),1` as the tasks of each node."""
    found = [_TASKS.fullmatch(part) for part in compressed.split(",")]
    if None in found:
        raise ValueError(f"the tasks per node '{compressed}' are not like 2(x3),1")
    return [int(part[1]) for part in found if part for _ in range(int(part[2] or 1))]


def _expand(part: str) -> list[str]:
    ranges = _RANGES.search(part)
    if ranges is None:
        return [part]
    before, after = part[: ranges.start()], part[ranges.end() :]
    return [f"{before}{number}{rest}" for number in _numbers(ranges[1]) for rest in _expand(after)]


def _numbers(ranges: str) -> list[str]:
    """`01-03,7` as 01, 02, 03, 7: as many digits as the range is written with."""
    numbers: list[str] = []
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return numbers

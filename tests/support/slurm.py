"""A Slurm of two nodes, each a network namespace with a host name of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.namespaces import ADDRESSES, TwoHosts

PATIENCE = 60.0
_SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_CONFIGURATION = """\
ClusterName=paceline
SlurmUser=root
SlurmdUser=root
SlurmctldHost={first}({addresses[0]})
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
{select}
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
SchedulerParameters=batch_sched_delay=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
NodeName={first} NodeAddr={addresses[0]} CPUs=2{gpus}
NodeName={second} NodeAddr={addresses[1]} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_WHOLE_NODES = "SelectType=select/linear"
_PARTS_OF_NODES = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nGresTypes=gpu"
_GPUS = ("/dev/null", "/dev/zero")  # that are none, but for Slurm


@dataclass(frozen=True)
class Slurm:
    """A cluster that is up."""

    hosts: TwoHosts
    configuration: Path

    def call(
        self, *words: str, folder: Path, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """A command of Slurm, typed on the first node."""
        return subprocess.run(
            _on(self.hosts.first, list(words)),
            cwd=folder,
            env={**environment, "SLURM_CONF": str(self.configuration)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextmanager
def slurm_on(hosts: TwoHosts, folder: Path, *, has_gpus: bool = False) -> Iterator[Slurm]:
    """Daemons of our own, which end with the test; skips loudly without Slurm.

    Jobs have whole nodes, or else parts of them, and the first node has two GPUs that Slurm hands out.
    """
    programs = {name: shutil.which(name, path=_SBIN) for name in ("slurmctld", "slurmd", "srun", "unshare")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"{' and '.join(missing)} not here: apt-get install slurmctld slurmd slurm-client util-linux")
    folder.mkdir()
    (folder / "state").mkdir()
    configuration = folder / "slurm.conf"
    words = {"first": hosts.first, "second": hosts.second, "addresses": ADDRESSES, "folder": folder}
    words |= {"select": _WHOLE_NODES, "gpus": ""}
    if has_gpus:
        words |= {"select": _PARTS_OF_NODES, "gpus": f" RealMemory=64 Gres=gpu:h200:{len(_GPUS)} Feature=nvlink"}
        lines = [f"NodeName={hosts.first} Name=gpu Type=h200 File={file}\n" for file in _GPUS]
        (folder / "gres.conf").write_text("".join(lines), encoding="utf-8")
    configuration.write_text(_CONFIGURATION.format(**words), encoding="utf-8")
    # Found out by itself only where control groups are mounted, which the namespace is not; nothing uses them.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
    slurm = Slurm(hosts, configuration)
    daemons = [
        (hosts.first, [programs["slurmctld"], "-D", "-f", configuration]),
        (hosts.first, [programs["slurmd"], "-D", "-f", configuration]),
        (hosts.second, [programs["slurmd"], "-D", "-f", configuration]),
    ]
    logs = [(folder / f"daemon{number}.log").open("wb") for number in range(len(daemons))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for (host, command), log in zip(daemons, logs, strict=True):
            processes.append(subprocess.Popen(_on(host, [str(word) for word in command]), stdout=log, stderr=log))
        _wait_until_idle(slurm, folder)
        yield slurm
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=30)
        for log in logs:
            log.close()


def _wait_until_idle(slurm: Slurm, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    said = ""
    while said.split() != ["idle", "idle"]:
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*.log")))
            pytest.fail(f"the nodes of Slurm did not become idle: {said}\n{logs}")
        time.sleep(0.5)
        asked = slurm.call("sinfo", "-hN", "-o", "%T", folder=folder, environment=os.environ, timeout=PATIENCE)
        said = asked.stdout


def _on(host: str, command: list[str]) -> list[str]:
    """A command in the namespace, where the machine has the host's name."""
    named = f'echo {host} > /proc/sys/kernel/hostname && exec "$@"'
    return ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", named, "sh", *command]

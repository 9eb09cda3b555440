"""What Slurm printed, read: recorded from Slurm 22.05, and what larger clusters print."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from paceline.core.errors import InputError
from paceline.service.engines import slurm_commands
from paceline.service.engines.slurm_commands import (
    SlurmError,
    SlurmNode,
    SlurmSilent,
    environment_of,
    read_gpus,
    read_jobs,
    read_nodes,
)
from support.refused import refused

NODES = """\
node-1|all*|up|idle|2|64|gpu:h200:2|nvlink
node-1|some|up|idle|2|64|gpu:h200:2|nvlink
node-2|all*|up|idle|2|1|(null)|(null)
"""
CLOSED = """\
node-1|all*|down|idle|2|64|gpu:h200:2|nvlink
node-1|some|up|idle|2|64|gpu:h200:2|nvlink
node-2|all*|down|drained|2|1|(null)|(null)
"""
JOBS = """\
1|CANCELLED|None|/shared/a.1
4|FAILED|NonZeroExitCode|/shared/b.1
5|PENDING|ReqNodeNotAvail, UnavailableNodes:node-2|/shared/with|bar.1
2|RUNNING|None|/shared/c.1
3|COMPLETING|None|/shared/d.1
"""


def test_nodes_of_the_default_partition() -> None:
    assert read_nodes(NODES, []) == [
        SlurmNode("node-1", ("all",), "idle", 2, 64, ("h200", "h200"), ("nvlink",)),
        SlurmNode("node-2", ("all",), "idle", 2, 1),
    ]


def test_a_node_of_two_partitions_is_one_node() -> None:
    first, second = read_nodes(NODES, ["all", "some"])
    assert (first.partitions, second.partitions) == (("all", "some"), ("all",))
    assert [node.name for node in read_nodes(NODES, ["some"])] == ["node-1"]


def test_a_partition_that_is_closed_gives_no_nodes() -> None:
    assert read_nodes(CLOSED, []) == []
    assert [node.name for node in read_nodes(CLOSED, ["all", "some"])] == ["node-1"]


def test_partitions_that_are_not_there_are_refused() -> None:
    with refused("unknown-partition", key="--slurm-partition", value="som", suggestion="some"):
        read_nodes(NODES, ["som"])
    with refused("no-default-partition", key="--slurm-partition"):
        read_nodes("node-1|gpu|up|idle|2|64|(null)|(null)\n", [])


@pytest.mark.parametrize(
    ("state", "is_usable"),
    [
        *(
            (state, True)
            for state in ("idle", "mixed", "allocated", "completing", "planned", "idle~", "idle#", "mixed-")
        ),
        *((state, False) for state in ("drained", "draining", "down", "down*", "idle*", "fail", "mixed$", "idle@")),
        *((state, False) for state in ("maint", "unknown", "inval", "powering_down", "something-new")),
    ],
)
def test_which_nodes_start_jobs(state: str, is_usable: bool) -> None:
    (node,) = read_nodes(f"n|all*|up|{state.upper()}|2|64|(null)|(null)\n", [])
    assert node.is_usable is is_usable


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", ()),
        ("gpu:2", ("", "")),
        ("gpu:h200:2(S:0-1),gpu:a100:1(S:0,1),nvme:4", ("h200", "h200", "a100")),
        ("nvme:4,gpu:1g.10gb:2", ("1g.10gb", "1g.10gb")),
        ("mygpu:3,shard:gpu:8", ()),
    ],
)
def test_gpus_among_generic_resources(gres: str, gpus: tuple[str, ...]) -> None:
    assert read_gpus(gres) == gpus


def test_jobs_in_every_state() -> None:
    jobs = {job.id: job for job in read_jobs(JOBS)}
    assert {number for number, job in jobs.items() if job.is_over} == {"1", "4"}
    assert {number for number, job in jobs.items() if job.is_waiting} == {"5"}
    assert jobs["4"].reason == "NonZeroExitCode"
    assert jobs["5"].reason == "ReqNodeNotAvail, UnavailableNodes:node-2"
    assert jobs["5"].folder == "/shared/with|bar.1"
    assert jobs["2"].reason == ""


def test_a_state_that_nobody_knows_is_not_taken_for_an_end() -> None:
    (job,) = read_jobs("7|QUITE_NEW|None|/shared/a.1\n")
    assert not job.is_over
    assert not job.is_waiting


@pytest.mark.parametrize("line", ["slurm_load_jobs error", "n|all*|up|idle|two|64|(null)|(null)"])
def test_what_cannot_be_read_is_quoted(line: str) -> None:
    with pytest.raises(SlurmError, match="`sinfo` answered"):
        read_nodes(f"{line}\n", [])


def test_programs_do_not_hear_of_a_job_that_the_leader_runs_in() -> None:
    own = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_ACCOUNT": "lab",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": "7",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    assert environment_of(own) == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "lab"}


def _answering(folder: Path, program: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder / program
    made.write_text(f"#!/bin/sh\n{script}\n")
    made.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_submission_gives_the_number_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answering(tmp_path, "sbatch", f'printf "%s\\n" "$@" > {tmp_path}/said; echo "12;cluster"', monkeypatch)
    assert slurm_commands.submit(["--nodes=1", "--chdir=/with space; rm"], Path("/x/job.sh")) == "12"
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["--parsable", "--nodes=1", "--chdir=/with space; rm", "/x/job.sh"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", SlurmError),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", SlurmSilent),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller", SlurmSilent),
        ("sbatch: error: AssocMaxSubmitJobLimit", SlurmSilent),
    ],
)
def test_a_submission_that_fails(
    said: str, kind: type[SlurmError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answering(tmp_path, "sbatch", f"echo '{said}' >&2; exit 1", monkeypatch)
    with pytest.raises(SlurmError, match=said.replace("/", ".")) as caught:
        slurm_commands.submit([], Path("job.sh"))
    assert type(caught.value) is kind


def test_a_program_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("squeue", 30)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(SlurmSilent, match="`squeue` did not answer within 30 s"):
        slurm_commands.list_jobs()


def test_without_slurm_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="sinfo and squeue and sbatch and scancel not found"):
        slurm_commands.require_programs()

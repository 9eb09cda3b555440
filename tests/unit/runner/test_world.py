"""Which process of how many this is, as torchrun, mpirun, mpiexec and srun say it."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from paceline.runner.launcher_ranks import World
from support.refused import refused

# As Slurm 22.05 sets them in the third task of `srun --nodes 2 --ntasks 3`.
SRUN = {
    "SLURM_JOB_ID": "4217",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "node[08-09]",
    "SLURM_JOB_NODELIST": "node[08-12]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2(x5)",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}
# In the script of `sbatch --nodes 2 --ntasks 3`.
SBATCH = {
    "SLURM_JOB_ID": "4217",
    "SLURM_JOB_NODELIST": "node[08-09]",
    "SLURM_NTASKS": "3",
    "SLURM_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def world(environment: dict[str, str]) -> World:
    found = World.of_environment(environment)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, (5, 8, 1, 4, "first", 29400, True)),
        (OPEN_MPI, (1, 2, 1, 2, "127.0.0.1", 29500, False)),
        (MPICH, (1, 2, 1, 2, "127.0.0.1", 29500, False)),
        (SRUN | TORCHRUN, (5, 8, 1, 4, "first", 29400, True)),  # torchrun, one for each node
        (SRUN | OPEN_MPI, (1, 2, 1, 2, "127.0.0.1", 29500, False)),  # mpirun, whose helpers srun started
        (SRUN | MPICH, (1, 2, 1, 2, "127.0.0.1", 29500, False)),
    ],
)
def test_every_launcher_is_understood(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    assert astuple(world(environment)) == expected


@pytest.mark.parametrize("more", [{}, {"PMI_RANK": "2", "PMI_SIZE": "3"}], ids=["plain", "--mpi=pmi2"])
def test_a_task_of_a_step_of_slurm_is_a_rank(more: dict[str, str]) -> None:
    task = world(SRUN | more)
    assert (task.rank, task.size, task.local_rank, task.local_size) == (2, 3, 0, 1)
    assert task.address == "node08"
    assert task.nodes > 1


def test_tasks_of_a_step_agree_on_the_port_and_other_steps_take_another() -> None:
    first = SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    assert world(first).port == world(SRUN).port
    assert world(SRUN | {"SLURM_STEP_ID": "4"}).port != world(SRUN).port
    assert world(SRUN | {"SLURM_JOB_ID": "4218"}).port != world(SRUN).port
    assert world(SRUN | {"MASTER_PORT": "1234", "MASTER_ADDR": "other"}).port == 1234


def test_a_step_on_one_node_meets_on_its_loopback() -> None:
    alone = SRUN | {"SLURM_STEP_NODELIST": "node09", "SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_NODEID": "0"}
    assert (world(alone).address, world(alone).nodes) == ("127.0.0.1", 1)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        SBATCH,
        {name: value for name, value in SBATCH.items() if name != "SLURM_PROCID"},  # the shell of salloc
        SBATCH | {"SLURM_STEP_ID": "4294967290"},  # a shell of salloc that is a step of its own
        SBATCH | {"SLURM_STEP_ID": "4294967291"},
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},
        {"RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_a_process_that_is_alone_has_no_world(environment: dict[str, str]) -> None:
    assert World.of_environment(environment) is None


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        (TORCHRUN | {"RANK": "first"}, "unreadable-launcher-environment"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "two"}, "unreadable-launcher-environment"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "missing-master-address"),
    ],
)
def test_what_cannot_be_true_is_refused(environment: dict[str, str], code: str) -> None:
    with refused(code):
        World.of_environment(environment)


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        (TORCHRUN | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}, 2),
        ({"RANK": "1", "WORLD_SIZE": "4"}, 4),  # what is not said of this host is that of all
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, 3),
    ],
)
def test_a_launcher_need_not_say_everything(environment: dict[str, str], size: int) -> None:
    here = world(environment)
    assert (here.size, here.nodes, here.local_size) == (size, 1, size)
    assert here.local_rank == 1


@pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), tuple(OPEN_MPI)[:2], tuple(MPICH)[:2]])
def test_half_of_what_a_launcher_says_is_nothing(names: tuple[str, str]) -> None:
    rank, size = names
    assert World.of_environment({rank: "1"}) is None
    assert World.of_environment({size: "2"}) is None


@pytest.mark.parametrize(("step", "is_task"), [("4294967279", True), ("4294967280", False), ("batch", False)])
def test_special_steps_launch_no_tasks(step: str, is_task: bool) -> None:
    assert (World.of_environment(SRUN | {"SLURM_STEP_ID": step}) is not None) is is_task


def test_a_step_without_tasks_has_no_world() -> None:
    environment = {name: value for name, value in SRUN.items() if name != "SLURM_PROCID"}
    assert World.of_environment(environment) is None


def test_srun_that_speaks_as_mpich_does_is_asked_itself() -> None:
    assert world(SRUN | {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}).size == 3


def test_what_a_step_does_not_say_is_that_of_its_job() -> None:
    steps = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID")
    job = {name: value for name, value in SRUN.items() if name not in steps}
    job |= {"SLURM_JOBID": "4217", "SLURM_NTASKS": "10", "SLURM_NODEID": "4"}
    assert astuple(world(job)) == (2, 10, 0, 2, "node08", world(SRUN).port, False)


def test_the_port_of_a_step_is_made_of_its_numbers() -> None:
    assert world(SRUN).port == 15_000 + (31 * 4217 + 3) % 15_000


@pytest.mark.parametrize(("size", "local_size", "nodes"), [(8, 4, 2), (9, 4, 3), (4, 4, 1), (3, 1, 3)])
def test_hosts_are_counted_up(size: int, local_size: int, nodes: int) -> None:
    assert World(0, size, 0, local_size, "first", 1, False).nodes == nodes


def test_two_hosts_need_an_address_and_have_one() -> None:
    spread = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    assert world(spread | {"MASTER_ADDR": "first"}).address == "first"

"""The engine of Slurm without Slurm: which nodes it offers, and what it does while nobody answers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.leader import command
from paceline.service.engines import EngineOptions, slurm, slurm_commands
from paceline.service.engines.base import Assignment, AttemptReport, FollowerGone
from paceline.service.engines.slurm import SlurmEngine
from paceline.service.engines.slurm_commands import SlurmError, SlurmJob, SlurmNode, SlurmSilent
from paceline.service.jobs import FailureKind
from support.refused import refused

PATIENCE = 30.0  # seconds; only what hangs takes so long


@dataclass
class Controller:
    """A Slurm that says what a test says, and remembers what it was asked to do."""

    nodes: list[SlurmNode] = field(
        default_factory=lambda: [
            SlurmNode("n1", ("all",), "idle", 8, 2048, ("nvidia_h100_80gb_hbm3", ""), ("nvlink", "all")),
            SlurmNode("n2", ("all",), "drained", 8, 2048),
        ]
    )
    jobs: list[SlurmJob] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)  # folders
    cancelled: list[str] = field(default_factory=list)
    looks: int = 0
    trouble: SlurmError | None = None  # that squeue and sbatch meet

    def list_nodes(self, _: Sequence[str]) -> list[SlurmNode]:
        return list(self.nodes)

    def list_jobs(self) -> list[SlurmJob]:
        self.looks += 1
        if isinstance(self.trouble, SlurmSilent):
            raise self.trouble
        return list(self.jobs)

    def submit(self, options: Sequence[str], script: Path) -> str:
        if self.trouble is not None:
            raise self.trouble
        self.submitted.append(str(script.parent))
        self.jobs.append(SlurmJob(str(len(self.submitted)), "PENDING", "Resources", str(script.parent)))
        return self.jobs[-1].id

    def cancel(self, numbers: Sequence[str]) -> None:
        self.cancelled += numbers
        self.jobs = [self._ended(job) if job.id in numbers else job for job in self.jobs]

    def look_again(self) -> None:
        """Wait until the engine has asked once more."""
        seen = self.looks
        wait_for(lambda: self.looks > seen + 1)

    @staticmethod
    def _ended(job: SlurmJob) -> SlurmJob:
        return SlurmJob(job.id, "CANCELLED", "", job.folder)


def wait_for(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    made = Controller()
    for name in ("list_nodes", "list_jobs", "submit", "cancel"):
        monkeypatch.setattr(slurm_commands, name, getattr(made, name))
    monkeypatch.setattr(slurm_commands, "require_programs", lambda: None)
    monkeypatch.setattr(slurm, "_LOOK_SECONDS", 0.02)
    return made


@pytest.fixture
def engine(controller: Controller, tmp_path: Path) -> Iterator[SlurmEngine]:
    made = SlurmEngine(EngineOptions(tmp_path))
    yield made
    made.close()


def an_assignment(**more: object) -> Assignment:
    return Assignment.model_validate({"job_id": "job", "attempt": 1, "run_id": "run", "suite": {}, **more})


def poll(engine: SlurmEngine, heard: int = 0) -> list[AttemptReport]:
    return list(engine.poll("n1", {("job", 1): heard}))


def title(engine: SlurmEngine) -> str:
    (report,) = poll(engine)
    return report.progress.title


def test_nodes_that_start_jobs_are_offered(engine: SlurmEngine) -> None:
    (node,) = engine.followers()
    assert (node.id, node.cpus, node.memory_gib, node.draining) == ("n1", 8.0, 2.0, False)
    assert node.gpus == ("nvidia_h100_80gb_hbm3", "GPU")
    assert node.gpu_memory_gib == (80, 0)
    assert node.labels == ("all", "nvlink")


def test_what_is_begun_twice_is_submitted_once_also_by_the_next_leader(
    engine: SlurmEngine, controller: Controller, tmp_path: Path
) -> None:
    engine.begin("n1", an_assignment())
    engine.begin("n1", an_assignment())
    wait_for(lambda: title(engine).startswith("waiting in Slurm's queue as job 1"))
    engine.close()
    second = SlurmEngine(EngineOptions(tmp_path))
    second.begin("n1", an_assignment())
    controller.look_again()
    assert title(second) == "waiting in Slurm's queue as job 1: Resources"
    second.close()
    assert controller.submitted == [str(tmp_path / "slurm" / "job.1")]


def test_nothing_is_lost_nor_submitted_again_while_slurm_is_silent(engine: SlurmEngine, controller: Controller) -> None:
    engine.begin("n1", an_assignment())
    wait_for(lambda: controller.submitted)
    controller.trouble = SlurmSilent("`squeue` failed: Unable to contact slurm controller")
    controller.look_again()
    (report,) = poll(engine)
    assert report.items == ()
    assert [node.id for node in engine.followers()] == ["n1"]
    assert len(controller.submitted) == 1


def test_a_submission_without_an_answer_is_made_again_only_if_slurm_does_not_have_it(
    engine: SlurmEngine, controller: Controller
) -> None:
    controller.trouble = SlurmSilent("`sbatch` did not answer within 30 s")
    engine.begin("n1", an_assignment())
    controller.look_again()
    folder = str(engine._folder / "job.1")
    controller.jobs = [SlurmJob("5", "PENDING", "", folder)]  # it was heard all the same
    controller.trouble = None
    controller.look_again()
    assert controller.submitted == []
    assert title(engine) == "waiting in Slurm's queue as job 5"


def test_what_sbatch_refuses_is_told_with_its_words(engine: SlurmEngine, controller: Controller) -> None:
    controller.trouble = SlurmError("`sbatch` failed: Invalid account")
    engine.begin("n1", an_assignment())
    wait_for(lambda: poll(engine)[0].items)
    failure = poll(engine)[0].items[-1].failure
    assert failure is not None
    assert (failure.kind, failure.message) == (FailureKind.LOST, "`sbatch` failed: Invalid account")
    assert poll(engine, heard=1) == []
    assert [path.name for path in engine._folder.iterdir()] == ["leader"]


def test_a_job_for_several_nodes_is_refused(engine: SlurmEngine, controller: Controller) -> None:
    engine.begin("n1", an_assignment(peers=("n2",)))
    (report,) = poll(engine)
    assert report.items[-1].failure is not None
    assert report.items[-1].failure.kind is FailureKind.REFUSED
    assert controller.submitted == []


def test_cancelling_reaches_slurm(engine: SlurmEngine, controller: Controller) -> None:
    engine.begin("n1", an_assignment())
    wait_for(lambda: controller.submitted)
    engine.cancel("n1", "job", 1)
    engine.cancel("n1", "nobody", 1)
    wait_for(lambda: poll(engine)[0].items)
    assert controller.cancelled == ["1"]


def test_a_node_that_is_drained_before_it_starts_a_job_is_left(
    engine: SlurmEngine, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_NODES_SECONDS", 0.0)
    engine.begin("n1", an_assignment())
    wait_for(lambda: controller.submitted)
    controller.nodes = [SlurmNode("n1", ("all",), "drained", 8, 2048)]
    wait_for(lambda: controller.cancelled)
    wait_for(lambda: not engine.followers())
    wait_for(lambda: not (engine._folder / "job.1").exists())


def test_a_node_that_is_drained_while_it_measures_stays(
    engine: SlurmEngine, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_NODES_SECONDS", 0.0)
    engine.begin("n1", an_assignment())
    wait_for(lambda: controller.submitted)
    controller.jobs = [SlurmJob("1", "RUNNING", "", controller.submitted[0])]
    wait_for(lambda: title(engine) == "")
    controller.nodes = [SlurmNode("n1", ("all",), "draining", 8, 2048)]
    controller.look_again()
    assert [(node.id, node.draining) for node in engine.followers()] == [("n1", True)]
    assert controller.cancelled == []


def test_nodes_that_nobody_knows(engine: SlurmEngine) -> None:
    with pytest.raises(FollowerGone, match="no node 'n9'"):
        engine.begin("n9", an_assignment())
    with pytest.raises(FollowerGone, match="no node 'n9'"):
        engine.poll("n9", {})


def test_a_folder_of_another_leader_is_refused(controller: Controller, tmp_path: Path) -> None:
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True)"
    command = [sys.executable, "-c", f"{hold}; sys.stdin.read()", str(tmp_path / "leader")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with refused("folder-in-use", key="--slurm-folder", value=str(tmp_path)):
            SlurmEngine(EngineOptions(tmp_path, shared=tmp_path))
        other.communicate()
    SlurmEngine(EngineOptions(tmp_path, shared=tmp_path)).close()


def test_what_lies_in_the_folder_already_is_left_alone(controller: Controller, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    SlurmEngine(EngineOptions(tmp_path, shared=tmp_path)).close()
    assert (tmp_path / "photos" / "one.jpg").exists()


def test_a_slurm_that_does_not_answer_at_first_is_refused(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: Sequence[str]) -> list[SlurmNode]:
        raise SlurmSilent("`sinfo` did not answer within 30 s")

    monkeypatch.setattr(slurm_commands, "list_nodes", silent)
    with refused("no-answer-from-slurm"):
        SlurmEngine(EngineOptions(tmp_path))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--slurm-partition", "gpu"], "slurm-option-without-slurm"),
        (["--slurm-folder", "shared"], "slurm-option-without-slurm"),
        (["--engine", "slurm", "--label", "fast"], "label-with-slurm"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], code: str) -> None:
    with refused(code):
        CliRunner().invoke(command, words, catch_exceptions=False)

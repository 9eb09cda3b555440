"""An attempt as a job of Slurm, without Slurm: what is submitted, waited for, spoken for, and told."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from paceline.service.engines.base import Assignment, AttemptReport
from paceline.service.engines.slurm import LEASE_SECONDS, SlurmAttempt, Todo, script_of, share_of
from paceline.service.engines.slurm_commands import SlurmJob, SlurmNode
from paceline.service.follower.spool import Spool
from paceline.service.jobs import FailureKind, JobFailure

NODE = SlurmNode("n1", ("gpu", "all"), "idle", 64, 512_000, ("h200",) * 4 + ("a100",) * 4)
SUBMIT, NOTHING = Todo(submit=True), Todo()


@pytest.fixture
def attempt(tmp_path: Path) -> SlurmAttempt:
    assignment = Assignment(job_id="job", attempt=1, run_id="run", suite={}, devices=(1, 4))
    return SlurmAttempt.make(tmp_path / "job.1", NODE, assignment)


def see(attempt: SlurmAttempt, *states: str, reason: str = "", is_offered: bool = True) -> Todo:
    """Let it hear of jobs in these states, numbered from 7 on."""
    folder = str(attempt.folder)
    jobs = [SlurmJob(str(number), state, reason, folder) for number, state in enumerate(states, start=7)]
    return attempt.see(jobs, is_offered=is_offered)


def speak(attempt: SlurmAttempt, kind: str, **content: object) -> None:
    """As the process that measures does."""
    Spool(attempt.folder).append(kind, **content)


def told(attempt: SlurmAttempt, heard: int | None = 0) -> AttemptReport:
    report = attempt.report(heard)
    assert report is not None
    return report


def ending(attempt: SlurmAttempt) -> JobFailure | None:
    item = told(attempt).items[-1]
    assert item.kind == "ended"
    return item.failure


def test_it_is_submitted_once_and_waits(attempt: SlurmAttempt) -> None:
    assert see(attempt) == SUBMIT
    assert see(attempt) == SUBMIT, "as long as Slurm does not have it"
    attempt.submitted("7")
    assert see(attempt, "PENDING", reason="Priority") == NOTHING
    assert told(attempt).progress.title == "waiting in Slurm's queue as job 7: Priority"
    assert told(attempt).items == ()
    assert see(attempt, "RUNNING") == NOTHING
    assert told(attempt).progress.title == ""
    assert attempt.has_started


def test_a_later_leader_finds_it_again_also_without_its_number(attempt: SlurmAttempt) -> None:
    found = SlurmAttempt.find(attempt.folder)
    assert found is not None
    assert see(found, "PENDING") == NOTHING, "Slurm had it, whoever submitted it"
    again = SlurmAttempt.find(attempt.folder)
    assert again is not None
    assert (again.number, again.node, again.assignment) == ("7", "n1", attempt.assignment)
    assert SlurmAttempt.find(attempt.folder.parent) is None


def test_the_end_is_told_when_the_node_is_free(attempt: SlurmAttempt) -> None:
    speak(attempt, "log", text="one")
    speak(attempt, "ended")
    see(attempt, "RUNNING")
    assert [item.kind for item in told(attempt).items] == ["log"]
    see(attempt, "COMPLETED")
    assert ending(attempt) is None
    assert attempt.report(2) is None, "everything was heard"
    assert told(attempt, None).items == (), "nobody said that it was heard"


def test_an_end_by_force_waits_for_the_reason_but_a_plain_one_does_not(attempt: SlurmAttempt, tmp_path: Path) -> None:
    speak(attempt, "ended", failure=JobFailure(kind=FailureKind.LOST, message="it was asked to stop"))
    see(attempt, "COMPLETING")
    assert told(attempt).items == ()
    see(attempt, "PREEMPTED", reason="None given")
    failure = ending(attempt)
    assert failure is not None
    assert failure.message.startswith("Slurm's job 7 on n1 ended: PREEMPTED (None given)")
    plain = SlurmAttempt.make(tmp_path / "plain.1", NODE, attempt.assignment)
    speak(plain, "ended")
    see(plain, "COMPLETING")
    assert ending(plain) is None


@pytest.mark.parametrize("state", ["NODE_FAIL", "CANCELLED", "FAILED", "PREEMPTED", "BOOT_FAIL"])
def test_what_slurm_ended_without_a_word_may_be_tried_again(attempt: SlurmAttempt, state: str) -> None:
    (attempt.folder / "output.txt").write_text("one\nthe last words\n")
    see(attempt, state, reason="because")
    failure = ending(attempt)
    assert failure is not None
    assert failure.kind is FailureKind.LOST
    assert failure.message == f"Slurm's job 7 on n1 ended: {state} (because); its last words: one / the last words"


@pytest.mark.parametrize(
    ("state", "kind", "remedy"),
    [
        ("TIMEOUT", FailureKind.TIMEOUT, "SBATCH_TIMELIMIT"),
        ("OUT_OF_MEMORY", FailureKind.MEMORY, "smaller cases"),
    ],
)
@pytest.mark.parametrize("is_told_to_stop", [True, False])
def test_what_would_only_happen_again_is_not(
    attempt: SlurmAttempt, state: str, kind: FailureKind, remedy: str, is_told_to_stop: bool
) -> None:
    if is_told_to_stop:
        speak(attempt, "ended", failure=JobFailure(kind=FailureKind.LOST, message="it was asked to stop"))
    see(attempt, state)
    failure = ending(attempt)
    assert failure is not None
    assert failure.kind is kind
    assert remedy in failure.remedy


def test_a_job_that_wrote_nothing_points_at_the_shared_folder(attempt: SlurmAttempt) -> None:
    see(attempt, "FAILED", reason="NonZeroExitCode")
    failure = ending(attempt)
    assert failure is not None
    assert "--slurm-folder" in failure.message


def test_a_job_that_slurm_has_forgotten_is_lost(attempt: SlurmAttempt) -> None:
    attempt.submitted("7")
    (attempt.folder / "output.txt").touch()
    assert see(attempt) == NOTHING
    failure = ending(attempt)
    assert failure is not None
    assert failure.message == "Slurm's job 7 on n1 ended, and Slurm no longer knows how"


def test_a_process_that_still_speaks_is_not_spoken_for(attempt: SlurmAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Spool, "exclusively", lambda _: nullcontext(False))
        see(attempt, "NODE_FAIL")
        assert told(attempt).items == ()
        assert not attempt.is_settled
    see(attempt, "NODE_FAIL")
    assert ending(attempt) is not None


def test_cancelling(attempt: SlurmAttempt) -> None:
    see(attempt, "RUNNING")
    attempt.stopping = "it was asked to stop"
    assert see(attempt, "RUNNING") == Todo(cancel=("7",))
    assert see(attempt, "COMPLETING") == NOTHING, "it has its time"
    see(attempt, "CANCELLED")
    failure = ending(attempt)
    assert failure is not None
    assert failure.message == "it was asked to stop; Slurm's job 7 on n1 was cancelled"


def test_cancelling_before_slurm_has_it(attempt: SlurmAttempt) -> None:
    attempt.stopping = "it was asked to stop"
    assert see(attempt) == NOTHING
    failure = ending(attempt)
    assert failure is not None
    assert failure.kind is FailureKind.LOST


def test_a_node_that_goes_out_of_service_is_waited_for_no_longer(attempt: SlurmAttempt) -> None:
    assert see(attempt, "PENDING", is_offered=False) == Todo(cancel=("7",))
    assert attempt.is_forsaken
    assert not attempt.has_started
    see(attempt, "CANCELLED", is_offered=False)
    assert attempt.is_settled


def test_what_runs_there_goes_on(attempt: SlurmAttempt) -> None:
    assert see(attempt, "RUNNING", is_offered=False) == NOTHING
    assert not attempt.is_forsaken


def test_one_that_was_submitted_twice_counts_once(attempt: SlurmAttempt) -> None:
    assert see(attempt, "FAILED", "RUNNING") == NOTHING, "the one that was refused says nothing about the other"
    assert told(attempt).items == ()
    speak(attempt, "ended")
    assert see(attempt, "COMPLETED", "PENDING") == Todo(cancel=("8",))
    see(attempt, "COMPLETED", "CANCELLED")
    assert ending(attempt) is None


def test_a_lease_outlasts_what_other_nodes_see_late(attempt: SlurmAttempt) -> None:
    assert attempt.assignment.lease_seconds == LEASE_SECONDS
    assert Spool(attempt.folder).assignment == attempt.assignment


def test_the_options_of_sbatch(attempt: SlurmAttempt) -> None:
    options = attempt.options(NODE)
    assert {"--nodelist=n1", "--partition=gpu,all", "--nodes=1", "--no-requeue"} < set(options)
    assert {"--job-name=paceline-job.1", f"--chdir={attempt.folder}"} < set(options)


def test_a_part_of_the_gpus_shares_with_nobody_else() -> None:
    part = ["--exclusive=user", "--cpus-per-task=16", "--mem=128000M"]
    assert share_of(NODE, (1, 4)) == [*part, "--gres=gpu:h200:1,gpu:a100:1"]
    whole = ["--exclusive", "--mem=0"]
    assert share_of(NODE, ()) == whole
    assert share_of(NODE, tuple(range(8))) == [*whole, "--gres=gpu:h200:4,gpu:a100:4"]
    plain = SlurmNode("n2", ("all",), "idle", 4, 1, ("", ""))
    assert share_of(plain, (1,)) == ["--exclusive=user", "--cpus-per-task=2", "--mem=1M", "--gres=gpu:1"]


def test_a_script_quotes_its_folder_and_hides_gpus_from_jobs_without() -> None:
    script = script_of(Path("/with space/$(x)"), ())
    assert script.endswith(" '/with space/$(x)'\n")
    assert "\nCUDA_VISIBLE_DEVICES=\n" in script
    assert ': "${CUDA_VISIBLE_DEVICES=1,4}"' in script_of(Path("/x"), (1, 4)), "unless Slurm says which"

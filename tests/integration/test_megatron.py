"""A small stand-in for a checkout of Megatron, run by real torchrun through the real command, well and badly."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from paceline.core.record import CauseKind, Outcome, Record
from support.cli import Sandbox
from support.namespaces import two_hosts
from support.watching import Watched

ALONE = ("--no-report", "--json", "--target", "cpu")
WARM_UP, MEASURED = 6, 6
# Prints what the real script prints, and behaves as it is told.
SCRIPT = """
import argparse, os, sys, time
import helper_of_the_checkout

parser = argparse.ArgumentParser()
parser.add_argument("--mock-data", action="store_true")
parser.add_argument("--train-iters", type=int)
parser.add_argument("--global-batch-size", type=int)
parser.add_argument("--behave", default="well")
parser.add_argument("--log-throughput", action="store_true")
args, _ = parser.parse_known_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]

if args.behave == "meets":
    import torch
    torch.distributed.init_process_group("gloo")
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    assert int(ones) == world and int(os.environ["LOCAL_RANK"]) < int(os.environ["LOCAL_WORLD_SIZE"])
if args.behave == "no-gpu":
    assert False, "Megatron requires CUDA."
if args.behave == "no-module":
    import transformer_engine_of_somebody
for number in range(1, args.train_iters + 1):
    time.sleep(0.01)
    if number == 9 and args.behave == "raises" and rank == world - 1:
        raise ValueError("a shape that cannot be")
    if number == 9 and args.behave == "first-raises" and rank == 0:
        raise ValueError("a shape that cannot be")
    if number == 9 and args.behave == "no-memory" and rank == 0:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
    if number == 9 and args.behave == "ends-early":
        sys.exit(0)
    if number == 9 and args.behave == "hangs":
        while True:
            time.sleep(1)
    if number == 1:
        print(f"[Rank {rank}] (after 1 iterations) memory (MB) | allocated: {100.5 + rank} | max allocated: "
              f"{200.25 + rank} | reserved: 300.0 | max reserved: 300.0", flush=True)
    if rank == world - 1:
        loss = "" if args.behave == "diverges" and number > 8 else f" lm loss: {11 - 0.1 * number:.6E} |"
        print(f" [2025-08-01 07:19:37] iteration {number:8d}/{args.train_iters:8d} | consumed samples: "
              f"{number * args.global_batch_size:12d} | elapsed time per iteration (ms): {20 + number % 3 * 0.1:.1f} | "
              f"throughput per GPU (TFLOP/s/GPU): {30.0:.1f} | learning rate: 1.2E-04 | global batch size: "
              f"{args.global_batch_size:5d} |{loss} loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations: "
              f"  0 | number of nan iterations:   0 |", flush=True)
"""


@pytest.fixture
def checkout(sandbox: Sandbox) -> Path:
    folder = sandbox.work / "Megatron-LM"
    folder.mkdir()
    (folder / "pretrain_gpt.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "helper_of_the_checkout.py").touch()
    return folder


def training(checkout: Path, behave: str = "well", **more: object) -> dict[str, object]:
    return {
        "benchmark": "megatron-gpt",
        "code_base": str(checkout),
        "processes": 2,
        "iterations": MEASURED,
        "warm_up_iterations": WARM_UP,
        "extra": ["--behave", behave],
        **more,
    }


def commit(folder: Path) -> str:
    """A checkout with one commit, whatever git thinks of the machine."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    found = subprocess.run([*git, "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return found.stdout.strip()


def value(record: Record, name: str, scope: str = "") -> float:
    found = record.measurement(name, scope)
    assert found is not None, name
    return found.value


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here: apt-get install git")
def test_a_training_of_two_ranks_yields_its_figures_and_says_where_they_come_from(
    sandbox: Sandbox, checkout: Path
) -> None:
    head = commit(checkout)
    done = sandbox.run("run", sandbox.suite(training(checkout, micro_batch_size=4)), *ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = sandbox.load().records
    step_time = record.measurement("step_time")
    assert step_time is not None
    assert step_time.samples == pytest.approx([0.0201, 0.0202, 0.02, 0.0201, 0.0202, 0.02])  # from the seventh on
    assert value(record, "throughput") == pytest.approx(8 / 0.0201)  # four samples on each of two ranks
    assert value(record, "token_throughput") == pytest.approx(8 * 2048 / 0.0201)
    assert value(record, "flops_per_gpu") == pytest.approx(30e12)
    assert value(record, "device_memory") == 101.5 * 2**20
    assert value(record, "peak_device_memory", "rank 0") == 200.25 * 2**20
    assert record.facts["checkout"]["commit"] == head
    assert record.facts["measured_iterations"] == "7 to 12; 1 to 6 warmed up and were dropped"
    assert "--global-batch-size 8" in record.facts["command"]
    assert record.facts["last_loss"] == pytest.approx(9.8)
    assert sandbox.left_behind() == []


# Processes that only call themselves hosts, the first with two ranks.
HOSTS = ("--hosts", "one:2,two", "--remote-shell", "env HOST={host}", "--master-address", "127.0.0.1")


@pytest.mark.long
def test_ranks_over_hosts_are_one_training(sandbox: Sandbox, checkout: Path) -> None:
    over = training(checkout, "meets", processes=None, micro_batch_size=4)
    done = sandbox.run("run", sandbox.suite(over), *ALONE, *HOSTS)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = sandbox.load().records
    check_training_of_three(record)
    assert "torch.distributed.run" not in record.facts["command"]
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_ranks_in_two_network_namespaces_are_one_training(sandbox: Sandbox, checkout: Path) -> None:
    with two_hosts() as hosts:
        flags = ["--hosts", f"{hosts.first}:2,{hosts.second}", *hosts.flags[2:]]
        over = training(checkout, "meets", processes=3, micro_batch_size=4)
        done = sandbox.run("run", sandbox.suite(over), *ALONE, *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        (record,) = sandbox.load().records
        check_training_of_three(record)
        assert record.facts["hosts"] == [hosts.first, hosts.second]


def check_training_of_three(record: Record) -> None:
    """Figures of all ranks once, and the memory of each."""
    step_time = record.measurement("step_time")
    assert step_time is not None
    assert step_time.samples == pytest.approx([0.0201, 0.0202, 0.02, 0.0201, 0.0202, 0.02])
    assert value(record, "throughput") == pytest.approx(12 / 0.0201)  # four samples on each of three ranks
    assert record.measurement("throughput", "rank 0") is None
    assert [value(record, "device_memory", f"rank {rank}") for rank in range(3)] == [
        (100.5 + rank) * 2**20 for rank in range(3)
    ]
    assert value(record, "device_memory") == 102.5 * 2**20
    assert (record.facts["processes"], record.facts["ranks"], record.facts["nodes"]) == (3, 3, 2)
    assert {"before", "after"} <= record.conditions.keys()  # seen by the first rank as the last one logs


@pytest.mark.long
@pytest.mark.parametrize(("behave", "rank", "after"), [("raises", 2, " after 8 of 12"), ("first-raises", 0, "")])
def test_a_rank_that_fails_on_any_host_is_the_cause(
    sandbox: Sandbox, checkout: Path, behave: str, rank: int, after: str
) -> None:
    done = sandbox.run("run", sandbox.suite(training(checkout, behave, processes=3)), *ALONE, *HOSTS)
    assert done.returncode == 1, done.stdout + done.stderr
    (record,) = sandbox.load().records
    assert record.cause is not None
    assert record.cause.rank == rank
    assert "ValueError: a shape that cannot be" in record.cause.message
    assert after in record.cause.message
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_whatever_goes_wrong_is_an_outcome_with_its_cause(sandbox: Sandbox, checkout: Path) -> None:
    ways = ("raises", "no-memory", "ends-early", "diverges", "no-gpu", "no-module")
    suite = sandbox.suite(*(training(checkout, behave) for behave in ways))
    done = sandbox.run("run", suite, *ALONE)
    assert done.returncode == 1, done.stdout + done.stderr
    records = dict(zip(ways, sandbox.load().records, strict=True))
    ended = {behave: (record.outcome, _kind(record)) for behave, record in records.items()}
    assert ended == {
        "raises": (Outcome.FAILED, CauseKind.ERROR),
        "no-memory": (Outcome.OUT_OF_MEMORY, CauseKind.DEVICE_MEMORY),
        "ends-early": (Outcome.FAILED, CauseKind.ERROR),
        "diverges": (Outcome.FAILED, CauseKind.ERROR),
        "no-gpu": (Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED),
        "no-module": (Outcome.UNSUPPORTED, CauseKind.MISSING_DEPENDENCY),
    }
    messages = {behave: record.cause.message for behave, record in records.items() if record.cause}
    assert "failed after 8 of 12 iterations: ValueError: a shape that cannot be" in messages["raises"]
    assert "Traceback" in (records["raises"].cause.detail if records["raises"].cause else "")
    assert "micro_batch_size" in messages["no-memory"]
    assert "8 of 12 iterations" in messages["ends-early"]
    assert "first in iteration 9" in messages["diverges"]
    assert "NVIDIA GPUs" in messages["no-gpu"]
    assert "transformer_engine_of_somebody" in messages["no-module"]
    kept = records["raises"].measurement("step_time")
    assert kept is not None
    assert kept.samples == pytest.approx([0.0201, 0.0202])  # of iterations 7 and 8
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_a_training_that_hangs_is_ended_with_all_its_ranks_when_its_time_is_over(
    sandbox: Sandbox, checkout: Path
) -> None:
    watched = Watched.start(sandbox, "run", sandbox.suite(training(checkout, "hangs", timeout="20s")), *ALONE)
    assert watched.wait_for("case_progress", phase="measuring")
    assert len(_ranks(sandbox.processes())) == 2
    assert watched.finish() == 1
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.TIMEOUT
    assert sandbox.left_behind() == []


@pytest.mark.slow
def test_a_launcher_that_is_killed_takes_its_ranks_with_it(sandbox: Sandbox, checkout: Path) -> None:
    watched = Watched.start(sandbox, "run", sandbox.suite(training(checkout, "hangs")), *ALONE)
    assert watched.wait_for("case_progress", phase="measuring")
    launchers = [one for one in sandbox.processes() if "torch.distributed.run" in one.cmdline()]
    for launcher in launchers:
        launcher.kill()
    assert launchers
    assert watched.finish() == 1
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.FAILED
    assert record.cause is not None
    assert "SIGKILL" in record.cause.message
    assert sandbox.left_behind() == []


def test_a_folder_without_the_script_is_refused_before_anything_runs(sandbox: Sandbox) -> None:
    done = sandbox.run("run", "megatron-gpt", "--code-base", str(sandbox.work), "--target", "cpu")
    assert done.returncode == 2
    assert "has no pretrain_gpt.py" in done.stderr


def _kind(record: Record) -> CauseKind | None:
    return record.cause.kind if record.cause else None


def _ranks(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have become the script."""
    return [one for one in processes if len(one.cmdline()) > 2 and one.cmdline()[2].endswith("pretrain_gpt.py")]

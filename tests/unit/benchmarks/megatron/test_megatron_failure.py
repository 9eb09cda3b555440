"""Why a training failed is told in one sentence, out of everything that its ranks and torchrun wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.benchmarks._micro.tools import ToolError, ToolOutput
from paceline.benchmarks.megatron._log import explained
from paceline.core.errors import MissingDependency, OutOfMemory, Unsupported
from support.recordings import recorded

NAMES = ("one-rank-raised", "one-rank-killed", "without-cuda", "unknown-argument", "out-of-memory")
RECORDINGS = {name: recorded(f"megatron/torchrun-2.13-{name}.err") for name in NAMES}

# What torchrun says of a rank 1 that called sys.exit(3), and of a rank 0 that it then ended.
SILENT = """
*****************************************
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded
*****************************************
W1115 07:55:55.138000 5065 torch/elastic/multiprocessing/api.py:1028] Sending process 5135 closing signal SIGTERM
E1115 07:55:55.202000 5065 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 3) local_rank: 1
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 5135)  (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 5135
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 5136)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def why(errors: str, seen: int = 3) -> Exception:
    written = ToolOutput("training ...\n", errors)
    return explained(ToolError("python ended with exit code 1", written), "/opt/venv/bin/python", seen, 60)


def test_the_rank_that_raised_is_heard_and_not_those_that_lost_it() -> None:
    error = why(RECORDINGS["one-rank-raised"])
    assert str(error) == (
        "pretrain_gpt.py failed after 3 of 60 iterations: ValueError: Expected hidden size to be a multiple of 8"
    )
    (detail,) = error.__notes__
    assert "[rank1]: Traceback" in detail
    assert "ChildFailedError" not in detail  # which says nothing that the sentence does not


def test_a_rank_that_was_killed_is_named_with_its_signal() -> None:
    assert "after 3 of 60 iterations: rank 1 was ended by SIGKILL" in str(why(RECORDINGS["one-rank-killed"]))


def test_of_two_ranks_that_raised_the_first_is_heard_to_the_end_of_its_chain() -> None:
    error = why(
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File x\n[rank1]: KeyError: 'layers'\n"
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File y\n[rank0]: AssertionError: no answer\n"
        "[rank1]: The above exception was the direct cause of the following exception:\n"
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File x\n[rank1]: ValueError: no layers are told\n"
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File y\n[rank0]: RuntimeError: the step is lost\n"
    )
    assert str(error).endswith("after 3 of 60 iterations: ValueError: no layers are told")


def test_a_rank_that_ends_without_a_word_is_named_with_its_exit_code() -> None:
    told = str(why(SILENT, 0))
    assert told.endswith("after 0 of 60 iterations: rank 1 ended with exit code 3; it wrote nothing")


def test_without_a_gpu_it_is_unsupported_in_one_sentence() -> None:
    error = why(RECORDINGS["without-cuda"], 0)
    assert isinstance(error, Unsupported)
    assert "trains on NVIDIA GPUs, and /opt/venv/bin/python finds none here (AssertionError: Megatron requires" in str(
        error
    )


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ],
)
def test_other_ways_to_say_that_there_is_no_gpu(line: str) -> None:
    assert isinstance(why(f"Traceback (most recent call last):\n  File x\n{line}\n"), Unsupported)


def test_an_argument_that_the_checkout_does_not_know_is_named() -> None:
    error = why(RECORDINGS["unknown-argument"], 0)
    assert isinstance(error, ToolError)
    assert "refused its arguments: unrecognized arguments: --nope" in str(error)
    assert "'extra'" in str(error)


def test_memory_that_did_not_suffice_is_that_outcome() -> None:
    error = why(RECORDINGS["out-of-memory"], 0)
    assert isinstance(error, OutOfMemory)
    assert error.where == "device"
    assert "did not suffice after 0 of 60 iterations: use a smaller micro_batch_size" in str(error)
    assert "Tried to allocate 3.07 GiB" in str(error)


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("RuntimeError: CUDA out of memory. Tried to allocate 18.00 MiB", "device"),
        ("torch.OutOfMemoryError: HIP out of memory.", "device"),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nLast error:\nCuda failure 2 'out of memory'",
            "device",
        ),
        ("MemoryError", "host"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1 bytes", "host"),
    ],
)
def test_which_memory_it_was(message: str, where: str) -> None:
    error = why(f"Traceback (most recent call last):\n  File x\n{message}\nW1115 07:55:32.724000 1 torch/x.py:1] bye\n")
    assert isinstance(error, OutOfMemory)
    assert error.where == where


@pytest.mark.parametrize(
    "errors",
    [
        "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'transformer_engine.x'\n",
        "python: Error while finding module (ModuleNotFoundError: No module named 'transformer_engine')\n",
    ],
)
def test_a_module_that_is_missing_is_named_with_the_interpreter(errors: str) -> None:
    error = why(errors, 0)
    assert isinstance(error, MissingDependency)
    assert "transformer_engine" in str(error)
    assert "/opt/venv/bin/python" in str(error)


def test_what_says_nothing_else_is_told_by_its_last_words() -> None:
    assert "exit code 1; what a day" in str(why("what a day\n"))


def test_a_program_that_could_not_be_started_stays_the_error_it_is() -> None:
    error = ToolError("/no/python cannot be started: No such file or directory")
    assert explained(error, "/no/python", 0, 60) is error


@given(st.sampled_from(NAMES), st.data())
def test_half_of_it_is_still_an_error_in_words(name: str, data: st.DataObject) -> None:
    text = RECORDINGS[name]
    begin = data.draw(st.integers(0, len(text)))
    assert str(why(text[begin : data.draw(st.integers(begin, len(text)))]))

"""The process of a case: what it prepares, what it sends, and which outcome an exception means."""

from __future__ import annotations

import random
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.core.case import Case
from paceline.core.errors import CaseError, InputError, MissingDependency, OutOfMemory, SilentCorruption, Unsupported
from paceline.core.record import CauseKind, Outcome
from paceline.measure.memory import _status
from paceline.runner.channel import Channel
from paceline.runner.rank import explain, run_rank
from support.in_process import as_a_case
from support.probing import probing_case


class Said:
    """What the process of a case sends and leaves behind."""

    def __init__(self, folder: Path, case: Case, environment: dict[str, str] | None = None, rank: int = 0) -> None:
        ours, theirs = Channel.pair()
        self.log = folder / "logs" / "rank0.log"
        self.log.parent.mkdir(exist_ok=True)
        order = {
            "case": case.model_dump(mode="json"),
            "rank": rank,
            "world_size": case.ranks,
            "local_rank": 5,
            "environment": environment or {},
            "folder": str(folder),
            "log": str(self.log),
        }
        run_rank(order, theirs)
        theirs.close()
        self.messages: list[dict[str, Any]] = []
        while (received := ours.receive()) is not None:
            self.messages.append(received[0])
        ours.close()

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = self.messages[-1]["result"]["facts"]
        return facts


@pytest.fixture(autouse=True)
def _case(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with as_a_case(monkeypatch):
        yield


def test_everything_is_sent_as_it_comes(tmp_path: Path) -> None:
    before = time.monotonic()
    started, preparing, progress, measured, result = Said(tmp_path, probing_case()).messages
    assert before <= started["started"] <= time.monotonic()
    assert preparing["progress"]["phase"] == "preparing"
    report = {"phase": "measuring", "metric": "step_time", "unit": "s", "samples": [0.25], "work": None}
    assert progress == {"progress": report | {"rate_unit": "", "load": {}}}
    assert measured["kept"] == result["result"]
    assert result["result"]["measurements"][0]["samples"] == [0.25, 0.75]


def test_what_is_printed_goes_to_the_log_and_nothing_comes_from_the_terminal(tmp_path: Path) -> None:
    said = Said(tmp_path, probing_case())
    assert said.facts()["descriptors"] == ["/dev/null", str(said.log), str(said.log)]
    for path in (said.log, said.log.with_suffix(".stack")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_case_is_where_it_should_be(tmp_path: Path) -> None:
    said = Said(tmp_path, probing_case(ranks=4), {"RANK": "3", "MY_FLAG": "on"}, rank=3)
    facts, folder = said.facts(), str(said.log.parent)
    assert facts["folder"] == str(tmp_path)
    assert facts["temporary"] == folder
    expected = {
        "RANK": "3",
        "MY_FLAG": "on",
        "TMPDIR": folder,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled/inductor",
    }
    expected["TRITON_CACHE_DIR"] = f"{folder}/compiled/triton"
    assert facts["environment"] | expected == facts["environment"]
    assert facts["ranks"] == [3, 4, 5]
    assert tempfile.gettempdir() == folder


@pytest.mark.parametrize(("parameters", "seed"), [({}, 0), ({"seed": 7}, 7)])
def test_random_numbers_begin_where_the_case_says(tmp_path: Path, parameters: dict[str, int], seed: int) -> None:
    facts = Said(tmp_path, probing_case(parameters=parameters)).facts()
    assert facts["random"] == random.Random(seed).random()


@pytest.mark.parametrize(
    ("ranks", "environment", "part"), [(1, {}, 0.95), (2, {}, 0.475), (4, {"LOCAL_WORLD_SIZE": "2"}, 0.475)]
)
def test_the_ranks_of_a_host_share_its_free_memory(
    tmp_path: Path, ranks: int, environment: dict[str, str], part: float
) -> None:
    used, free = _status("VmData"), psutil.virtual_memory().available
    assert used is not None
    limit = Said(tmp_path, probing_case(ranks=ranks), environment).facts()["memory"]
    assert (limit - used) / free == pytest.approx(part, abs=0.2)


def test_the_host_does_not_limit_what_a_device_maps(tmp_path: Path) -> None:
    import resource

    facts = Said(tmp_path, probing_case(target="cuda:0")).facts()
    assert facts["memory"] == resource.getrlimit(resource.RLIMIT_DATA)[0]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (probing_case(parameters={"error": "broken"}), "ValueError: broken"),
        (probing_case(parameters={"eror": "broken"}), "unknown key 'eror': did you mean 'error'?"),
    ],
)
def test_whatever_goes_wrong_is_sent(tmp_path: Path, case: Case, message: str) -> None:
    before = time.monotonic()
    failed = Said(tmp_path, case).messages[-1]["failed"]
    assert (failed["outcome"], failed["cause"]["kind"]) == (Outcome.FAILED, CauseKind.ERROR)
    assert message in failed["cause"]["message"]
    assert before <= failed["at"] <= time.monotonic()


class OutOfMemoryError(RuntimeError):
    """As torch has it."""


DEVICE = "the device's memory did not suffice; use a smaller size or batch (--batch-size auto). "
HOST = "the host's memory did not suffice; use a smaller batch or size, or --scale tiny. "
NO_CODE = "this device or build of torch has no code for it: "


@pytest.mark.parametrize(
    ("error", "outcome", "kind", "message", "has_detail"),
    [
        (
            MissingDependency("torch", "install it"),
            Outcome.UNSUPPORTED,
            CauseKind.MISSING_DEPENDENCY,
            "torch is not available here; install it",
            False,
        ),
        (
            ModuleNotFoundError("no", name="mpi4py.MPI"),
            Outcome.UNSUPPORTED,
            CauseKind.MISSING_DEPENDENCY,
            "mpi4py.MPI is not installed; pip install mpi4py",
            True,
        ),
        (
            ModuleNotFoundError("no", name="paceline.nothing"),
            Outcome.FAILED,
            CauseKind.ERROR,
            "ModuleNotFoundError: no",
            True,
        ),
        (ModuleNotFoundError("no"), Outcome.FAILED, CauseKind.ERROR, "ModuleNotFoundError: no", True),
        (Unsupported("no fp8"), Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED, "no fp8", False),
        (SilentCorruption("1 is 2"), Outcome.FAILED, CauseKind.CORRUPTION, "1 is 2", False),
        (OutOfMemory("a\nb", "device"), Outcome.OUT_OF_MEMORY, CauseKind.DEVICE_MEMORY, "a", False),
        (OutOfMemory("a\nb", "host"), Outcome.OUT_OF_MEMORY, CauseKind.HOST_MEMORY, "a", False),
        (OutOfMemoryError("full\nhints"), Outcome.OUT_OF_MEMORY, CauseKind.DEVICE_MEMORY, f"{DEVICE}full", True),
        (MemoryError("full"), Outcome.OUT_OF_MEMORY, CauseKind.HOST_MEMORY, f"{HOST}full", True),
        (MemoryError(), Outcome.OUT_OF_MEMORY, CauseKind.HOST_MEMORY, f"{HOST}MemoryError", True),
        (
            RuntimeError("\"addmm\" not implemented for 'Half'"),
            Outcome.UNSUPPORTED,
            CauseKind.UNSUPPORTED,
            f"{NO_CODE}\"addmm\" not implemented for 'Half'",
            True,
        ),
        (
            RuntimeError("could not create a primitive"),
            Outcome.UNSUPPORTED,
            CauseKind.UNSUPPORTED,
            f"{NO_CODE}could not create a primitive",
            True,
        ),
        (CaseError("it\nbroke"), Outcome.FAILED, CauseKind.ERROR, "it\nbroke", False),
        (InputError("code", "wrong"), Outcome.FAILED, CauseKind.ERROR, "wrong", False),
        (ValueError("x" * 600), Outcome.FAILED, CauseKind.ERROR, "ValueError: " + "x" * 488, True),
        (KeyboardInterrupt(), Outcome.FAILED, CauseKind.ERROR, "KeyboardInterrupt: KeyboardInterrupt", True),
    ],
)
def test_an_exception_means_an_outcome(
    error: BaseException, outcome: Outcome, kind: CauseKind, message: str, has_detail: bool
) -> None:
    meaning, cause = explain(error)
    assert (meaning, cause.kind, cause.message) == (outcome, kind, message)
    assert (type(error).__name__ in cause.detail) is has_detail
    assert bool(cause.detail) is has_detail


def test_a_long_traceback_is_its_end() -> None:
    _, cause = explain(ValueError("y" * 5000))
    assert cause.detail == "y" * 3999 + "\n"


def test_what_another_program_said_last_is_the_detail() -> None:
    error = CaseError("it ended")
    error.detail = "a" * 10 + "b" * 4000
    assert explain(error)[1].detail == "b" * 4000

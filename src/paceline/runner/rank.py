"""What the process of a case does: one rank of one benchmark, its result sent to the runner."""

from __future__ import annotations

import os
import random
import tempfile
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from paceline.core.benchmark import BENCHMARKS, Context, Progress
from paceline.core.case import Case
from paceline.core.die_with_parent import die_with_parent
from paceline.core.errors import CaseError, InputError, MissingDependency, OutOfMemory, SilentCorruption, Unsupported
from paceline.core.record import Cause, CauseKind, Outcome
from paceline.measure.memory import exhausted, host_limit
from paceline.runner import stacks
from paceline.runner.channel import Channel

HOST_PART = 0.95  # of the free memory that the ranks of a case may take together
# How torch and oneDNN say that an operator does not exist in a format on a device.
_NO_KERNEL = ("could not create a primitive", "not implemented for '", "no kernel image is available")


def run_rank(order: dict[str, Any], channel: Channel) -> None:
    """Measure, and send what came of it; everything that goes wrong is an outcome."""
    die_with_parent()  # when the warm server is killed, so are its cases
    # What libraries print belongs to the case, not to the runner's terminal.
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    stacks.answer(Path(order["log"]))
    os.environ.update(order["environment"])
    # The runner removes its folder, whatever the case leaves there and however it ends.
    folder = Path(order["log"]).parent
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    # What compiling costs must not depend on what was compiled before.
    cache = folder / "compiled"
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
    os.chdir(order["folder"])
    case = Case.model_validate(order["case"])
    channel.send({"started": time.monotonic()})
    try:
        context = Context(
            case=case,
            rank=order["rank"],
            world_size=order["world_size"],
            local_rank=order["local_rank"],
            report=lambda progress: channel.send({"progress": vars(progress)}),
            keep=lambda result: channel.send({"kept": result.model_dump(mode="json")}),
        )
        benchmark = BENCHMARKS.get(case.benchmark)
        parameters = benchmark.Parameters.read(case.parameters)
        random.seed(case.parameters.get("seed", 0))
        # A device's driver maps more address space than there is memory; only the host's own work can be limited.
        local_size = int(order["environment"].get("LOCAL_WORLD_SIZE", case.ranks))
        limit = host_limit(HOST_PART / local_size) if case.target == "cpu" else nullcontext()
        context.report(Progress(phase="preparing"))
        with limit:
            result = benchmark().measure(parameters, context)
        channel.send({"result": result.model_dump(mode="json")})
    except BaseException as error:
        outcome, cause = explain(error)
        channel.send({"failed": {"outcome": outcome, "cause": cause.model_dump(mode="json"), "at": time.monotonic()}})


def explain(error: BaseException) -> tuple[Outcome, Cause]:
    """The outcome that an exception means, with its cause."""
    detail = "".join(traceback.format_exception(error))[-4000:]
    message = str(error) or type(error).__name__

    def cause(kind: CauseKind, text: str, *, with_detail: bool = True) -> Cause:
        return Cause(kind=kind, message=text, detail=detail if with_detail else "")

    if isinstance(error, MissingDependency):
        return Outcome.UNSUPPORTED, cause(CauseKind.MISSING_DEPENDENCY, message, with_detail=False)
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("paceline"):
        text = f"{error.name} is not installed; pip install {error.name.partition('.')[0]}"
        return Outcome.UNSUPPORTED, cause(CauseKind.MISSING_DEPENDENCY, text)
    if isinstance(error, Unsupported):
        return Outcome.UNSUPPORTED, cause(CauseKind.UNSUPPORTED, message, with_detail=False)
    if isinstance(error, SilentCorruption):
        return Outcome.FAILED, cause(CauseKind.CORRUPTION, message, with_detail=False)
    if isinstance(error, OutOfMemory):  # whoever raised it knows what is too large
        kind = CauseKind.DEVICE_MEMORY if error.where == "device" else CauseKind.HOST_MEMORY
        return Outcome.OUT_OF_MEMORY, cause(kind, _first_line(message), with_detail=False)
    where = exhausted(error)
    if where == "device":
        text = f"the device's memory did not suffice; use a smaller size or batch (--batch-size auto). {message}"
        return Outcome.OUT_OF_MEMORY, cause(CauseKind.DEVICE_MEMORY, _first_line(text))
    if where == "host":
        text = f"the host's memory did not suffice; use a smaller batch or size, or --scale tiny. {message}"
        return Outcome.OUT_OF_MEMORY, cause(CauseKind.HOST_MEMORY, _first_line(text))
    if any(words in message for words in _NO_KERNEL):
        text = f"this device or build of torch has no code for it: {message}"
        return Outcome.UNSUPPORTED, cause(CauseKind.UNSUPPORTED, _first_line(text))
    if isinstance(error, CaseError | InputError):
        return Outcome.FAILED, Cause(kind=CauseKind.ERROR, message=message, detail=getattr(error, "detail", "")[-4000:])
    return Outcome.FAILED, cause(CauseKind.ERROR, _first_line(f"{type(error).__name__}: {message}"))


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:500]

"""What pretrain_gpt.py of Megatron-LM and Megatron-DeepSpeed writes while it trains, and how ranks share it.

The last rank writes a line for each iteration, and some ranks one about their memory. Ranks share one stream and write
the end of a line apart from it, so that two records may stand on one line. Only what a newline ends is taken: the last
line of a training that was killed may be torn anywhere. Over several hosts the ranks are those of the case, and each
starts its own process of the script.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from paceline.benchmarks._micro.tools import ToolError, garbled, last_words
from paceline.benchmarks.ranks import Ranks
from paceline.core.errors import MissingDependency, OutOfMemory, Unsupported
from paceline.core.metric import Merge
from paceline.core.network import free_port
from paceline.core.record import Measurement, Result
from paceline.measure.memory import exhausted

SCRIPT = "pretrain_gpt.py"
_ITERATION = re.compile(r"\biteration +(\d{1,12})/ *(\d{1,12}) +\|")
_MEMORY = re.compile(
    r"\[Rank (\d{1,9})\] \(after (\d{1,12}) iterations?\) memory \(MB\) "
    r"\| allocated: (\d{1,12}(?:\.\d+)?) \| max allocated: (\d{1,12}(?:\.\d+)?) \|"
)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|nan|inf)", re.IGNORECASE)
_TIME = {"elapsed time per iteration (ms)": 1e-3, "elapsed time per iteration (s)": 1.0}
_TFLOPS = ("throughput per GPU (TFLOP/s/GPU)", "TFLOPs")
_MEBIBYTE = 2**20  # what the scripts call MB


@dataclass(frozen=True)
class Iteration:
    """One iteration as the log reports it."""

    number: int
    total: int  # of the whole training
    seconds: float
    batch: int  # samples of all ranks together
    skipped: bool  # the optimizer took no step, because gradients overflowed
    nan: bool  # the script itself says that a loss was not a number
    loss: float | None
    gradient_norm: float | None
    flops: float | None  # per second and GPU, by the script's own formula

    @property
    def is_broken(self) -> bool:
        """Whether it trained on something that is not a number.

        The scripts leave a loss out that is not above zero, which is how one that is not a number looks. An iteration
        that was skipped reports no loss either, and its gradients may well overflow.
        """
        if self.nan:
            return True
        if self.skipped:
            return False
        return any(value is None or not math.isfinite(value) for value in (self.loss, self.gradient_norm or 0.0))


@dataclass(frozen=True)
class Memory:
    """What a rank reports of its GPU's memory, in bytes."""

    after: int  # iterations
    allocated: int
    peak: int


@dataclass(frozen=True)
class Log:
    """A whole training."""

    iterations: list[Iteration]  # in order, from the first
    memory: dict[int, Memory]  # by rank: the last that it reported


def read_iterations(line: str) -> Iterator[Iteration]:
    """The iterations that a line of the log reports; what is torn or garbled is none."""
    matches = list(_ITERATION.finditer(line))
    ends = [*(following.start() for following in matches[1:]), len(line)]
    for match, end in zip(matches, ends, strict=False):  # a line without any has an end all the same
        iteration = _iteration(int(match.group(1)), int(match.group(2)), line[match.end() : end])
        if iteration is not None:
            yield iteration


def parse(text: str, expected: int, batch: int) -> Log:
    """The log of a training of so many iterations with this global batch; anything else is a ToolError."""
    *lines, _torn = text.split("\n")
    reported: dict[int, Iteration] = {}
    for iteration in (one for line in lines for one in read_iterations(line)):
        if reported.setdefault(iteration.number, iteration) != iteration:
            raise garbled(SCRIPT, f"iteration {iteration.number} is reported twice, with different figures", text)
    if not reported:
        raise ToolError(
            f"{SCRIPT} reported no iteration, where {expected} were expected; it ended with: {last_words(text)}"
        )
    missing = [number for number in range(1, expected + 1) if number not in reported]
    extent = f"it reports {len(reported)} of {expected} iterations, the last one is {max(reported)}"
    if missing and max(reported) >= expected:
        raise ToolError(
            f"the log of {SCRIPT} has gaps: {extent}, but iteration {missing[0]} is missing or cannot be read; another "
            "rank wrote into its line, or the training began from a checkpoint (--load in 'extra')"
        )
    if missing:
        raise ToolError(
            f"the log of {SCRIPT} breaks off: {extent}; the training was ended from outside or by itself, and measured "
            "nothing whole"
        )
    strange = next((one for one in reported.values() if one.total != expected or one.batch != batch), None)
    if strange is not None:
        raise ToolError(
            f"{SCRIPT} did not train what was requested: iteration {strange.number} is one of "
            f"{strange.total} with a global batch of {strange.batch}, but {expected} with {batch} were requested; "
            "look for an argument in 'extra' that changes it"
        )
    memory = {}
    for match in (one for line in lines for one in _MEMORY.finditer(line)):
        allocated, peak = (round(float(match.group(group)) * _MEBIBYTE) for group in (3, 4))
        memory[int(match.group(1))] = Memory(int(match.group(2)), allocated, peak)
    return Log([reported[number] for number in sorted(reported)], memory)


def _iteration(number: int, total: int, fields: str) -> Iteration | None:
    values: dict[str, float] = {}
    for field in fields.split("|")[:-1]:  # what no bar ends is torn
        name, _, value = field.rpartition(":")
        if _NUMBER.fullmatch(value.strip()):
            number_read = float(value)
            # One and the same NaN, so that a line that is written twice is equal to itself.
            values.setdefault(name.strip(), math.nan if math.isnan(number_read) else number_read)
    seconds = next((values[name] * unit for name, unit in _TIME.items() if name in values), math.nan)
    batch = values.get("global batch size", math.nan)
    skipped, nans = values.get("number of skipped iterations"), values.get("number of nan iterations")
    # The count of NaNs comes last but for figures of Megatron-DeepSpeed: without it, the line is not whole.
    if skipped is None or nans is None or not (0 < seconds < math.inf and 1 <= batch < math.inf):
        return None
    tflops = next((values[name] for name in _TFLOPS if name in values), None)
    return Iteration(
        number=number,
        total=total,
        seconds=seconds,
        batch=int(batch),
        skipped=skipped > 0,
        nan=nans > 0,
        loss=values.get("lm loss"),
        gradient_norm=values.get("grad norm"),
        flops=tflops * 1e12 if tflops is not None and 0 < tflops < math.inf else None,
    )


MORE_LINES = 4  # of a message that may say what the first one does not
_SHOWN = 300
_WHO = re.compile(r"^(?:\[[\w.:-]+\]: ?)*")  # torch and some launchers write before each line whose it is
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::.*)?")
_REFUSED = re.compile(r"^.*?\w+\.py: error: (.+)$", re.MULTILINE)
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
_SIGNAL = re.compile(r"rank +: (\d+) .*?Signal \d+ \((SIG\w+)\) received", re.DOTALL)
_EXIT = re.compile(r"rank +: (\d+) .*?exitcode +: (\d+) ", re.DOTALL)
_VERDICT = "Root Cause (first observed failure)"
_LOGGED = re.compile(r"[IWEF]\d{4} ")  # a line of a log
_OF_TORCHRUN = re.compile(r"\*+|Setting OMP_NUM_THREADS .*|W\d{4} .*\] Sending process \d+ closing signal .*")
_LAUNCHER = "failed (exitcode:"  # begins what torchrun says of the failure
_WITHOUT_GPU = re.compile(
    "Megatron requires CUDA|Torch not compiled with CUDA enabled|No CUDA GPUs are available|"
    "Found no NVIDIA driver|no CUDA-capable device|no GPUs found"
)
# What the other ranks and the launcher say when one rank is gone: a consequence, not a cause.
_CONSEQUENCE = re.compile(
    "ChildFailedError|SignalException|connection closed by peer|connection reset|broken pipe|socket closed|"
    "remote process",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Raised:
    """An exception at the end of a traceback."""

    who: str  # the rank, where torch wrote it: it does so for what ended one
    line: str
    more: str  # with the lines that follow


def explained(error: ToolError, python: str, reported: int | None, expected: int) -> Exception:
    """The error that ends the case, from that of the launcher, after so many iterations, where that is known."""
    if error.written is None:
        return error
    errors = error.written.errors
    text = f"{error.written.output}\n{errors}"
    raised = [one for one in exceptions(text) if not _CONSEQUENCE.search(one.more)]
    after = f" after {reported} of {expected} iterations" if reported is not None else ""
    named: dict[str, Literal["host", "device"]] = {"MemoryError": "host", "OutOfMemoryError": "device"}
    for one in raised:
        kind = one.line.partition(":")[0].rpartition(".")[2]
        where = named.get(kind) or exhausted(RuntimeError(one.more))
        if where == "host":
            return OutOfMemory(f"the memory of the host did not suffice{after}: {_short(one.line)}", "host")
        if where is not None:
            return OutOfMemory(
                f"the memory of a GPU did not suffice{after}: use a smaller micro_batch_size, a larger "
                "tensor_parallel or pipeline_parallel, or recompute activations (--recompute-activations in 'extra'). "
                f"{_short(one.line)}",
                "device",
            )
    for one in raised:
        if _WITHOUT_GPU.search(one.more):
            return Unsupported(
                f"Megatron trains on NVIDIA GPUs, and {python} finds none here ({_short(one.line)}): use a machine "
                "that has one, and a torch that is built for CUDA"
            )
    # What ended the first rank: the end of its chain of exceptions. Where no rank is named, the last one of all.
    first = next((one.who for one in raised if one.who), "")
    cause = next((one for one in reversed(raised) if one.who == first), None)
    module = _NO_MODULE.search(cause.line if cause else errors)
    if module is not None:
        remedy = f"install it for {python}, or name the interpreter that has it as 'python'"
        return MissingDependency(f"the Python module {module.group(1)}", remedy)
    refused = _REFUSED.search(text)
    if refused is not None:
        return ToolError(
            f"{SCRIPT} refused its arguments: {_short(refused.group(1))}; this checkout is older or newer than they "
            "are, or 'extra' has a wrong one"
        )
    verdict = _short(cause.line) if cause else _verdict(error.message, errors)
    unforeseen = RuntimeError(f"{SCRIPT} failed{after}: {verdict}")
    unforeseen.add_note(_of_ranks(errors))  # the traceback is there
    return unforeseen


def exceptions(text: str) -> Iterator[Raised]:
    """The last line of every traceback, also where ranks that say who they are write between each other."""
    inside: set[str] = set()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        who, words = _parted(line)
        if words.startswith("Traceback (most recent call last)"):
            inside.add(who)
        elif who in inside and _EXCEPTION.fullmatch(words):
            inside.remove(who)
            following = [rest for other, rest in map(_parted, lines[number + 1 :][:MORE_LINES]) if other == who]
            yield Raised(who, words, " ".join([words, *takewhile(_continues, following)]))


def _continues(words: str) -> bool:
    """Whether a line is the rest of a message, not the beginning of something else."""
    return bool(words) and not words.startswith("Traceback") and not _LOGGED.match(words)


def _parted(line: str) -> tuple[str, str]:
    match = _WHO.match(line)
    end = match.end() if match else 0
    return line[:end].strip(), line[end:].rstrip()


def _verdict(message: str, errors: str) -> str:
    """What the launcher says of the first rank that failed, where no rank raised anything."""
    before, _, verdict = errors.rpartition(_VERDICT)
    by_signal = _SIGNAL.search(verdict)
    if by_signal is not None:
        rank, name = by_signal.groups()
        return f"rank {rank} was ended by {name}: from outside, by a fault of its own, or because host memory ran out"
    by_itself = _EXIT.search(verdict) if before else None
    ended = "rank {} ended with exit code {}".format(*by_itself.groups()) if by_itself else message
    return f"{ended}; {last_words(_of_ranks(errors))}"


def _of_ranks(errors: str) -> str:
    """What the ranks wrote, without what the launcher says."""
    lines = errors.splitlines()
    end = next((number for number, line in enumerate(lines) if _LAUNCHER in line), len(lines))
    return "\n".join(line for line in lines[:end] if not _OF_TORCHRUN.fullmatch(line))


def _short(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def rank_variables(ranks: Ranks) -> dict[str, str]:
    """What a rank of the training needs besides the case's own variables: a port that the case does not use itself."""
    port = ranks.gather(free_port("") if ranks.rank == 0 else None)[0]
    return {"MASTER_PORT": str(port)}


@contextmanager
def heard_by_first(ranks: Ranks, read_line: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """What to call with the lines of a rank: those of the last rank, which logs iterations, the first one reads too."""
    first, last = 0, ranks.world_size - 1
    if last == first:
        yield read_line
        return
    if ranks.rank not in (first, last):
        yield lambda _line: None
        return
    from torch import distributed

    def send(line: str | None) -> None:
        distributed.send_object_list([line], dst=first, group=ranks.control)

    def listen() -> None:
        heard: list[str | None] = [None]
        with suppress(RuntimeError):  # the last rank is gone, which it says itself
            while distributed.recv_object_list(heard, src=last, group=ranks.control) >= 0 and heard[0] is not None:
                read_line(heard[0])

    if ranks.rank == first:
        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        yield lambda _line: None
        listener.join()
        return

    def read_and_send(line: str) -> None:
        read_line(line)
        send(line)

    yield read_and_send
    send(None)


def part_of(result: Result, rank: int) -> Result:
    """A rank's part of the result of all: its own memory, and of the first rank what holds for all of them."""
    own = [replace(one, scope="") for one in result.measurements if one.scope == f"rank {rank}"]
    if rank > 0:
        return Result(measurements=own)
    by_rank = {one.metric.name for one in result.measurements if one.scope}
    whole = [_of_all(one) for one in result.measurements if one.metric.name not in by_rank]
    return result.model_copy(update={"measurements": [*whole, *own]})


def _of_all(one: Measurement) -> Measurement:
    return replace(one, metric=one.metric.model_copy(update={"merge": Merge.FIRST}))

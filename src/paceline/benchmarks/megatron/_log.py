"""What pretrain_gpt.py of Megatron-LM and Megatron-DeepSpeed writes while it trains.

The last rank writes a line for each iteration, and some ranks one about their memory. Ranks share one stream and write
the end of a line apart from it, so that two records may stand on one line. Only what a newline ends is taken: the last
line of a training that was killed may be torn anywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paceline.benchmarks._micro.tools import Said, ToolError, garbled, last_words
from paceline.core.errors import MissingDependency, OutOfMemory, Unsupported
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
    """One iteration as the log tells it."""

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
        """Whether it trained on something that is no number.

        The scripts leave a loss out that is not above zero, which is how one that is not a number looks. An iteration
        that was skipped tells no loss either, and its gradients may well overflow.
        """
        if self.nan:
            return True
        if self.skipped:
            return False
        return any(value is None or not math.isfinite(value) for value in (self.loss, self.gradient_norm or 0.0))


@dataclass(frozen=True)
class Memory:
    """What a rank says of its GPU's memory, in bytes."""

    after: int  # iterations
    allocated: int
    peak: int


@dataclass(frozen=True)
class Log:
    """A whole training."""

    iterations: list[Iteration]  # in order, from the first
    memory: dict[int, Memory]  # by rank: the last that it said


def read_iterations(line: str) -> Iterator[Iteration]:
    """The iterations that a line of the log tells; what is torn or garbled is none."""
    found = list(_ITERATION.finditer(line))
    ends = [*(following.start() for following in found[1:]), len(line)]
    for match, end in zip(found, ends, strict=False):  # a line without any has an end all the same
        iteration = _iteration(int(match.group(1)), int(match.group(2)), line[match.end() : end])
        if iteration is not None:
            yield iteration


def parse(text: str, wanted: int, batch: int) -> Log:
    """The log of a training of so many iterations with this global batch; anything else is a ToolError."""
    *lines, _torn = text.split("\n")
    seen: dict[int, Iteration] = {}
    for iteration in (one for line in lines for one in read_iterations(line)):
        if seen.setdefault(iteration.number, iteration) != iteration:
            raise garbled(SCRIPT, f"iteration {iteration.number} is told twice, with different figures", text)
    if not seen:
        raise ToolError(
            f"{SCRIPT} told of no iteration, where {wanted} were to come; it ended with: {last_words(text)}"
        )
    missing = [number for number in range(1, wanted + 1) if number not in seen]
    if missing and max(seen) >= wanted:
        raise ToolError(
            f"the log of {SCRIPT} has gaps: it tells of {len(seen)} of {wanted} iterations, the last one is "
            f"{max(seen)}, but iteration {missing[0]} is not there or cannot be read; another rank "
            "wrote into its line, or the training began from a checkpoint (--load in 'extra')"
        )
    if missing:
        raise ToolError(
            f"the log of {SCRIPT} breaks off: it tells of {len(seen)} of {wanted} iterations, the last one is "
            f"{max(seen)}; the training was ended from outside or by itself, and measured nothing whole"
        )
    strange = next((one for one in seen.values() if one.total != wanted or one.batch != batch), None)
    if strange is not None:
        raise ToolError(
            f"{SCRIPT} trained something else than it was asked to: iteration {strange.number} is one of "
            f"{strange.total} with a global batch of {strange.batch}, but {wanted} with {batch} were asked for; "
            "look for an argument in 'extra' that changes it"
        )
    return Log([seen[number] for number in sorted(seen)], _memory(lines))


def _iteration(number: int, total: int, fields: str) -> Iteration | None:
    values: dict[str, float] = {}
    for field in fields.split("|")[:-1]:  # what no bar ends is torn
        name, _, value = field.rpartition(":")
        if _NUMBER.fullmatch(value.strip()):
            told = float(value)
            # One and the same NaN, so that a line that is told twice is equal to itself.
            values.setdefault(name.strip(), math.nan if math.isnan(told) else told)
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


def _memory(lines: list[str]) -> dict[int, Memory]:
    found: dict[int, Memory] = {}
    for match in (one for line in lines for one in _MEMORY.finditer(line)):
        rank, after = int(match.group(1)), int(match.group(2))
        allocated, peak = (round(float(match.group(place)) * _MEBIBYTE) for place in (3, 4))
        found[rank] = Memory(after, allocated, peak)
    return found


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
_WITHOUT_GPU = (
    "Megatron requires CUDA",
    "Torch not compiled with CUDA enabled",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "no CUDA-capable device",
    "no GPUs found",
)
# What the other ranks and the launcher say when one rank is gone: a consequence, not a cause.
_CONSEQUENCES = (
    "ChildFailedError",
    "SignalException",
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "socket closed",
    "remote process",
)


@dataclass(frozen=True)
class Raised:
    """An exception at the end of a traceback."""

    who: str  # the rank, where torch wrote it: it does so for what ended one
    line: str
    more: str  # with the lines that follow

    @property
    def is_consequence(self) -> bool:
        return any(words.casefold() in self.more.casefold() for words in _CONSEQUENCES)


def explained(error: ToolError, python: str, seen: int, wanted: int) -> Exception:
    """The error that ends the case, from that of the launcher; `seen` iterations had been told until then."""
    if error.said is None:
        return error
    text = f"{error.said.output}\n{error.said.errors}"
    raised = [one for one in exceptions(text) if not one.is_consequence]
    after = f"after {seen} of {wanted} iterations"
    for one in raised:
        where = _exhausted(one)
        if where is not None:
            return _out_of_memory(where, after, one)
    for one in raised:
        if any(words in one.more for words in _WITHOUT_GPU):
            return Unsupported(
                f"Megatron trains on NVIDIA GPUs, and {python} finds none here ({_short(one.line)}): use a machine "
                "that has one, and a torch that is built for CUDA"
            )
    cause = _first_to_fail(raised)
    module = _NO_MODULE.search(cause.line if cause else error.said.errors)
    if module is not None:
        remedy = f"install it for {python}, or name the interpreter that has it as 'python'"
        return MissingDependency(f"the Python module {module.group(1)}", remedy)
    refused = _REFUSED.search(text)
    if refused is not None:
        return ToolError(
            f"{SCRIPT} refused its arguments: {_short(refused.group(1))}; this checkout is older or newer than they "
            "are, or 'extra' has a wrong one"
        )
    unforeseen = RuntimeError(f"{SCRIPT} failed {after}: {_verdict(error, error.said, cause)}")
    unforeseen.add_note(_own_words(error.said.errors))  # the traceback is there
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
            yield Raised(who, words, " ".join([words, *_following(lines[number + 1 :][:MORE_LINES], who)]))


def _first_to_fail(raised: list[Raised]) -> Raised | None:
    """What ended the first rank: the end of its chain of exceptions. Where no rank is told, the last one of all."""
    first = next((one.who for one in raised if one.who), "")
    return next((one for one in reversed(raised) if one.who == first), None)


def _following(lines: list[str], who: str) -> Iterator[str]:
    """The rest of a message, up to what begins something else."""
    for other, words in map(_parted, lines):
        if other == who:
            if not words or words.startswith("Traceback") or _LOGGED.match(words):
                return
            yield words


def _parted(line: str) -> tuple[str, str]:
    found = _WHO.match(line)
    end = found.end() if found else 0
    return line[:end].strip(), line[end:].rstrip()


def _exhausted(raised: Raised) -> Literal["host", "device"] | None:
    kind = raised.line.partition(":")[0].rpartition(".")[2]
    named: dict[str, Literal["host", "device"]] = {"MemoryError": "host", "OutOfMemoryError": "device"}
    return named.get(kind) or exhausted(RuntimeError(raised.more))


def _out_of_memory(where: str, after: str, raised: Raised) -> OutOfMemory:
    if where == "host":
        return OutOfMemory(f"the memory of the host did not suffice {after}: {_short(raised.line)}", "host")
    remedy = "use a smaller micro_batch_size, a larger tensor_parallel or pipeline_parallel, or recompute activations"
    return OutOfMemory(
        f"the memory of a GPU did not suffice {after}: {remedy} (--recompute-activations in 'extra'). "
        f"{_short(raised.line)}",
        "device",
    )


def _verdict(error: ToolError, said: Said, cause: Raised | None) -> str:
    if cause is not None:
        return _short(cause.line)
    before, _, verdict = said.errors.rpartition(_VERDICT)
    by_signal = _SIGNAL.search(verdict)
    if by_signal is not None:
        rank, name = by_signal.groups()
        return f"rank {rank} was ended by {name}, by somebody, by a fault of its own or for want of host memory"
    by_itself = _EXIT.search(verdict) if before else None
    ended = "rank {} ended with exit code {}".format(*by_itself.groups()) if by_itself else error.message
    return f"{ended}; {last_words(_own_words(said.errors))}"


def _own_words(errors: str) -> str:
    """What the ranks wrote, without what the launcher says."""
    lines = errors.splitlines()
    end = next((number for number, line in enumerate(lines) if _LAUNCHER in line), len(lines))
    return "\n".join(line for line in lines[:end] if not _OF_TORCHRUN.fullmatch(line))


def _short(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."

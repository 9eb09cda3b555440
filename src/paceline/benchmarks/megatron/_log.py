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

from paceline.benchmarks.micro.tools import ToolError, garbled, last_words

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

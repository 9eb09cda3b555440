"""Why pretrain_gpt.py under torchrun failed, out of what its ranks and the launcher wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paceline.benchmarks.megatron._log import SCRIPT
from paceline.benchmarks.micro.tools import Said, ToolError, last_words
from paceline.core.errors import MissingDependency, OutOfMemory, Unsupported
from paceline.measure.exhaustion import exhausted

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

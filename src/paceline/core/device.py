"""What a target may name: the host's processors (`cpu`), or devices of a kind (`cuda:0`, `cuda:*`, `cuda:each`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from paceline.core.registry import Kind

HOST = "cpu"  # always there, and without a number
AUTO = "auto"  # the first kind of which there are any, otherwise the host
ALL = "*"  # one case over all devices
EACH = "each"  # one case for each device


class TargetKind(ABC):
    """What a suite must know of a device kind: how a target names it, and how many there are."""

    name: ClassVar[str]  # KIND of a target KIND:INDEX
    noun: ClassVar[str] = "GPU"  # as messages call one of them
    visible_variable: ClassVar[str] = ""  # of the environment, which makes some of them visible

    @abstractmethod
    def count(self) -> int:
        """How many of them this process sees; asks the driver and initialises nothing."""


TARGET_KINDS: Kind[type[TargetKind]] = Kind("device kind", "devices", TargetKind)


def accelerator_kinds() -> list[str]:
    """The names of all kinds except the host's own, in the order in which `auto` tries them."""
    return [name for name in TARGET_KINDS.registry().entries if name != HOST]


def split_target(target: str) -> tuple[str, str]:
    """Kind and index of a target; the host has no index."""
    kind, _, index = target.partition(":")
    return kind, index


def is_accelerator(target: str) -> bool:
    """Whether a target names a device with memory and time of its own, rather than the host."""
    return split_target(target)[0] != HOST


def read_target(text: str) -> str:
    """A target as a user writes it, with the index that it means; ValueError for what is none."""
    kind, index = split_target(text)
    if (kind in (AUTO, HOST) and not index) or (kind == AUTO and index in (ALL, EACH)):
        return text
    kinds = accelerator_kinds()
    if kind in kinds and (index in ("", ALL, EACH) or index.isdecimal()):
        return text if index else f"{kind}:0"
    first = kinds[0] if kinds else "KIND"
    others = f" ({', '.join(kinds[1:])} likewise)" if kinds[1:] else ""
    raise ValueError(f"'{text}' is not a target; write auto, cpu, {first}:0, {first}:* or {first}:each{others}")

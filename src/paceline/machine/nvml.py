"""The NVIDIA driver's management library, each question guarded alone: virtual machines answer only some."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Entry = int | str  # the driver's index of a GPU, or the name of a part of one (MIG)

REASONS = {
    0x001: "gpu-idle",
    0x002: "applications-clocks-setting",
    0x004: "sw-power-cap",
    0x008: "hw-slowdown",
    0x010: "sync-boost",
    0x020: "sw-thermal-slowdown",
    0x040: "hw-thermal-slowdown",
    0x080: "hw-power-brake-slowdown",
    0x100: "display-clock-setting",
    0x200: "board-limit",
    0x400: "reliability",
}


class Nvml:
    """An opened library; what the driver, the card or the binding does not know is None."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer, or None for whatever reason there is none."""
        try:
            return getattr(self.module, function)(*arguments)
        except Exception:  # the library's own errors, and those of a binding older or newer than it
            return None

    def constant(self, name: str) -> Any:
        """A constant of the binding; older ones lack some."""
        return getattr(self.module, name, None)

    def text(self, function: str, *arguments: Any) -> str | None:
        """A string; some bindings answer in bytes."""
        answer = self.ask(function, *arguments)
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def count(self) -> int:
        """How many GPUs the driver shows to this process."""
        return int(self.ask("nvmlDeviceGetCount") or 0)

    def uuids(self) -> list[str]:
        """Names of all GPUs in the driver's order; an unknown one is empty."""
        handles = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(self.count())]
        return [self.text("nvmlDeviceGetUUID", handle) or "" if handle is not None else "" for handle in handles]

    def order_is_known(self) -> bool:
        """Whether CUDA counts the GPUs as the driver does: it puts the fastest first unless told otherwise."""
        if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
            return True
        handles = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(self.count())]
        return len({self.text("nvmlDeviceGetName", handle) for handle in handles}) <= 1

    def handles(self, target: str) -> list[Any]:
        """What `cuda:N` or `cuda:*` names in this process; empty where that cannot be known."""
        entries = visible(self.uuids(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        number = target.partition(":")[2] or "0"
        chosen = entries if number == "*" else entries[int(number) : int(number) + 1]
        if any(isinstance(entry, int) for entry in chosen) and not self.order_is_known():
            return []
        found = [
            self.ask("nvmlDeviceGetHandleByIndex" if isinstance(entry, int) else "nvmlDeviceGetHandleByUUID", entry)
            for entry in chosen
        ]
        return [handle for handle in found if handle is not None]


def visible(uuids: Sequence[str], setting: str | None) -> list[Entry]:
    """What CUDA shows under this CUDA_VISIBLE_DEVICES, in its order; all after the first unknown entry is hidden."""
    if setting is None:
        return list(range(len(uuids)))
    entries: list[Entry] = []
    for word in (word.strip() for word in setting.split(",")):
        if word.isdecimal() and int(word) < len(uuids):
            entries.append(int(word))
        elif word.startswith("GPU-"):
            matching = [index for index, uuid in enumerate(uuids) if uuid.startswith(word)]
            if len(matching) != 1:
                break
            entries.append(matching[0])
        elif word.startswith("MIG-"):
            entries.append(word)
        else:
            break
    return entries if len(set(entries)) == len(entries) else []  # CUDA shows none when one is named twice


def reasons(mask: int) -> list[str]:
    """The names of the bits; one that is not known here keeps its number."""
    named = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return [*named, f"unknown-{rest:#x}"] if rest else named


@contextmanager
def opened() -> Iterator[Nvml | None]:
    """The library for a short while; None where there is no driver."""
    nvml = _load()
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.ask("nvmlShutdown")


_kept: tuple[int, Nvml | None] | None = None


def kept() -> Nvml | None:
    """The library, opened once per process: opening it again costs more than all questions."""
    global _kept
    if _kept is None or _kept[0] != os.getpid():  # a forked child must open its own
        _kept = (os.getpid(), _load())
    return _kept[1]


def _load() -> Nvml | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, no permission: no GPU to ask about
        return None
    return Nvml(pynvml)

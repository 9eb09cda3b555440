"""Small readers that answer None where there is nothing to read, so that one failing probe fails alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path("/")


def attempt(probe: Callable[[], T]) -> T | None:
    """What the probe says, or None if it fails for whatever reason."""
    try:
        return probe()
    except Exception:  # a machine may be odd in any way; what cannot be asked is unknown
        return None


def read_text(path: Path, limit: int | None = None) -> str | None:
    """A small file without the white space around it."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode(errors="replace").strip("\0 \t\r\n")
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """A file that holds one whole number."""
    text = read_text(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def read_table(path: Path, limit: int | None = None) -> dict[str, str]:
    """A file of `key value` or `key: value` lines, such as /proc/meminfo; the first of equal keys counts."""
    table: dict[str, str] = {}
    for line in (read_text(path, limit) or "").splitlines():
        key, _, value = line.partition(":") if ":" in line else line.partition(" ")
        table.setdefault(key.strip(), value.strip())
    return table


def read_cpu_list(text: str) -> set[int]:
    """The CPUs that the kernel's notation `0-3,8` names."""
    runs = [part.strip().partition("-") for part in text.split(",") if part.strip()]
    return {cpu for low, _, high in runs for cpu in range(int(low), int(high or low) + 1)}


def parse_size(text: str) -> int:
    """Bytes of `32K`, `1M` or `16 kB`."""
    number = text.strip().split()[0]
    unit = text.strip()[-1].upper() if number == text.strip() else text.split()[1][0].upper()
    scale = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(unit, 1)
    return int(number.rstrip("KMGkmg")) * scale


def cpu_info(root: Path = ROOT) -> dict[str, str]:
    """The lines of /proc/cpuinfo for the first processor; all of them would take long where there are hundreds."""
    return read_table(root / "proc/cpuinfo", limit=16384)

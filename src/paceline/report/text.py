"""Names and sentences as every report writes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

_WORDS = {
    word.lower(): word for word in ("CPU", "CUDA", "ECC", "FLOPS", "GPU", "GPUs", "MFU", "MHz", "MIG", "NUMA", "SM")
}
_PLAIN = str.maketrans({"±": "+-", "µ": "u", "–": "-", "—": "-", "…": "...", "·": ";", "×": "x"})


@lru_cache(maxsize=4096)  # a page says the same few names for every case
def humanize(name: str) -> str:
    """A metric's or fact's name as words; a name in capitals is an environment variable's and stays."""
    if name != name.lower():
        return name
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


def heading(text: str) -> str:
    """Words with a capital to start with, and no other letter changed."""
    return text[:1].upper() + text[1:]


def when(moment: datetime) -> str:
    """A moment that reads the same everywhere."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def clean(text: str) -> str:
    """Text without control characters, which could drive a terminal; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or (char.isprintable() or char == "\u00a0") else char.encode("unicode_escape").decode()
        for char in text
    )


def one_line(text: str) -> str:
    """Clean text on a single line."""
    return " ".join(clean(text).split())


def split_code(text: str) -> list[str]:
    """The parts of a line between its backticks, every second one a command; a single backtick is only a character."""
    parts = one_line(text).split("`")
    return parts if len(parts) % 2 else [one_line(text)]


def plain(text: str) -> str:
    """Our own signs in ASCII, for pipes and old terminals."""
    return text.translate(_PLAIN)


def told_apart(labels: Sequence[str]) -> tuple[str, list[str]]:
    """The words that all labels share, and what tells each from the others."""
    if len(labels) == 1:
        return labels[0], list(labels)
    split = [label.split() for label in labels]
    shared = [word for word in dict.fromkeys(split[0]) if all(word in words for words in split)]
    rest = [" ".join(word for word in words if word not in shared) for words in split]
    if not all(rest) or len(set(rest)) < len(rest):
        return "", list(labels)
    return " ".join(shared), rest


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"

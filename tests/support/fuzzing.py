"""A small fuzzer: changes good inputs by chance, from a seed, and writes down what a reader could not stand."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path

CRASHES = Path(__file__).parent.parent / "data" / "fuzz"

# What readers stumble over, whole or as a part of something else.
TOKENS = (
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J", b"\r", b"\n", b"\\", b'"', b"'", b"\\ud800", b"\\u0000"),
    *(b"{", b"}", b"[", b"]", b":", b",", b"- ", b"? ", b"&a ", b"*a", b"<<: *a", b"!!python/none", b"%YAML 9", b"---"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0x", b"9" * 30, b"9" * 5000, b"2020-99-99"),
    *(b"[" * 2000, b'{"a":' * 2000, b"((" * 500, b"a" * 5000, b'{"$float": "inf"}', b"lambda x: x", b"=", b"&"),
)


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """One of the seeds with some changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 2, 8, 64)))
        match rng.randrange(6):
            case 0 if data:
                data[start % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[start:end]
            case 2:
                data[start:start] = data[start:end] * rng.choice((1, 2, 50))
            case 3:
                data[start:end] = rng.choice(TOKENS)
            case 4:
                data[start:] = rng.choice(seeds)[rng.randrange(len(data) + 1) :]
            case _:
                data[start:end] = rng.choice(TOKENS) + bytes(data[start:end]) + rng.choice(TOKENS)
    return bytes(data)


def recorded(name: str) -> list[bytes]:
    """Inputs that a reader once could not stand."""
    return [path.read_bytes() for path in sorted((CRASHES / name).glob("*"))]


def fuzz(
    name: str,
    seeds: Sequence[bytes],
    read: Callable[[bytes], object],
    refusals: tuple[type[Exception], ...],
    count: int,
) -> None:
    """Give a reader what it could not stand before, the seeds, and changed ones; it may refuse, and nothing else."""
    rng = random.Random(f"{name} {count}")
    inputs = [*recorded(name), *seeds, *(mutated(seeds, rng) for _ in range(count))]
    for data in inputs:
        try:
            read(data)
        except refusals:
            continue
        except Exception as error:
            folder = CRASHES / name
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / hashlib.sha256(data).hexdigest()[:16]
            path.write_bytes(data)
            raise AssertionError(f"{name}: {type(error).__name__}: {error}; the input is in {path}") from error

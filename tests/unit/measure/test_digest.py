"""A digest changes with every single bit, and with nothing else."""

from __future__ import annotations

import pytest
import torch

from paceline.measure import digest as module
from paceline.measure.digest import bits, digest, joined_digest

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return (4 * torch.randn(*shape, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_every_element_counts(dtype: torch.dtype) -> None:
    tensor = random(dtype, 3, 5)
    right, found = int(digest(tensor)), set[int]()
    words, width = bits(tensor).view(-1), 8 * tensor.element_size()
    for place in range(words.numel()):
        for bit in range(width):
            mask = (1 << bit) - (1 << width if bit == width - 1 and words.dtype != torch.uint8 else 0)
            words[place] ^= mask
            found.add(int(digest(tensor)))
            words[place] ^= mask
    assert len(found) == words.numel() * width and right not in found
    assert int(digest(tensor)) == right


def test_the_order_of_elements_counts() -> None:
    tensor = random(torch.float32, 8)
    assert int(digest(tensor)) != int(digest(tensor.flip(0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_the_same_numbers_have_the_same_digest_wherever_they_lie(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    whole = random(dtype, 65)
    part = whole[1:]
    assert int(digest(part)) == int(digest(part.clone()))
    square = random(dtype, 8, 8)
    assert int(digest(square.mT)) == int(digest(square.mT.contiguous()))
    monkeypatch.setattr(module, "CHUNK", 8)
    assert int(digest(square)) == int(digest(square.clone()))
    assert int(digest(square)) != int(digest(square.roll(8)))


def test_bits_tell_what_numbers_do_not() -> None:
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert torch.equal(bits(nan), bits(nan.clone()))
    assert not torch.equal(bits(zero), bits(-zero))
    assert int(digest(torch.empty(0))) == 0


def test_a_joined_digest_knows_names_but_not_their_order() -> None:
    assert joined_digest({"a": 1, "b": 2}) == joined_digest({"b": 2, "a": 1})
    assert joined_digest({"a": 1, "b": 2}) != joined_digest({"a": 2, "b": 1})

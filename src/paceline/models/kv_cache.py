"""Keys and values of the tokens so far, in buffers of a fixed size: what a decoder reads when it makes the next token.

Nothing here depends on how many tokens there are, so that a step can be compiled and captured as a CUDA graph: new
keys are written at positions that are a tensor on the device, and attention masks what lies after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class KVCache:
    """For each layer, keys and values [batch, heads, max_length, head size], with the heads of keys."""

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        max_length: int,
        heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
        value_size: int | None = None,  # where values are not as wide as keys
    ) -> None:
        import torch

        def buffers(width: int) -> list[Tensor]:
            shape = (batch, heads, max_length, width)
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]

        self.max_length = max_length
        self.keys = buffers(head_size)
        self.values = buffers(head_size if value_size is None else value_size)
        self._places = torch.arange(max_length, device=device)

    @property
    def nbytes(self) -> int:
        """Memory of all layers."""
        return sum(one.numel() * one.element_size() for one in (*self.keys, *self.values))

    def update(self, layer: int, key: Tensor, value: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values [batch, heads, length, size] at their positions [length]; returns whole buffers."""
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(2, positions, key.to(keys.dtype))
        values.index_copy_(2, positions, value.to(values.dtype))
        return keys, values

    def mask(self, positions: Tensor) -> Tensor:
        """Which places tokens at these positions see: [length, max_length], true up to their own."""
        return self._places <= positions[:, None]

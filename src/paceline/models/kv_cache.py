"""Keys and values of the tokens so far, in buffers of a fixed size: what a decoder reads when it makes the next token.

Nothing here depends on how many tokens there are, so that a step can be compiled and captured as a CUDA graph: new
keys are written at positions that are a tensor on the device, and attention masks what lies after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class LayerCache:
    """Keys and values of one layer: [batch, heads, max_length, head size], with the heads of keys."""

    def __init__(self, keys: Tensor, values: Tensor, places: Tensor) -> None:
        self.keys, self.values, self._places = keys, values, places

    def update(self, key: Tensor, value: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values [batch, heads, length, size] at their positions [length]; returns whole buffers."""
        self.keys.index_copy_(2, positions, key.to(self.keys.dtype))
        self.values.index_copy_(2, positions, value.to(self.values.dtype))
        return self.keys, self.values

    def mask(self, positions: Tensor) -> Tensor:
        """Which places tokens at these positions see: [length, max_length], true up to their own."""
        return self._places <= positions[:, None]


class KVCache:
    """The caches of all layers."""

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

        def buffer(width: int) -> Tensor:
            return torch.zeros((batch, heads, max_length, width), dtype=dtype, device=device)

        self.max_length = max_length
        places = torch.arange(max_length, device=device)
        value_size = head_size if value_size is None else value_size
        self.layers = [LayerCache(buffer(head_size), buffer(value_size), places) for _ in range(layers)]

    @property
    def nbytes(self) -> int:
        """Memory of all layers."""
        tensors = (tensor for layer in self.layers for tensor in (layer.keys, layer.values))
        return sum(one.numel() * one.element_size() for one in tensors)

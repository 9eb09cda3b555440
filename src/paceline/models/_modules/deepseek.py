"""Multi-head latent attention: keys and values of all heads are made from one short vector for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.models._modules.decoder import DecoderBlock, KVCache, LayerCache, RmsNorm, Rotary, attend
from paceline.models._modules.experts import MoeDecoder

if TYPE_CHECKING:
    from paceline.models.deepseek import LatentShape


class LatentAttention(nn.Module):
    """Causal attention; a part of each query and key is turned by the position, in keys the same for all heads."""

    def __init__(self, shape: LatentShape, rotary: Rotary) -> None:
        super().__init__()
        self.plain, self.turned, self.latent, self.value = shape.plain, shape.turned, shape.latent, shape.value
        self.rotary = rotary
        self.query = nn.Linear(shape.hidden, shape.heads * (shape.plain + shape.turned), bias=False)
        self.compress = nn.Linear(shape.hidden, shape.latent + shape.turned, bias=False)
        self.latent_norm = RmsNorm(shape.latent, shape.epsilon)
        self.keys_values = nn.Linear(shape.latent, shape.heads * (shape.plain + shape.value), bias=False)
        self.output = nn.Linear(shape.heads * shape.value, shape.hidden, bias=False)

    def forward(self, x: Tensor, cache: LayerCache | None = None, positions: Tensor | None = None) -> Tensor:
        batch, length, _ = x.shape
        rows = self.rotary.rows(length, positions)
        query = self.query(x).view(batch, length, -1, self.plain + self.turned)
        plain, turned = torch.split(query, [self.plain, self.turned], -1)
        turned = self.rotary(turned, rows)
        compressed, key = torch.split(self.compress(x), [self.latent, self.turned], -1)
        latent = self.latent_norm(compressed)
        key = self.rotary(key.unsqueeze(2), rows)
        if cache is not None:
            both = torch.cat((latent.unsqueeze(2), key), -1).transpose(1, 2)
            at = torch.arange(length, device=x.device) if positions is None else positions
            held, _ = cache.update(both, both[..., :0], at)
            if positions is not None:
                return self._from_latents(plain, turned, held.to(x.dtype), cache.mask(positions))
        both = self.keys_values(latent).view(batch, length, -1, self.plain + self.value)
        keys, values = torch.split(both, [self.plain, self.value], -1)
        keys = torch.cat((keys, key.expand(-1, -1, keys.shape[2], -1)), -1)
        query = torch.cat((plain, turned), -1)
        mixed = attend(query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _from_latents(self, plain: Tensor, turned: Tensor, held: Tensor, mask: Tensor) -> Tensor:
        """Attention over what the cache holds as it is: queries take the product that would make keys of it."""
        weights = self.keys_values.weight.view(-1, self.plain + self.value, self.latent)
        to_keys, to_values = torch.split(weights, [self.plain, self.value], 1)
        query = torch.cat((torch.einsum("blhp,hpc->bhlc", plain, to_keys), turned.transpose(1, 2)), -1)
        scale = (self.plain + self.turned) ** -0.5
        mixed = attend(query, held, held[..., : self.latent], mask=mask, scale=scale)
        values = torch.einsum("bhlc,hvc->blhv", mixed, to_values)
        return self.output(values.flatten(2))  # type: ignore[no-any-return]


class Deepseek(MoeDecoder):
    """A decoder with latent attention, and experts of which some are shared by all tokens."""

    shape: LatentShape

    def _blocks(self) -> list[nn.Module]:
        shape = self.shape
        rotary = Rotary(shape.turned, shape.context, shape.theta, interleaved=True)
        return [
            DecoderBlock(LatentAttention(shape, rotary), self.feed_forward(layer), shape.hidden, shape.epsilon)
            for layer in range(shape.layers)
        ]

    def make_cache(self, batch: int, max_length: int, dtype: torch.dtype | None = None) -> KVCache:
        """An empty one: for each token its latent vector and its turned key, no values."""
        weight = self.token_embedding.weight
        return KVCache(
            layers=self.shape.layers,
            batch=batch,
            max_length=max_length,
            heads=1,
            head_size=self.shape.latent + self.shape.turned,
            value_size=0,
            dtype=dtype or weight.dtype,
            device=weight.device,
        )

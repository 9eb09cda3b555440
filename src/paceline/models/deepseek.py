"""DeepSeek-V2-Lite: multi-head latent attention, and 6 of 64 small experts beside two that all tokens pass.

Its rotary angles are the plain ones: the stretching for contexts beyond 4096 tokens costs no time and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.models.base import Workload
from paceline.models.llama import decoder_spec, decoder_workload, resized
from paceline.models.mixtral import MoeShape


@dataclass(frozen=True, kw_only=True)
class LatentShape(MoeShape):
    """The sizes of a decoder with latent attention; a query has `plain` + `turned` numbers for each head."""

    latent: int
    plain: int
    turned: int  # by the position
    value: int

    @property
    def attention_width(self) -> int:
        return self.heads * (self.plain + self.turned + self.value) // 2  # of keys and values on average

    @property
    def attention_products(self) -> int:
        query = self.hidden * self.heads * (self.plain + self.turned)
        keys_values = self.hidden * (self.latent + self.turned) + self.latent * self.heads * (self.plain + self.value)
        return query + keys_values + self.heads * self.value * self.hidden


def build_deepseek(shape: LatentShape) -> Workload:
    """A DeepSeek of any shape with random tokens to train it on."""
    from paceline.models._modules.deepseek import Deepseek

    return decoder_workload(shape, Deepseek)


TINY = LatentShape(
    layers=2, hidden=128, heads=4, key_heads=4, feed_forward=64, vocabulary=1024, context=64, sequence=64, epsilon=1e-6,
    experts=8, experts_used=2, renormalised=False, shared_width=128, dense_layers=1, dense_width=256,
    latent=64, plain=32, turned=16, value=32,
)  # fmt: skip
LITE = replace(
    resized(TINY, 27, 2048, 16, 16, 1408, vocabulary=102400, context=4096, sequence=2048),
    experts=64, experts_used=6, shared_width=2 * 1408, dense_width=10944, latent=512, plain=128, turned=64, value=128,
)  # fmt: skip
TITLE = "DeepSeek V2 Lite, 6 of 64 experts and 2 shared ones"
DEEPSEEK_V2_LITE = decoder_spec("deepseek-v2-lite", TITLE, 15_706_484_224, 1, LITE, TINY, build_deepseek)

"""DeepSeek-V2-Lite: multi-head latent attention, and 6 of 64 small experts beside two that all tokens pass.

Its rotary angles are the plain ones: the stretching for contexts beyond 4096 tokens costs no time and is left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from paceline.models.base import ModelSpec, Workload, build_scaled
from paceline.models.llama import decoder_workload
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


LITE = LatentShape(
    layers=27,
    hidden=2048,
    heads=16,
    key_heads=16,
    feed_forward=1408,
    vocabulary=102400,
    context=4096,
    epsilon=1e-6,
    experts=64,
    experts_used=6,
    renormalised=False,
    shared_width=2 * 1408,
    dense_layers=1,
    dense_width=10944,
    latent=512,
    plain=128,
    turned=64,
    value=128,
)
TINY = LatentShape(
    layers=2,
    hidden=128,
    heads=4,
    key_heads=4,
    feed_forward=64,
    vocabulary=1024,
    context=64,
    sequence=64,
    experts=8,
    experts_used=2,
    renormalised=False,
    shared_width=128,
    dense_layers=1,
    dense_width=256,
    latent=64,
    plain=32,
    turned=16,
    value=32,
)
DEEPSEEK_V2_LITE = ModelSpec(
    name="deepseek-v2-lite",
    family="deepseek",
    task="language modelling",
    summary=f"DeepSeek-V2-Lite: {LITE.layers} layers, hidden size {LITE.hidden}, {LITE.heads} heads from latent "
    f"vectors of {LITE.latent}, {LITE.experts_used} of {LITE.experts} experts and 2 shared ones of "
    f"{LITE.feed_forward}; {LITE.sequence} tokens a sample",
    build=partial(build_scaled, build_deepseek, LITE, TINY),
    parameters=15_706_484_224,
    flops=LITE.forward_flops,
    batch_size=1,
    sample="sequence",
    fp8=True,
    settings=asdict(LITE),
)

"""Llama and Qwen with the weights of transformers' give its logits and gradients; a cache changes no logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.models._modules.decoder import Decoder, Rotary, attend
from paceline.models.llama import TINY, DecoderShape, build_llama
from support.decoders import assert_cached_like_whole, packed_gate, packed_qkv

transformers = pytest.importorskip("transformers", reason="needs it: pip install '.[dev]'")

SHAPE = replace(
    TINY, layers=3, hidden=64, heads=4, key_heads=2, feed_forward=96, vocabulary=211, context=48, sequence=32
)
SHAPES = {
    "llama": SHAPE,
    "llama-tied": replace(SHAPE, tied=True, theta=500_000.0),
    "qwen2": replace(SHAPE, qkv_bias=True, epsilon=1e-6),
    "qwen3": replace(SHAPE, qk_norm=True, head_size=32),
}


def reference_of(name: str, shape: DecoderShape) -> nn.Module:
    """Transformers' model of the same shape."""
    family = {"llama": "Llama", "llama-tied": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[name]
    more: dict[str, Any] = {"head_dim": shape.head_width} if shape.qk_norm else {}
    config = getattr(transformers, f"{family}Config")(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.feed_forward,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        rms_norm_eps=shape.epsilon,
        tie_word_embeddings=shape.tied,
        **more,
    )
    reference: nn.Module = getattr(transformers, f"{family}ForCausalLM")(config).train()
    for parameter in reference.parameters():  # away from zeros and ones, so that a wrong mapping cannot hide
        nn.init.normal_(parameter, mean=0.05, std=0.2)
    return reference


def weights(shape: DecoderShape, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Transformers' weights, or their gradients, into our names and layout."""
    ours = {
        "token_embedding.weight": theirs["model.embed_tokens.weight"],
        "final_norm.weight": theirs["model.norm.weight"],
    }
    if not shape.tied:
        ours["lm_head.weight"] = theirs["lm_head.weight"]
    for layer in range(shape.layers):
        block, other = f"blocks.{layer}", f"model.layers.{layer}"
        for kind in ("weight", "bias") if shape.qkv_bias else ("weight",):
            ours[f"{block}.attention.qkv.{kind}"] = packed_qkv(shape, theirs, f"{other}.self_attn", kind)
        if shape.qk_norm:
            ours[f"{block}.attention.query_norm.weight"] = theirs[f"{other}.self_attn.q_norm.weight"]
            ours[f"{block}.attention.key_norm.weight"] = theirs[f"{other}.self_attn.k_norm.weight"]
        ours[f"{block}.attention.output.weight"] = theirs[f"{other}.self_attn.o_proj.weight"]
        ours[f"{block}.attention_norm.weight"] = theirs[f"{other}.input_layernorm.weight"]
        ours[f"{block}.feed_forward_norm.weight"] = theirs[f"{other}.post_attention_layernorm.weight"]
        gate, value = theirs[f"{other}.mlp.gate_proj.weight"], theirs[f"{other}.mlp.up_proj.weight"]
        ours[f"{block}.feed_forward.expand.weight"] = packed_gate(gate, value)
        ours[f"{block}.feed_forward.contract.weight"] = theirs[f"{other}.mlp.down_proj.weight"]
    return ours


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_gradients_agree_with_transformers(name: str) -> None:
    shape = SHAPES[name]
    reference = reference_of(name, shape)
    workload = build_llama(shape)
    module = workload.module.train()
    module.load_state_dict(weights(shape, reference.state_dict()))
    batch = workload.make_batch(3, torch.Generator().manual_seed(1))
    logits, theirs = module(*batch.inputs), reference(input_ids=batch.inputs[0]).logits
    torch.testing.assert_close(logits, theirs, rtol=1e-4, atol=1e-4)
    workload.loss(logits, batch).backward()
    nn.functional.cross_entropy(theirs.flatten(0, 1), batch.targets[0].flatten()).backward()
    gradients = {name: one.grad for name, one in reference.named_parameters() if one.grad is not None}
    expected = weights(shape, gradients)
    for weight, parameter in module.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[weight], rtol=1e-3, atol=1e-5, msg=lambda text, weight=weight: f"{weight}: {text}"
        )


@pytest.mark.parametrize("name", SHAPES)
def test_tokens_through_a_cache_give_the_logits_of_the_whole_text(name: str) -> None:
    assert_cached_like_whole(build_llama(SHAPES[name]).module.eval())


def test_what_lies_behind_the_last_position_of_a_cache_is_not_seen() -> None:
    model = build_llama(SHAPE).module.eval()
    assert isinstance(model, Decoder)
    tokens = torch.randint(211, (1, 8))
    logits = []
    for junk in (0.0, 100.0):
        cache = model.make_cache(batch=1, max_length=16)
        for layer in cache.layers:
            layer.keys.fill_(junk)
            layer.values.fill_(junk)
        with torch.inference_mode():
            model(tokens[:, :-1], cache)
            logits.append(model(tokens[:, -1:], cache, torch.tensor([7])))
    torch.testing.assert_close(logits[0], logits[1])


def test_a_cache_holds_the_heads_of_keys_in_the_format_of_the_weights() -> None:
    model = build_llama(SHAPE).module.to(torch.bfloat16)
    assert isinstance(model, Decoder)
    cache = model.make_cache(batch=5, max_length=7)
    assert cache.nbytes == 2 * 3 * (5 * 2 * 7 * 16) * 2  # keys and values, layers, numbers, bytes
    assert cache.layers[0].keys.dtype is torch.bfloat16
    assert model.make_cache(batch=1, max_length=1, dtype=torch.float32).layers[2].values.dtype is torch.float32


@pytest.mark.parametrize("length", [1, 6])
def test_a_group_of_queries_attends_to_its_own_key(length: int) -> None:
    query, key, value = torch.randn(2, 6, length, 8), torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    mixed = attend(query, key, value, causal=True)
    each = [attend(query[:, [head]], key[:, [head // 3]], value[:, [head // 3]], causal=True) for head in range(6)]
    torch.testing.assert_close(mixed, torch.cat(each, 1))


def test_a_rotation_leaves_lengths_alone_and_depends_on_the_position() -> None:
    rotary = Rotary(8, 16, 10_000.0)
    x = torch.ones(1, 16, 2, 8)
    turned = rotary(x, rotary.rows(16, None))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, 0], x[:, 0])
    assert not torch.allclose(turned[:, 1], x[:, 1])
    torch.testing.assert_close(rotary(x[:, :1], rotary.rows(1, torch.tensor([5]))), turned[:, 5:6])

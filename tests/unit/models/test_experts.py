"""Mixtral and DeepSeek with the weights of transformers' give its logits and gradients; a cache changes no logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.core.transformer import transformer
from paceline.models._modules import experts as experts_module
from paceline.models._modules.decoder import Decoder
from paceline.models._modules.experts import MixtureOfExperts, grouped_linear
from paceline.models.deepseek import TINY as TINY_DEEPSEEK
from paceline.models.deepseek import build_deepseek
from paceline.models.llama import DecoderShape
from paceline.models.mixtral import MIXTRAL_8X7B, MoeShape, build_mixtral
from paceline.models.mixtral import TINY as TINY_MIXTRAL
from support.decoders import assert_cached_like_whole, packed_gate, packed_qkv

transformers = pytest.importorskip("transformers", reason="needs it: pip install '.[dev]'")

SIZES: dict[str, Any] = {"layers": 3, "hidden": 64, "vocabulary": 211, "context": 48, "sequence": 32}
MIXTRAL = replace(TINY_MIXTRAL, **SIZES, feed_forward=96)
DEEPSEEK = replace(TINY_DEEPSEEK, **SIZES, epsilon=1e-6)


def common(shape: DecoderShape) -> dict[str, Any]:
    return {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "rms_norm_eps": shape.epsilon,
        "tie_word_embeddings": False,
    }


def spread(reference: nn.Module) -> nn.Module:
    """Weights of every kind away from their initial zeros and ones, so that a wrong mapping cannot hide."""
    for parameter in reference.parameters():
        nn.init.normal_(parameter, mean=0.02, std=0.15)
    return reference.train()


def outer(shape: DecoderShape, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    ours = {
        "token_embedding.weight": theirs["model.embed_tokens.weight"],
        "final_norm.weight": theirs["model.norm.weight"],
        "lm_head.weight": theirs["lm_head.weight"],
    }
    for layer in range(shape.layers):
        block, other = f"blocks.{layer}", f"model.layers.{layer}"
        ours[f"{block}.attention.output.weight"] = theirs[f"{other}.self_attn.o_proj.weight"]
        ours[f"{block}.attention_norm.weight"] = theirs[f"{other}.input_layernorm.weight"]
        ours[f"{block}.feed_forward_norm.weight"] = theirs[f"{other}.post_attention_layernorm.weight"]
    return ours


def experts(theirs: dict[str, Tensor], block: str, other: str) -> dict[str, Tensor]:
    gate, value = theirs[f"{other}.experts.gate_up_proj"].chunk(2, 1)
    return {
        f"{block}.router.weight": theirs[f"{other}.gate.weight"],
        f"{block}.experts.expand_weights": packed_gate(gate, value),
        f"{block}.experts.contract_weights": theirs[f"{other}.experts.down_proj"],
    }


def plain(theirs: dict[str, Tensor], block: str, other: str) -> dict[str, Tensor]:
    gate, value = theirs[f"{other}.gate_proj.weight"], theirs[f"{other}.up_proj.weight"]
    return {
        f"{block}.expand.weight": packed_gate(gate, value),
        f"{block}.contract.weight": theirs[f"{other}.down_proj.weight"],
    }


def mixtral_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    ours = outer(MIXTRAL, theirs)
    for layer in range(MIXTRAL.layers):
        block, other = f"blocks.{layer}", f"model.layers.{layer}"
        ours[f"{block}.attention.qkv.weight"] = packed_qkv(MIXTRAL, theirs, f"{other}.self_attn", "weight")
        ours |= experts(theirs, f"{block}.feed_forward", f"{other}.mlp")
    return ours


def deepseek_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    ours = outer(DEEPSEEK, theirs)
    for layer in range(DEEPSEEK.layers):
        block, other = f"blocks.{layer}", f"model.layers.{layer}"
        names = {
            "query.weight": "q_proj.weight",
            "compress.weight": "kv_a_proj_with_mqa.weight",
            "latent_norm.weight": "kv_a_layernorm.weight",
            "keys_values.weight": "kv_b_proj.weight",
        }
        ours |= {f"{block}.attention.{mine}": theirs[f"{other}.self_attn.{name}"] for mine, name in names.items()}
        if layer < DEEPSEEK.dense_layers:
            ours |= plain(theirs, f"{block}.feed_forward", f"{other}.mlp")
        else:
            ours |= experts(theirs, f"{block}.feed_forward", f"{other}.mlp")
            ours |= plain(theirs, f"{block}.feed_forward.shared", f"{other}.mlp.shared_experts")
    return ours


def mixtral_reference() -> nn.Module:
    config = transformers.MixtralConfig(
        **common(MIXTRAL),
        intermediate_size=MIXTRAL.feed_forward,
        num_local_experts=MIXTRAL.experts,
        num_experts_per_tok=MIXTRAL.experts_used,
        sliding_window=None,
    )
    return spread(transformers.MixtralForCausalLM(config))


def deepseek_reference() -> nn.Module:
    config = transformers.DeepseekV2Config(
        **common(DEEPSEEK),
        intermediate_size=DEEPSEEK.dense_width,
        moe_intermediate_size=DEEPSEEK.feed_forward,
        n_routed_experts=DEEPSEEK.experts,
        n_shared_experts=2,
        num_experts_per_tok=DEEPSEEK.experts_used,
        first_k_dense_replace=DEEPSEEK.dense_layers,
        q_lora_rank=None,
        kv_lora_rank=DEEPSEEK.latent,
        qk_nope_head_dim=DEEPSEEK.plain,
        qk_rope_head_dim=DEEPSEEK.turned,
        v_head_dim=DEEPSEEK.value,
    )
    return spread(transformers.DeepseekV2ForCausalLM(config))


@pytest.mark.parametrize("name", ["mixtral", "deepseek"])
def test_logits_and_gradients_agree_with_transformers(name: str) -> None:
    if name == "mixtral":
        reference, workload, convert = mixtral_reference(), build_mixtral(MIXTRAL), mixtral_weights
    else:
        reference, workload, convert = deepseek_reference(), build_deepseek(DEEPSEEK), deepseek_weights
    module = workload.module.train()
    module.load_state_dict(convert(reference.state_dict()))
    batch = workload.make_batch(3, torch.Generator().manual_seed(1))
    logits, theirs = module(*batch.inputs), reference(input_ids=batch.inputs[0]).logits
    torch.testing.assert_close(logits, theirs, rtol=1e-4, atol=1e-4)
    workload.loss(logits, batch).backward()
    nn.functional.cross_entropy(theirs.flatten(0, 1), batch.targets[0].flatten()).backward()
    expected = convert({name: one.grad for name, one in reference.named_parameters() if one.grad is not None})
    for weight, parameter in module.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[weight], rtol=1e-3, atol=1e-5, msg=lambda text, weight=weight: f"{weight}: {text}"
        )


@pytest.mark.parametrize("build", [lambda: build_mixtral(MIXTRAL), lambda: build_deepseek(DEEPSEEK)])
def test_tokens_through_a_cache_give_the_logits_of_the_whole_text(build: Any) -> None:
    assert_cached_like_whole(build().module.eval())


def test_a_latent_cache_is_small() -> None:
    model = build_deepseek(DEEPSEEK).module
    assert isinstance(model, Decoder)
    assert model.make_cache(batch=2, max_length=10).nbytes == 3 * 2 * 10 * (64 + 16) * 4


def test_an_expert_without_tokens_has_a_gradient_of_zero() -> None:
    weights = torch.randn(3, 5, 4, requires_grad=True)
    x = torch.randn(6, 4)
    product = grouped_linear(x, weights, torch.tensor([2, 0, 4]))
    torch.testing.assert_close(product, torch.cat((x[:2] @ weights[0].T, x[2:] @ weights[2].T)))
    product.sum().backward()
    assert weights.grad is not None
    assert not weights.grad[1].any()
    assert weights.grad[0].any()


@pytest.mark.skipif(experts_module._grouped_mm is None, reason="needs torch with a grouped product")
def test_the_grouped_product_of_gpus_is_that_of_one_expert_after_the_other() -> None:
    x, weights = torch.randn(12, 16).bfloat16(), torch.randn(3, 32, 16).bfloat16()
    counts = torch.tensor([5, 0, 7])
    results = []
    for grouped in (True, False):
        rows, matrices = x.clone().requires_grad_(), weights.clone().requires_grad_()
        if grouped:
            assert experts_module._grouped_mm is not None
            ends = counts.cumsum(0).to(torch.int32)
            product = experts_module._grouped_mm(rows, matrices.transpose(-2, -1), offs=ends)
        else:
            product = grouped_linear(rows, matrices, counts)
        product.backward(torch.ones(12, 32).bfloat16())
        results.append((product, rows.grad, matrices.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_every_token_gets_the_sum_of_its_own_experts() -> None:
    shape = MoeShape(
        layers=1, hidden=8, heads=2, key_heads=1, feed_forward=16, vocabulary=16, context=8, experts=5, experts_used=3
    )
    layer = MixtureOfExperts(shape)
    x = torch.randn(2, 7, 8)
    probabilities, chosen = layer.router(x).softmax(-1).topk(3)
    probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    expected = torch.zeros_like(x)
    for at in [(row, token) for row in range(2) for token in range(7)]:
        for probability, expert in zip(probabilities[at], chosen[at].tolist(), strict=True):
            alone = torch.tensor([int(one == expert) for one in range(5)])
            expected[at] += probability * layer.experts(x[at].unsqueeze(0), alone)[0]
    torch.testing.assert_close(layer(x), expected)


def test_the_formula_of_parallel_training_counts_what_the_zoo_counts() -> None:
    shape = MIXTRAL_8X7B
    sizes = transformer("mixtral", shape.layers, shape.hidden, shape.heads, shape.sequence)
    assert (sizes.key_heads, sizes.feed_forward) == (shape.key_heads, shape.feed_forward)
    assert sizes.forward_flops == shape.forward_flops

"""Our T5 with the weights of transformers' gives its logits and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.models.t5 import START, TINY, T5Shape, build_t5

transformers = pytest.importorskip("transformers", reason="needs it: pip install '.[dev]'")

# Longer than the farthest distance that has a bucket of its own.
SHAPE = T5Shape(layers=2, hidden=64, heads=4, head_size=24, feed_forward=96, vocabulary=211, source=150, target=140)


def by_head(theirs: dict[str, Tensor], prefix: str, names: str) -> Tensor:
    """Projections as ours holds them: head by head."""
    parts = [theirs[f"{prefix}.{name}.weight"].unflatten(0, (SHAPE.heads, -1)) for name in names]
    return torch.stack(parts, dim=1).flatten(0, 2)


def weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Transformers' weights, or their gradients, into our names and layout."""
    ours = {"token_embedding.weight": theirs["shared.weight"]}
    for stack, crosses in (("encoder", False), ("decoder", True)):
        ours[f"{stack}_norm.weight"] = theirs[f"{stack}.final_layer_norm.weight"]
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ours[f"{stack}_bias.embedding.weight"] = theirs[bias]
        for layer in range(SHAPE.layers):
            block, other = f"{stack}.{layer}", f"{stack}.block.{layer}.layer"
            ours[f"{block}.attention.qkv.weight"] = by_head(theirs, f"{other}.0.SelfAttention", "qkv")
            ours[f"{block}.attention.output.weight"] = theirs[f"{other}.0.SelfAttention.o.weight"]
            ours[f"{block}.attention_norm.weight"] = theirs[f"{other}.0.layer_norm.weight"]
            if crosses:
                ours[f"{block}.cross.query.weight"] = theirs[f"{other}.1.EncDecAttention.q.weight"]
                ours[f"{block}.cross.key_value.weight"] = by_head(theirs, f"{other}.1.EncDecAttention", "kv")
                ours[f"{block}.cross.output.weight"] = theirs[f"{other}.1.EncDecAttention.o.weight"]
                ours[f"{block}.cross_norm.weight"] = theirs[f"{other}.1.layer_norm.weight"]
            last = 2 if crosses else 1
            ours[f"{block}.expand.weight"] = theirs[f"{other}.{last}.DenseReluDense.wi.weight"]
            ours[f"{block}.contract.weight"] = theirs[f"{other}.{last}.DenseReluDense.wo.weight"]
            ours[f"{block}.feed_forward_norm.weight"] = theirs[f"{other}.{last}.layer_norm.weight"]
    return ours


def test_logits_and_gradients_agree_with_transformers() -> None:
    config = transformers.T5Config(
        num_layers=SHAPE.layers,
        d_model=SHAPE.hidden,
        num_heads=SHAPE.heads,
        d_kv=SHAPE.head_size,
        d_ff=SHAPE.feed_forward,
        vocab_size=SHAPE.vocabulary,
        dropout_rate=0.0,
        feed_forward_proj="relu",
    )
    reference = transformers.T5ForConditionalGeneration(config).train()
    for parameter in reference.parameters():  # away from zeros and ones, so that a wrong mapping cannot hide
        nn.init.normal_(parameter, mean=0.02, std=0.15)
    workload = build_t5(SHAPE)
    module = workload.module.train()
    module.load_state_dict(weights(reference.state_dict()))
    batch = workload.make_batch(2, torch.Generator().manual_seed(1))
    source, written = batch.inputs
    logits = module(source, written)
    theirs = reference(input_ids=source, decoder_input_ids=written).logits
    torch.testing.assert_close(logits, theirs, rtol=1e-4, atol=1e-4)
    workload.loss(logits, batch).backward()
    nn.functional.cross_entropy(theirs.flatten(0, 1), batch.targets[0].flatten()).backward()
    expected = weights({name: one.grad for name, one in reference.named_parameters() if one.grad is not None})
    for weight, parameter in module.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[weight], rtol=1e-3, atol=1e-5, msg=lambda text, weight=weight: f"{weight}: {text}"
        )


def test_the_decoder_reads_what_it_wrote_before_each_token() -> None:
    batch = build_t5(TINY).make_batch(2, torch.Generator().manual_seed(1))
    written, targets = batch.inputs[1], batch.targets[0]
    assert (written[:, 0] == START).all()
    assert torch.equal(written[:, 1:], targets[:, :-1])

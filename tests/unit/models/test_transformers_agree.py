"""Our GPT-2 and BERT with the weights of transformers' give its logits, its loss and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.models._modules.transformer import Bert, BertBlock, Gpt2, padded_logits
from paceline.models.bert import BertShape, build_bert
from paceline.models.gpt2 import Gpt2Shape, build_gpt2

transformers = pytest.importorskip("transformers", reason="needs it: pip install '.[dev]'")

HEADS = 4
GPT2 = Gpt2Shape(layers=3, hidden=64, heads=HEADS, vocabulary=211, context=40, sequence=32)
BERT = BertShape(layers=3, hidden=64, heads=HEADS, vocabulary=211, context=40, sequence=32, masked=6)


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Three projections with outputs in front as ours holds them: head by head."""
    parts = [part.unflatten(0, (HEADS, -1)) for part in (query, key, value)]
    return torch.stack(parts, dim=1).flatten(0, 2)


def gpt2_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Transformers' GPT-2 into our names and layout; its linear layers hold their inputs in front."""
    ours = {
        "token_embedding.weight": theirs["transformer.wte.weight"],
        "position_embedding.weight": theirs["transformer.wpe.weight"],
        "final_norm.weight": theirs["transformer.ln_f.weight"],
        "final_norm.bias": theirs["transformer.ln_f.bias"],
    }
    for layer in range(GPT2.layers):
        block, other = f"blocks.{layer}", f"transformer.h.{layer}"
        for kind in ("weight", "bias"):

            def linear(name: str, kind: str = kind, other: str = other) -> Tensor:
                found = theirs[f"{other}.{name}.{kind}"]
                return found.T if kind == "weight" else found

            ours[f"{block}.attention_norm.{kind}"] = theirs[f"{other}.ln_1.{kind}"]
            ours[f"{block}.feed_forward_norm.{kind}"] = theirs[f"{other}.ln_2.{kind}"]
            ours[f"{block}.attention.qkv.{kind}"] = fused(*linear("attn.c_attn").chunk(3))
            ours[f"{block}.attention.output.{kind}"] = linear("attn.c_proj")
            ours[f"{block}.feed_forward.expand.{kind}"] = linear("mlp.c_fc")
            ours[f"{block}.feed_forward.contract.{kind}"] = linear("mlp.c_proj")
    return ours


def bert_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Transformers' BERT into our names and layout."""
    embeddings, head = "bert.embeddings", "cls.predictions"
    ours = {
        "token_embedding.weight": theirs[f"{embeddings}.word_embeddings.weight"],
        "position_embedding.weight": theirs[f"{embeddings}.position_embeddings.weight"],
        "type_embedding.weight": theirs[f"{embeddings}.token_type_embeddings.weight"],
        "head_bias": theirs[f"{head}.bias"],
    }
    for kind in ("weight", "bias"):
        ours[f"embedding_norm.{kind}"] = theirs[f"{embeddings}.LayerNorm.{kind}"]
        ours[f"head_transform.{kind}"] = theirs[f"{head}.transform.dense.{kind}"]
        ours[f"head_norm.{kind}"] = theirs[f"{head}.transform.LayerNorm.{kind}"]
        for layer in range(BERT.layers):
            block, other = f"blocks.{layer}", f"bert.encoder.layer.{layer}"
            attention = [theirs[f"{other}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            ours[f"{block}.attention.qkv.{kind}"] = fused(*attention)
            ours[f"{block}.attention.output.{kind}"] = theirs[f"{other}.attention.output.dense.{kind}"]
            ours[f"{block}.attention_norm.{kind}"] = theirs[f"{other}.attention.output.LayerNorm.{kind}"]
            ours[f"{block}.feed_forward.expand.{kind}"] = theirs[f"{other}.intermediate.dense.{kind}"]
            ours[f"{block}.feed_forward.contract.{kind}"] = theirs[f"{other}.output.dense.{kind}"]
            ours[f"{block}.feed_forward_norm.{kind}"] = theirs[f"{other}.output.LayerNorm.{kind}"]
    return ours


def spread(module: nn.Module) -> None:
    """Weights of every kind away from their initial zeros and ones, so that a wrong mapping cannot hide."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.2)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(
            gradient, theirs[name], rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_gpt2_agrees() -> None:
    config = transformers.GPT2Config(
        n_layer=GPT2.layers,
        n_embd=GPT2.hidden,
        n_head=HEADS,
        vocab_size=GPT2.vocabulary,
        n_positions=GPT2.context,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    reference = transformers.GPT2LMHeadModel(config).train()
    spread(reference)
    workload = build_gpt2(GPT2)
    module = workload.module.train()
    assert isinstance(module, Gpt2)
    module.load_state_dict(gpt2_weights(reference.state_dict()))

    batch = workload.make_batch(3, torch.Generator().manual_seed(1))
    logits = module(*batch.inputs)
    their_logits = reference(input_ids=batch.inputs[0]).logits
    torch.testing.assert_close(logits, their_logits, rtol=1e-4, atol=1e-4)

    workload.loss(logits, batch).backward()
    nn.functional.cross_entropy(their_logits.flatten(0, 1), batch.targets[0].flatten()).backward()
    assert_same_gradients(gradients(module), gpt2_weights(gradients(reference)))


def test_bert_agrees_and_its_loss_is_that_over_all_positions_with_the_others_ignored() -> None:
    config = transformers.BertConfig(
        num_hidden_layers=BERT.layers,
        hidden_size=BERT.hidden,
        intermediate_size=4 * BERT.hidden,
        num_attention_heads=HEADS,
        vocab_size=BERT.vocabulary,
        max_position_embeddings=BERT.context,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
    )
    reference = transformers.BertForMaskedLM(config).train()
    spread(reference)
    workload = build_bert(BERT)
    module = workload.module.train()
    assert isinstance(module, Bert)
    module.load_state_dict(bert_weights(reference.state_dict()))

    batch = workload.make_batch(3, torch.Generator().manual_seed(1))
    tokens, types, masked = batch.inputs
    labels = torch.full_like(tokens, -100).scatter(1, masked, batch.targets[0])
    theirs = reference(input_ids=tokens, token_type_ids=types, labels=labels)
    logits = module(*batch.inputs)
    at_masked = theirs.logits.gather(1, masked.unsqueeze(2).expand(-1, -1, BERT.vocabulary))
    torch.testing.assert_close(logits, at_masked, rtol=1e-4, atol=1e-4)

    loss = workload.loss(logits, batch)
    torch.testing.assert_close(loss, theirs.loss)
    loss.backward()
    theirs.loss.backward()
    assert_same_gradients(gradients(module), bert_weights(gradients(reference)))


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_padded_vocabulary_changes_neither_the_loss_nor_the_gradients(with_bias: bool) -> None:
    hidden = torch.randn(5, 16, requires_grad=True)
    weight = torch.randn(211, 16, requires_grad=True)
    bias = torch.randn(211, requires_grad=True) if with_bias else None
    inputs = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    targets = torch.tensor([0, 3, 210, 5, 5])
    plain = nn.functional.cross_entropy(nn.functional.linear(hidden, weight, bias), targets)
    logits = padded_logits(hidden, weight, bias, 45)
    padded = nn.functional.cross_entropy(logits, targets)
    assert logits.shape == (5, 256)
    torch.testing.assert_close(padded, plain)
    for ours, theirs in zip(torch.autograd.grad(padded, inputs), torch.autograd.grad(plain, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "vocabulary"), [("gpt2", 211), ("bert", 211)])
def test_the_gpu_agrees_with_the_cpu(name: str, vocabulary: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    workload = build_gpt2(GPT2) if name == "gpt2" else build_bert(BERT)
    batch = workload.make_batch(3, torch.Generator().manual_seed(1))
    device = torch.device("cuda")
    here = workload.module.train()(*batch.inputs)
    there = workload.module.to(device)(*batch.to(device).inputs)
    assert there.shape[-1] == 256
    torch.testing.assert_close(
        workload.loss(there, batch.to(device)).cpu(), workload.loss(here, batch), rtol=1e-4, atol=1e-4
    )
    assert workload.module.eval()(*batch.to(device).inputs).shape[-1] == vocabulary


def test_a_layer_of_bert_leaves_numbers_in_the_format_they_came_in() -> None:
    """Under autocast a norm yields fp32, which would double what goes from layer to layer."""
    layer = BertBlock(BERT.hidden, HEADS)
    x = torch.randn(2, 8, BERT.hidden)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.bfloat16()).dtype is torch.bfloat16
        assert layer(x).dtype is torch.float32

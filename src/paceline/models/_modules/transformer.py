"""GPT-2, BERT and the vision transformer as plain modules, and the layers that transformers share."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALIGNMENT = 64
IMPOSSIBLE = -1e4  # finite in fp16 too
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


class Attention(nn.Module):
    """Multi-head self-attention with one product for queries, keys and values.

    The rows of the fused weight are ordered head by head, each head's query, key and value together. A split of the
    rows over devices at head borders is therefore an attention over fewer heads, and this code runs it unchanged.
    """

    def __init__(self, hidden: int, heads: int, *, causal: bool, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(f"hidden size {hidden} is not a multiple of {heads} heads")
        self.head_size = hidden // heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.output = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        by_head = self.qkv(x).view(batch, length, -1, 3, self.head_size)
        query, key, value = (part.transpose(1, 2) for part in by_head.unbind(3))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal, dropout_p=dropout)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two linear layers, four times as wide in between, with a GELU; GPT-2 takes the tanh form, BERT the exact one."""

    def __init__(self, hidden: int, *, gelu: Literal["tanh", "none"]) -> None:
        super().__init__()
        self.gelu = gelu
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(gelu(self.expand(x), self.gelu))  # type: ignore[no-any-return]


def gelu(x: Tensor, form: Literal["tanh", "none"]) -> Tensor:
    """`F.gelu`; compiled, its tanh form is written as the sigmoid that it is.

    (1 + tanh u) / 2 is the sigmoid of 2u. With the compiler's tanh, an H200 moved memory here at two thirds of its
    pace; the sigmoid is one exponential and a division.
    """
    if form != "tanh" or not torch.compiler.is_dynamo_compiling():
        return F.gelu(x, approximate=form)
    return _SigmoidGelu.apply(x) if torch.is_grad_enabled() else _sigmoid_gelu(x)  # type: ignore[no-untyped-call]


def _sigmoid_gelu(x: Tensor) -> Tensor:
    wide = _in(torch.float32, x)
    return _in(x.dtype, wide * torch.sigmoid(wide * (_LINEAR + _CUBIC * (wide * wide))))


def _in(dtype: torch.dtype, x: Tensor) -> Tensor:
    """`x.to(dtype)`, but no operation where there is nothing to do.

    Compiled by torch 2.11, an autograd function whose result is also a step on the way has a gradient of zero, and
    nothing says so (pytorch/pytorch#180642); a cast to the same format gives such a result.
    """
    return x if x.dtype == dtype else x.to(dtype)


class _SigmoidGelu(torch.autograd.Function):
    """x times the sigmoid of 2u = x (a + b x^2); its gradient is written out, as that takes fewer operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _sigmoid_gelu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        wide = _in(torch.float32, x)
        square = _CUBIC * (wide * wide)
        share = torch.sigmoid(wide * (_LINEAR + square))
        slope = share + share * (1.0 - share) * wide * (_LINEAR + 3.0 * square)
        return _in(x.dtype, _in(torch.float32, gradient) * slope)


def vocabulary_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None = None, *, training: bool) -> Tensor:
    """Logits over the vocabulary; GPUs compute a padded one, as matrix products of odd widths are far slower there.

    In training the padding stays on: cutting it off would copy the gradient of the logits. Its logits are so low that
    their probability is exactly zero, and so the loss and all gradients are those of the vocabulary alone.
    """
    vocabulary = weight.shape[0]
    padding = -vocabulary % ALIGNMENT
    if not padding or not weight.is_cuda:
        return F.linear(hidden, weight, bias)
    logits = padded_logits(hidden, weight, bias, padding)
    return logits if training else logits[..., :vocabulary]


def padded_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Logits with so many impossible tokens after the last one."""
    bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return F.linear(hidden, F.pad(weight, (0, 0, 0, padding)), F.pad(bias, (0, padding), value=IMPOSSIBLE))


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the likeliest token's probability, and which it is; of logits over the vocabulary."""
    scores, tokens = logits.float().max(-1)
    return scores - logits.float().logsumexp(-1), tokens


def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Small normal weights and zero biases, as both families are trained from; meant for `Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=deviation)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=deviation)


EPSILON = 1e-12


class BertBlock(nn.Module):
    """Attention, then the feed-forward layer, each added to its input and normalised after."""

    last_norm = "feed_forward_norm"  # what this layer ends with

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, causal=False)
        self.attention_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.feed_forward = FeedForward(hidden, gelu="none")
        self.feed_forward_norm = nn.LayerNorm(hidden, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        # Autocast makes norms yield fp32: what goes on to the next layer stays in the format that it came in.
        dtype = x.dtype
        x = self.attention_norm(x + self.attention(x)).to(dtype)
        return self.feed_forward_norm(x + self.feed_forward(x)).to(dtype)  # type: ignore[no-any-return]


class Bert(nn.Module):
    """Token numbers and token types [batch, length], masked positions [batch, masked] to logits there.

    Only the masked positions enter the loss, so only they pass the head: [batch, masked, vocabulary]. The loss is that
    of a head over all positions with the others ignored, for a seventh of the head's work.
    """

    def __init__(self, *, layers: int, hidden: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(context, hidden)
        self.type_embedding = nn.Embedding(2, hidden)
        self.embedding_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.blocks = nn.ModuleList(BertBlock(hidden, heads) for _ in range(layers))
        self.head_transform = nn.Linear(hidden, hidden)
        self.head_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.head_bias = nn.Parameter(torch.zeros(vocabulary))
        self.apply(initialise)

    def embed(self, tokens: Tensor, types: Tensor) -> Tensor:
        """What enters the first block."""
        positions = self.position_embedding.weight[: tokens.shape[1]]
        return self.embedding_norm(self.token_embedding(tokens) + self.type_embedding(types) + positions)  # type: ignore[no-any-return]

    def head(self, x: Tensor, masked: Tensor) -> Tensor:
        """The logits at the masked positions from what leaves the last block."""
        x = x.gather(1, masked.unsqueeze(2).expand(-1, -1, x.shape[2]))
        x = self.head_norm(F.gelu(self.head_transform(x)))
        return vocabulary_logits(x, self.token_embedding.weight, self.head_bias, training=self.training)

    def forward(self, tokens: Tensor, types: Tensor, masked: Tensor) -> Tensor:
        x = self.embed(tokens, types)
        for block in self.blocks:
            x = block(x)
        return self.head(x, masked)


def drop_path(branch: Tensor, rate: float) -> Tensor:
    """The branch without a random part of its samples, and what it keeps scaled up.

    The mask is drawn on the device, one number a sample, so that nothing waits for the host.
    """
    drawn = torch.rand(branch.shape[0], 1, 1, device=branch.device)
    return branch * ((drawn >= rate).to(branch.dtype) / (1 - rate))


class PreNormBlock(nn.Module):
    """Attention, then the feed-forward layer, each on a normalised input and added to the residual stream."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        *,
        causal: bool = False,
        gelu: Literal["tanh", "none"] = "tanh",
        epsilon: float = 1e-5,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden, eps=epsilon)
        self.attention = Attention(hidden, heads, causal=causal)
        self.feed_forward_norm = nn.LayerNorm(hidden, eps=epsilon)
        self.feed_forward = FeedForward(hidden, gelu=gelu)
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        x, last = self.without_last_sum(x)
        return x + last

    def without_last_sum(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream, and what is still to be added to it."""
        attention = self.attention(self.attention_norm(x))
        if not (self.training and self.drop_path):
            x = x + attention
            return x, self.feed_forward(self.feed_forward_norm(x))
        x = x + drop_path(attention, self.drop_path)
        return x, drop_path(self.feed_forward(self.feed_forward_norm(x)), self.drop_path)


class Gpt2(nn.Module):
    """Token numbers [batch, length] to logits [batch, length, vocabulary]."""

    def __init__(self, *, layers: int, hidden: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(PreNormBlock(hidden, heads, causal=True) for _ in range(layers))
        self.final_norm = nn.LayerNorm(hidden)
        self.apply(initialise)
        for block in self.blocks:
            assert isinstance(block, PreNormBlock)
            # every block adds to the residual stream twice: keep its variance independent of the depth
            for last in (block.attention.output, block.feed_forward.contract):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * layers))

    def embed(self, tokens: Tensor) -> Tensor:
        """The residual stream that enters the first block."""
        return self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]  # type: ignore[no-any-return]

    def head(self, x: Tensor) -> Tensor:
        """The logits from what leaves the last block."""
        return vocabulary_logits(self.final_norm(x), self.token_embedding.weight, training=self.training)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


VIT_EPSILON = 1e-6
CHANNELS = 3


class Vit(nn.Module):
    """Images [batch, 3, image, image] to logits [batch, classes].

    Blocks skip their branches with a probability that grows linearly from 0 in the first to `drop_path` in the last.
    """

    def __init__(
        self, *, layers: int, hidden: int, heads: int, image: int, patch: int, classes: int, drop_path: float
    ) -> None:
        super().__init__()
        if image % patch:
            raise ValueError(f"an image of {image} pixels does not divide into patches of {patch}")
        self.patch = patch
        # A convolution whose stride is its kernel is a product of the patches, and as such it is faster.
        self.patch_embedding = nn.Linear(CHANNELS * patch**2, hidden)
        self.class_token = nn.Parameter(torch.empty(1, 1, hidden))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, hidden))
        self.blocks = nn.ModuleList(
            PreNormBlock(
                hidden, heads, gelu="none", epsilon=VIT_EPSILON, drop_path=drop_path * layer / max(1, layers - 1)
            )
            for layer in range(layers)
        )
        self.final_norm = nn.LayerNorm(hidden, eps=VIT_EPSILON)
        self.classifier = nn.Linear(hidden, classes)
        self.apply(initialise)
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        batch, _, height, width = images.shape
        rows, columns = height // self.patch, width // self.patch
        split = images.reshape(batch, CHANNELS, rows, self.patch, columns, self.patch)
        # The pixels of every patch in one row: [batch, patches, 3 * patch * patch].
        x = self.patch_embedding(split.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, -1))
        x = torch.cat((self.class_token.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.final_norm(x[:, 0]))  # type: ignore[no-any-return]

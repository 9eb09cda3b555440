"""A generated Llama in the one file that llama.cpp reads: settings, made-up words and weights."""

from __future__ import annotations

import struct
from pathlib import Path

from paceline.benchmarks.serving.servers._language_model import CHAT, SPECIAL, LlamaShape, raw, weights

_VERSION = 3
_ALIGNMENT = 32  # of every tensor
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # types of values
_TENSORS = {"F32": 0, "F16": 1, "BF16": 30}  # types of tensors
_NORMAL, _CONTROL = 1, 3  # kinds of tokens
_WORD = "\u2581"  # what a word begins with
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(path: Path, shape: LlamaShape, *, dtype: str, seed: int) -> None:
    """Write the file; `dtype` is F32, F16 or BF16, of all weights but those of norms."""
    settings = _settings(shape)
    tensors = [(_name(name), weight) for name, weight in weights(shape, seed)]
    infos, offset = b"", 0
    for name, weight in tensors:
        kind = "F32" if weight.ndim == 1 else dtype
        sizes = struct.pack(f"<{weight.ndim}Q", *reversed(weight.shape))
        infos += _text(name) + struct.pack("<I", weight.ndim) + sizes + struct.pack("<IQ", _TENSORS[kind], offset)
        offset += _padded(weight.size * (4 if kind == "F32" else 2))
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(settings)) + b"".join(settings) + infos
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for _, weight in tensors:
            content = raw(weight, "F32" if weight.ndim == 1 else dtype)
            file.write(content.ljust(_padded(len(content)), b"\0"))


def _settings(shape: LlamaShape) -> list[bytes]:
    # Words at blanks, as BERT's tokenizer takes them: the others would want rules for putting letters together.
    words = [*SPECIAL, *(_WORD + word for word in shape.words[len(SPECIAL) :])]
    kinds = [_CONTROL] * len(SPECIAL) + [_NORMAL] * (len(words) - len(SPECIAL))
    whole = {
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": shape.hidden,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.heads,
        "llama.rope.dimension_count": shape.width // shape.heads,
        "llama.vocab_size": shape.vocabulary,
        **{
            f"tokenizer.ggml.{role}_token_id": SPECIAL.index(token)
            for role, token in {
                "unknown": "<unk>",
                "bos": "<s>",
                "eos": "</s>",
                "padding": "<pad>",
                "seperator": "</s>",  # as it is spelt
            }.items()
        },
    }
    texts = {
        "general.architecture": "llama",
        "general.name": "generated",
        "tokenizer.ggml.model": "bert",
        "tokenizer.chat_template": CHAT,
    }
    return [
        *(_pair(key, _STRING, _text(value)) for key, value in texts.items()),
        *(_pair(key, _UINT32, struct.pack("<I", value)) for key, value in whole.items()),
        _pair("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        *(_pair(f"tokenizer.ggml.add_{end}_token", _BOOL, b"\0") for end in ("bos", "eos", "sep")),
        _list("tokenizer.ggml.tokens", _STRING, [_text(word) for word in words]),
        _list("tokenizer.ggml.token_type", _INT32, [struct.pack("<i", kind) for kind in kinds]),
    ]


def _name(name: str) -> str:
    """llama.cpp's name of a weight."""
    name = name.removesuffix(".weight")
    if name in _WHOLE:
        return f"{_WHOLE[name]}.weight"
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_PARTS[part]}.weight"


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _list(key: str, kind: int, values: list[bytes]) -> bytes:
    return _pair(key, _ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT

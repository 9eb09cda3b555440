"""A Llama with random weights and a tokenizer of made-up words, on disk as servers of language models read it.

`generated/llama:layers=2,width=64,heads=4,vocabulary=512,context=2048`: nothing is downloaded, numpy writes it all.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from paceline.core.device import split_target
from paceline.core.errors import InputError
from paceline.core.quantity import Duration
from paceline.devices import kind_of
from paceline.load.kserve import Array
from paceline.load.request import LANGUAGE_PATHS, Endpoint, Wire
from paceline.models.generated import Knobs
from paceline.servers._program import HOST, MODEL, Program, PythonSettings
from paceline.servers.base import Need, ServerSettings

TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # as torch calls a precision


class LanguageModelServer(Program):
    """Serves a folder of the Hugging Face format; a generated model is written as one."""

    wires = tuple(LANGUAGE_PATHS)  # which of them a version speaks is the software's matter
    is_checkable = False  # there is no single right text
    model_noun: ClassVar[str] = "folder"

    model_path: Path  # once it is prepared

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        super().check(settings, need)
        if need.precision not in TORCH_NAMES:
            message = f"precision = '{need.precision}': {cls.name} serves one of {', '.join(TORCH_NAMES)}"
            raise InputError("precision-not-served", message, key="precision", value=need.precision)
        if need.model.startswith(PREFIX):
            parse(need.model)
            return
        if not need.allow_import:
            message = f"model '{need.model}': only a case that was started on this machine may name a {cls.model_noun}"
            raise InputError("not-from-network", message, key="model", value=need.model)
        cls.check_file(need.model)

    @classmethod
    def check_file(cls, model: str) -> None:
        """Refuse a model that is missing, or not in this format."""
        if not (Path(model) / "config.json").is_file():
            message = (
                f"model '{model}': {cls.name} serves a folder with a config.json, weights and a tokenizer, "
                f"or {PREFIX}:layers=2,width=64"
            )
            raise InputError("not-a-model-folder", message, key="model", value=model)

    def write(self, shape: LlamaShape) -> Path:
        """A generated model as the server reads it."""
        path = self.folder / "model"
        write(path, shape, precision=self.need.precision, seed=self.need.seed)
        return path

    def prepare(self) -> None:
        super().prepare()
        if self.need.model.startswith(PREFIX):
            self.say(f"writing {self.need.model}")
            self.model_path = self.write(parse(self.need.model))
        else:
            self.model_path = Path(self.need.model).absolute()

    @property
    def served_name(self) -> str:
        """What the server calls its model."""
        return MODEL

    @property
    def prompt_words(self) -> tuple[str, ...]:
        is_made_up = self.need.model.startswith(PREFIX)
        return tuple(parse(self.need.model).words[len(SPECIAL) :]) if is_made_up else ()

    def endpoint(self, wire: Wire) -> Endpoint:
        return Endpoint(wire=wire, host=HOST, port=self.port, path=LANGUAGE_PATHS[wire], model=self.served_name)

    def _environment(self) -> dict[str, str]:
        """The model is here: nothing is to be looked up elsewhere, or reported to anybody."""
        offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")
        return super()._environment() | dict.fromkeys(offline, "1")

    def _facts(self) -> dict[str, Any]:
        return {"engine": self.name, "workers": 1, "precision": self.need.precision}


class GpuSettings(PythonSettings):
    """What decides about a server's memory and batches on a GPU."""

    ready_timeout: Duration = Field(default=600.0, gt=0)  # it compiles and captures graphs first
    max_batch: int | None = Field(default=None, ge=1)
    """Requests that are run together, at most; its own choice unless set"""
    prefix_caching: bool = False
    """Reuse what earlier requests with the same beginning have computed"""


class GpuLanguageModelServer(LanguageModelServer):
    """Serves one model on one GPU, with continuous batching."""

    device_kind = "cuda"

    settings: GpuSettings

    def _environment(self) -> dict[str, str]:
        _, index = split_target(self.need.device)
        return super()._environment() | (kind_of(self.need.device).showing(index) if index else {})

    def _facts(self) -> dict[str, Any]:
        settings = self.settings
        return super()._facts() | {"max_batch": settings.max_batch, "prefix_caching": settings.prefix_caching}


PREFIX = "generated/llama"
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}  # as safetensors and GGUF call a precision

_VERSION = 3
_ALIGNMENT = 32  # of every tensor
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # types of values
_TENSORS = {"F32": 0, "F16": 1, "BF16": 30}  # types of tensors
_NORMAL, _CONTROL = 1, 3  # kinds of tokens
_MEAN = 1  # how the vectors of a text's tokens become one
_WORD = "\u2581"  # what a word begins with
_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
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


@dataclass(frozen=True, kw_only=True)
class LlamaShape(Knobs):
    """The knobs of a generated Llama."""

    family = "llama"
    limits = {"layers": 256, "width": 16_384, "heads": 256, "vocabulary": 262_144, "context": 1_048_576}

    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 512
    context: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            message = f"{PREFIX}: width={self.width} is not a multiple of twice heads={self.heads}"
            raise InputError("not-a-multiple", message, value=self.width)
        if self.vocabulary <= len(SPECIAL):
            message = f"{PREFIX}: vocabulary={self.vocabulary} is too small; {len(SPECIAL)} tokens are special"
            raise InputError("too-small", message, value=self.vocabulary)

    @property
    def hidden(self) -> int:
        """Width of the layers in between."""
        return 4 * self.width

    @property
    def words(self) -> list[str]:
        """Every token, the special ones first."""
        return made_up_words(self.vocabulary)


def parse(name: str) -> LlamaShape:
    """The shape that a name asks for."""
    if name.partition(":")[0] != PREFIX:
        message = f"model '{name}': a generated language model is called {PREFIX}:layers=2,width=64"
        raise InputError("unknown-model", message, key="model", value=name)
    try:
        return LlamaShape.read(name)
    except InputError as error:
        raise error.within("", key="model") from None


def write(folder: Path, shape: LlamaShape, *, precision: str, seed: int) -> None:
    """Write configuration, tokenizer and weights into a folder as the Hugging Face libraries read it."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = DTYPES[precision]
    # Without an end of text, answers have exactly the requested number of tokens.
    ids = {"bos_token_id": SPECIAL.index("<s>"), "eos_token_id": None, "pad_token_id": SPECIAL.index("<pad>")}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.width // shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": TORCH_NAMES[precision],
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocabulary = {word: index for index, word in enumerate(shape.words)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token} | flags for index, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIAL[0]},
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": shape.context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT,
    }
    for name, content in {
        "config.json": config | ids,
        "generation_config.json": ids | {"do_sample": False, "max_length": shape.context},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    # Eight bytes of length, a JSON header with name, type, shape and offsets of each tensor, then the tensors.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, size in _sizes(shape):
        count = int(np.prod(size)) * (4 if dtype == "F32" else 2)
        header[name] = {"dtype": dtype, "shape": list(size), "data_offsets": [offset, offset + count]}
        offset += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, weight in weights(shape, seed):
            file.write(raw(weight, dtype))


def weights(shape: LlamaShape, seed: int) -> Iterator[tuple[str, Array]]:
    """Every weight by name, in fp32; the same for the same seed."""
    generator = np.random.default_rng(seed)
    for name, size in _sizes(shape):
        if len(size) == 1:
            yield name, np.ones(size, np.float32)
            continue
        weight = generator.standard_normal(size, np.float32) / np.float32(np.sqrt(size[1]))
        if name == "lm_head.weight":
            weight[: len(SPECIAL)] = 0  # so that the likeliest word is hardly ever a special token
        yield name, weight


def _sizes(shape: LlamaShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, hidden = shape.width, shape.hidden
    yield "model.embed_tokens.weight", (shape.vocabulary, width)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (width,)
        for part in ("q", "k", "v", "o"):
            yield f"{at}.self_attn.{part}_proj.weight", (width, width)
        yield f"{at}.post_attention_layernorm.weight", (width,)
        yield f"{at}.mlp.gate_proj.weight", (hidden, width)
        yield f"{at}.mlp.up_proj.weight", (hidden, width)
        yield f"{at}.mlp.down_proj.weight", (width, hidden)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (shape.vocabulary, width)


def raw(weight: Array, dtype: str) -> bytes:
    """A weight as it is stored."""
    if dtype == "BF16":  # the upper half of an fp32, rounded to nearest
        bits = weight.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return weight.astype("<f4" if dtype == "F32" else "<f2").tobytes()


def made_up_words(vocabulary: int) -> list[str]:
    """A word for every token, the special ones first."""
    return [*SPECIAL, *(_word(index) for index in range(vocabulary - len(SPECIAL)))]


def _word(index: int) -> str:
    """A made-up word of two syllables or more, one for each number."""
    word = ""
    while index or len(word) < 4:
        index, syllable = divmod(index, len(_SYLLABLES))
        word += _SYLLABLES[syllable]
    return word


def write_gguf(path: Path, shape: LlamaShape, *, dtype: str, seed: int) -> None:
    """Write the file; `dtype` is F32, F16 or BF16, of all weights but those of norms."""
    settings = _settings(shape)
    tensors = [(_gguf_name(name), weight) for name, weight in weights(shape, seed)]
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
        "llama.pooling_type": _MEAN,
    }
    # "seperator" is how the format spells it.
    roles = {"unknown": "<unk>", "bos": "<s>", "eos": "</s>", "padding": "<pad>", "seperator": "</s>"}
    whole |= {f"tokenizer.ggml.{role}_token_id": SPECIAL.index(token) for role, token in roles.items()}
    texts = {"general.architecture": "llama", "general.name": "generated"}
    texts |= {"tokenizer.ggml.model": "bert", "tokenizer.chat_template": CHAT}
    return [
        *(_pair(key, _STRING, _text(value)) for key, value in texts.items()),
        *(_pair(key, _UINT32, struct.pack("<I", value)) for key, value in whole.items()),
        _pair("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        *(_pair(f"tokenizer.ggml.add_{end}_token", _BOOL, b"\0") for end in ("bos", "eos", "sep")),
        _list("tokenizer.ggml.tokens", _STRING, [_text(word) for word in words]),
        _list("tokenizer.ggml.token_type", _INT32, [struct.pack("<i", kind) for kind in kinds]),
    ]


def _gguf_name(name: str) -> str:
    """llama.cpp's name of a weight."""
    name = name.removesuffix(".weight")
    if name in _GGUF_NAMES:
        return f"{_GGUF_NAMES[name]}.weight"
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _list(key: str, kind: int, values: list[bytes]) -> bytes:
    return _pair(key, _ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT

"""The generated Llama: read and run by transformers, the same for the same seed, answers of the asked length."""

from __future__ import annotations

import importlib
import struct
from pathlib import Path

import numpy as np
import pytest

from paceline.load.kserve import Array
from paceline.servers import _language_model
from paceline.servers._language_model import LlamaShape, parse, write, write_gguf
from support.refused import refused

SHAPE = LlamaShape(layers=2, width=32, heads=4, vocabulary=96, context=64)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    # A torchvision that cannot load its operators would also break every model of transformers.
    importlib.import_module("paceline.models._modules.torchvision_import")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_name_is_a_grammar() -> None:
    assert parse("generated/llama") == LlamaShape()
    assert parse("generated/llama:width=32,layers=3") == LlamaShape(layers=3, width=32)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("generated/gpt", "unknown-model"),
        ("generated/llama:layer=2", "unknown-knob"),
        ("generated/llama:layers=x", "not-a-whole-number"),
        ("generated/llama:layers=0", "knob-out-of-range"),
        ("generated/llama:layers=999999999", "knob-out-of-range"),
        ("generated/llama:width=63", "not-a-multiple"),
        ("generated/llama:vocabulary=4", "too-small"),
    ],
)
def test_a_name_that_is_wrong_is_refused(name: str, code: str) -> None:
    with refused(code, key="model"):
        parse(name)


def test_a_wrong_knob_is_refused_with_the_nearest() -> None:
    with refused("unknown-knob", suggestion="layers"):
        parse("generated/llama:layer=2")


def test_every_word_is_one_token_of_its_own() -> None:
    words = LlamaShape(vocabulary=20_000).words
    assert len(set(words)) == len(words) == 20_000
    assert not any(" " in word for word in words)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_transformers_reads_and_runs_it(tmp_path: Path, precision: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write(tmp_path, SHAPE, precision=precision, seed=7)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert model.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    stored = dict(_language_model.weights(SHAPE, 7))
    assert {name for name, _ in model.named_parameters()} == set(stored)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, torch.from_numpy(stored[name]).to(model.dtype), rtol=0, atol=0)
    inputs = tokenizer("baba beba unheard", return_tensors="pt")
    assert inputs["input_ids"].shape == (1, 3)
    answer = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    assert answer.shape == (1, 23)
    text = tokenizer.decode(answer[0, 3:], skip_special_tokens=True)
    assert len(text.split()) == 20


def test_the_chat_template_holds_what_was_said(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write(tmp_path, SHAPE, precision="fp32", seed=7)
    said = [{"role": "user", "content": "baba beba"}]
    found = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(said, tokenize=False)
    assert found.split() == ["baba", "beba"]


def test_the_seed_decides(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(tmp_path / name, SHAPE, precision="fp32", seed=seed)
    first, again, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert first == again
    assert first != other


def test_weights_do_not_depend_on_when_they_are_asked_for() -> None:
    first = dict(_language_model.weights(SHAPE, 3))
    again = dict(_language_model.weights(SHAPE, 3))
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_the_file_for_llama_cpp_has_every_weight_where_it_says(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, SHAPE, dtype=dtype, seed=7)
    content = path.read_bytes()
    magic, version, tensors, _ = struct.unpack_from("<4sIQQ", content)
    stored = dict(_language_model.weights(SHAPE, 7))
    assert (magic, version, tensors) == (b"GGUF", 3, len(stored))
    for name, weight in (("token_embd", "model.embed_tokens"), ("blk.1.ffn_down", "model.layers.1.mlp.down_proj")):
        array = stored[f"{weight}.weight"]
        place = content.index(f"{name}.weight".encode()) + len(f"{name}.weight")
        axes, inner, outer, kind, offset = struct.unpack_from("<IQQIQ", content, place)
        assert (axes, (outer, inner), kind) == (2, array.shape, {"F32": 0, "F16": 1}[dtype])
        numbers = np.dtype({"F32": "<f4", "F16": "<f2"}[dtype])
        begin = len(content) - _data_size(stored, numbers.itemsize)
        assert begin % 32 == offset % 32 == 0
        found = np.frombuffer(content, numbers, array.size, begin + offset).reshape(array.shape)
        np.testing.assert_array_equal(found, array.astype(numbers))


def _data_size(stored: dict[str, Array], item: int) -> int:
    sizes = [array.size * (4 if array.ndim == 1 else item) for array in stored.values()]
    return sum(size + -size % 32 for size in sizes)

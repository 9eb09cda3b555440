"""Making text: a cache changes no token, every token is fed to the next step, and what is counted."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from paceline.benchmarks.inference import _generator
from paceline.benchmarks.inference._generator import Conversation, Generator, narrow_weights, split_attend, stored_bytes
from paceline.benchmarks.inference.generate import Generate, GenerateParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.record import At, Record
from paceline.devices.cpu import CpuDevice
from paceline.measure import memory
from paceline.measure.memory import Peak
from paceline.models import MODELS
from paceline.models._modules.decoder import LayerCache, attend
from support.records import record
from support.refused import refused

SHORT = {"model": "llama3-8b", "scale": "tiny", "steps": 2, "warm_up": 0.001, "new_tokens": 4}


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def generator(model: str = "llama3-8b", precision: str = "fp32", weights: Any = "same") -> Generator:
    return Generator(MODELS.registry().get(model), "tiny", precision, weights, CpuDevice(), seed=1)


def conversation(batch: int = 2, context: int = 12, new_tokens: int = 4, **more: Any) -> Conversation:
    split = more.pop("split", False)
    return Conversation(generator(**more), batch, context, new_tokens, compiled=False, split=split)


def case_of(**parameters: Any) -> Case:
    return Case(index=0, benchmark="generate", parameters=parameters, title="", target="cpu")


def measured(**parameters: Any) -> Record:
    given = SHORT | parameters
    case = case_of(**given)
    result = Generate().measure(GenerateParameters(**given), Context(case=case))
    return record(case, result.measurements, facts=result.facts)


def text_with_a_cache(made: Conversation, tokens: int) -> list[list[int]]:
    made.prefill()
    text = [made.token.flatten().tolist()]
    for _ in range(tokens - 1):
        made.step()
        text.append(made.token.flatten().tolist())
    return text


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("model", ["llama3-8b", "llama2-7b", "llama3.2-1b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b"])
def test_tokens_with_a_cache_are_those_of_whole_passes_without_one(model: str, split: bool) -> None:
    made = conversation(model=model, split=split, new_tokens=4)
    text, expected = made.prompt, []
    for _ in range(4):
        likeliest = made._generator.module(text)[:, -1].argmax(-1, keepdim=True)
        expected.append(likeliest.flatten().tolist())
        text = torch.cat((text, likeliest), 1)
    assert text_with_a_cache(made, 4) == expected
    assert made.check() < 1e-4


def test_layers_that_are_alike_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, forms = generator(), []

    def backend(graph: Any, _inputs: Any) -> Any:
        forms.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    made.module.blocks.extend([copy.deepcopy(made.module.blocks[0]) for _ in range(12)])
    made.module.shape = made.shape = replace(made.shape, layers=len(made.module.blocks))
    compiled = Conversation(made, 2, 12, 4, compiled=True, split=False)
    compiled.prefill()
    compiled.step()
    compiled.step()
    assert len(forms) == 4  # a block and the head, of a prompt and of one token


def test_after_the_new_tokens_decoding_starts_again_at_the_end_of_the_prompt() -> None:
    made = conversation(context=12, new_tokens=3)
    made.prefill()
    positions = []
    for _ in range(7):
        positions.append(int(made.position))
        made.step()
    assert positions == [12, 13, 14, 12, 13, 14, 12]


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("length", [64, 96, 50])
def test_split_attention_is_attention(groups: int, length: int) -> None:
    drawn = torch.Generator().manual_seed(3)
    query = torch.randn(2, 2 * groups, 1, 16, generator=drawn)
    key, value = torch.randn(2, 2, 2, length, 16, generator=drawn)
    mask = torch.arange(length)[None] <= 40
    assert torch.allclose(split_attend(query, key, value, mask=mask), attend(query, key, value, mask=mask), atol=1e-5)


def test_the_next_conversation_of_a_model_attends_as_it_was_asked_to() -> None:
    made = generator()
    for split, expected in ((True, split_attend), (False, attend)):
        Conversation(made, 1, 8, 4, compiled=False, split=split)
        assert {block.attention.attend for block in made.module.blocks} == {expected}


def test_split_attention_leaves_a_prompt_to_the_fused_kernel() -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 8)
    expected = attend(query, key, value, causal=True)
    assert torch.equal(split_attend(query, key, value, causal=True), expected)


def test_a_cache_that_loses_tokens_is_silent_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    made = conversation()
    genuine = LayerCache.update

    def forgetting(self: LayerCache, key: Any, value: Any, positions: Any) -> Any:
        genuine(self, key, value, positions)
        self.values[:, :, 3:] = 5.0
        return self.keys, self.values

    monkeypatch.setattr(LayerCache, "update", forgetting)
    with pytest.raises(SilentCorruption, match="after 3 steps with a cache, the logits differ"):
        made.check()


def test_a_conversation_longer_than_the_model_takes_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="context = 62 and new_tokens = 4: the model takes at most 64"):
        conversation(context=62)


def test_a_prompt_counts_the_head_once_and_a_step_reads_all_that_is_there() -> None:
    made = generator()
    shape = made.shape
    head = 2 * shape.hidden * shape.vocabulary
    one = replace(shape, sequence=1).forward_flops
    assert made.prefill_flops(3, 1) == 3 * one
    assert made.prefill_flops(1, 8) == replace(shape, sequence=8).forward_flops - 7 * head
    assert made.step_flops(2, 8) == 2 * replace(shape, sequence=8).forward_flops / 8


def test_an_embedding_is_read_only_where_it_is_the_head_too() -> None:
    apart, tied = generator("llama3-8b"), generator("llama3.2-1b")
    assert apart.read_bytes == 4 * (apart.parameter_count - 1024 * 128)
    assert tied.read_bytes == 4 * tied.parameter_count


@pytest.mark.filterwarnings("ignore")
def test_narrow_weights_take_less_memory_and_the_record_says_how_far_they_are_off() -> None:
    pytest.importorskip("torchao", reason="needs it: pip install '.[fp8]'")
    wide, narrow = generator(), generator(weights="int8")
    layer = narrow.module.blocks[0].feed_forward.expand
    rows, columns = layer.weight.shape
    assert rows * columns < stored_bytes(layer.weight) <= rows * columns + 8 * rows
    assert narrow.read_bytes < 0.35 * wide.read_bytes
    assert narrow.weights_apart is not None
    assert 0 < float(narrow.weights_apart.partition("%")[0]) < 10
    assert Conversation(narrow, 1, 8, 4, compiled=False, split=False).check() < 0.01


@pytest.mark.parametrize("weights", ["fp8", "int4"])
def test_weights_that_a_cpu_has_no_products_for_are_unsupported(weights: Any) -> None:
    with pytest.raises(Unsupported, match=f"{weights} has kernels for GPUs alone: use int8 on a CPU"):
        narrow_weights(torch.nn.Linear(16, 16), weights, CpuDevice())


def test_a_model_without_a_cache_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="gpt2-small has no cache"):
        generator("gpt2-small")


def test_each_context_is_a_point_and_the_longest_speaks_for_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "peak_memory_bandwidth", lambda _: Peak(1e12, "a sheet"))
    made = measured(context=[16, 8], batch_size=3)
    for tokens in (8, 16):
        at: At = {"context": tokens}
        ttft, tpot = made.measurement("ttft", at=at), made.measurement("time_per_output_token", at=at)
        rate, read = made.measurement("output_throughput", at=at), made.measurement("prefill_throughput", at=at)
        cache = made.measurement("kv_memory", at=at)
        assert ttft and tpot and rate and read and cache
        assert rate.value == pytest.approx(3 / tpot.summary.mean)
        assert read.value == pytest.approx(3 * tokens / ttft.summary.mean)
    whole, share = made.measurement("output_throughput"), made.measurement("memory_share")
    last, bandwidth = made.measurement("output_throughput", at={"context": 16}), made.measurement("bandwidth")
    cache = made.measurement("kv_memory")
    assert whole and share and last and bandwidth and cache
    assert whole.value == last.value
    assert share.value == pytest.approx(100 * bandwidth.value / 1e12)
    assert cache.value == 2 * 2 * 3 * 2 * 64 * 32 * 4  # keys and values, layers, batch, heads, places, size, bytes
    assert made.facts["memory_bandwidth_source"] == "a sheet"


def test_a_record_says_what_a_step_reads_and_computes() -> None:
    made = measured(context=8)
    assert made.work is not None
    weights = made.measurement("weight_memory")
    assert weights is not None
    assert made.work.bytes == weights.value + 2 * 2 * 2 * (8 + 4 / 2) * 32 * 4
    assert (made.primary, made.subject.batch, made.subject.compiled) == ("output_throughput", 1, False)
    assert made.measurement("memory_share") is None
    assert "no" not in made.facts["checked"].split()
    share = made.measurement("product_share")
    assert share is not None and "in the precision of the case" in share.metric.description
    assert " in fp32 by " in made.facts["product_source"]  # whatever the weights are held in


def test_which_experts_a_step_reads_is_not_guessed() -> None:
    made = measured(model="mixtral-8x7b", context=8)
    assert made.work is None
    assert made.measurement("bandwidth") is None
    assert "depends on the tokens" in made.facts["counted"]


def test_a_graph_that_the_device_does_not_have_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="graph = on replays CUDA graphs"):
        measured(graph="on")


@pytest.mark.parametrize(
    ("given", "code", "key"),
    [
        ({"model": "llama3-8b", "context": [8192]}, "out-of-range", "context"),
        ({"model": "llama3-9b"}, "unknown-model", "model"),
        ({"model": "gpt2-small"}, "no-cache", "model"),
    ],
)
def test_prompts_that_are_too_long_and_models_that_make_no_text_are_refused(given: Any, code: str, key: str) -> None:
    with refused(code, key=key):
        Generate.check(GenerateParameters(**given), case_of())


def test_the_limit_is_that_of_logits_that_have_nothing_in_common() -> None:
    one, other = torch.randn(2, 1, 4096, generator=torch.Generator().manual_seed(5))
    assert _generator._apart(one, one) == 0.0
    assert _generator._apart(one, other) > 2 * _generator.MOST_APART_16


@pytest.mark.long
def test_compiled_steps_compute_what_uncompiled_ones_do() -> None:
    made = measured(compile="on", context=8)
    assert made.facts["compiled"] is True
    assert float(made.facts["checked"].partition("%")[0]) < 0.1

"""What a parallel training refuses, with the arithmetic shown, and what it derives from its layout."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline.benchmarks.parallel.parallel import Parallel, ParallelParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import InputError, Unsupported
from paceline.core.suite import Here, Suite, expand
from support.refused import refused

WORD = "gpt2/nl24_fp16_2x2x4_ac_mb32_gb1024_2n8g"


def cases(nodes: int = 1, **parameters: Any) -> list[Case]:
    suite = Suite(name="suite", cases=[{"benchmark": "parallel", **parameters}])
    return expand(suite, lambda _name: Parallel, Here(nodes=nodes))


def test_a_word_calls_for_its_ranks_and_is_the_title() -> None:
    (case,) = cases(nodes=2, case=WORD)
    assert case.ranks == 16
    assert case.title == f"{WORD} x16"


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_word_is_for_its_nodes_alone(nodes: int) -> None:
    with refused("wrong-number-of-nodes", case=1, value=2):
        cases(nodes=nodes, case=WORD)


def test_plain_parameters_go_over_any_nodes() -> None:
    (case,) = cases(nodes=2, data=16)
    assert case.ranks == 16


def test_plain_parameters_make_the_same_layout() -> None:
    word = ParallelParameters(case="bert/nl48_bf16_1x1x8_ac_mb16_gb256_1n8g")
    plain = ParallelParameters(
        model="bert",
        layers=48,
        precision="bf16",
        pipeline=8,
        checkpointing=True,
        micro_batch=16,
        global_batch=256,
    )
    assert plain.layout == word.layout
    assert Parallel.title(plain) == str(word.layout)


def test_a_title_tells_what_the_word_does_not() -> None:
    (case,) = cases(case="gpt2/nl4_fp32_1x1x2_mb1_gb8_1n2g", hidden=64, heads=4, schedule="gpipe", budget="3s")
    assert case.title == "gpt2/nl4_fp32_1x1x2_mb1_gb8_1n2g hidden=64 heads=4 schedule=gpipe x2"


def test_one_rank_is_a_layout_too() -> None:
    (case,) = cases()
    assert case.ranks == 1
    assert case.title == "gpt2/nl24_fp16_1x1x1_mb4_gb4_1n1g"


@pytest.mark.parametrize(
    ("parameters", "code", "key"),
    [
        ({"case": "gpt2/nl24_fp16_8x1x1_mb4_gb32_1n4g"}, "invalid-value", "case"),
        ({"case": "gpt2/nl24"}, "invalid-value", "case"),
        ({"case": WORD, "layers": 12, "data": 2}, "conflicting-keys", "layers"),
        ({"case": "gpt2/nl2_fp16_1x1x1_mb4_gb4_1n1g", "checkpointing": True}, "conflicting-keys", "checkpointing"),
        ({"data": 2, "micro_batch": 4, "global_batch": 12}, "layout-batch", "global_batch"),
        ({"hidden": 100, "heads": 16}, "not-a-multiple", "hidden"),
        ({"tensor": 3}, "not-divisible", "heads"),
        ({"precision": "fp16", "fp8_least": 32}, "key-does-not-apply", "fp8_least"),
        ({"sequence_parallel": True}, "key-does-not-apply", "sequence_parallel"),
        ({"tensor": 2, "sequence_parallel": True, "sequence": 33}, "not-divisible", "sequence"),
        ({"schedule": "gpipe"}, "key-does-not-apply", "schedule"),
        ({"pipeline": 2, "schedule": "1f1b", "mode": "inference"}, "key-does-not-apply", "schedule"),
        ({"checkpointing": True, "mode": "inference"}, "key-does-not-apply", "checkpointing"),
        ({"pipeline": 4, "layers": 3}, "layout-stages", "pipeline"),
        ({"pipeline": 4, "layers": 6, "schedule": "interleaved"}, "too-many-stages", "schedule"),
        ({"pipeline": 4, "micro_batch": 2, "global_batch": 4}, "too-few-micro-batches", "schedule"),
        (
            {"pipeline": 2, "micro_batch": 1, "global_batch": 5, "schedule": "zero-bubble"},
            "unequal-rounds",
            "schedule",
        ),
        ({"tensor": 2, "ranks": 4}, "wrong-number-of-ranks", "ranks"),
        ({"schedule": "zero-buble"}, "invalid-value", "schedule"),
        ({"key_heads": 2}, "key-does-not-apply", "key_heads"),
        ({"model": "llama", "experts": 4}, "key-does-not-apply", "experts"),
        ({"model": "llama", "key_heads": 3}, "not-a-multiple", "key_heads"),
        ({"model": "llama", "hidden": 48, "heads": 16}, "not-a-multiple", "heads"),
        ({"model": "llama", "tensor": 8}, "not-divisible", "key_heads"),
        ({"model": "llama", "tensor": 2, "feed_forward": 48}, "not-divisible", "feed_forward"),
        ({"model": "mixtral", "experts": 4, "experts_used": 5}, "too-large", "experts_used"),
        ({"model": "mixtral", "data": 3, "expert": 3}, "not-divisible", "expert"),
        ({"model": "mixtral", "data": 3, "expert": 2}, "layout-experts", "expert"),
        ({"model": "llama", "data": 2, "expert": 2}, "key-does-not-apply", "expert"),
        ({"model": "bert", "context": 2}, "key-does-not-apply", "context"),
        ({"model": "llama", "context": 3}, "not-divisible", "sequence"),
    ],
)
def test_contradictions_are_refused(parameters: dict[str, Any], code: str, key: str) -> None:
    with refused(code, key=key, case=1):
        cases(**parameters)


@pytest.mark.parametrize(
    ("parameters", "arithmetic"),
    [
        ({"case": "gpt2/nl24_fp16_8x1x1_mb4_gb32_1n4g"}, "8x1x1 = 8 ranks against 1n4g = 4 GPUs"),
        ({"data": 2, "micro_batch": 4, "global_batch": 12}, "gb 12 is not a multiple of mb x d = 4 x 2 = 8"),
        ({"pipeline": 4, "layers": 6, "schedule": "interleaved"}, "4 x 2 = 8 stages, but there are only 6 layers"),
        ({"pipeline": 4, "micro_batch": 2, "global_batch": 4}, "4 / (2 x 1) = 2: use a larger global batch"),
        (
            {"pipeline": 2, "micro_batch": 1, "global_batch": 5, "schedule": "zero-bubble"},
            "5 // 2 = 2 equal rounds, but gb / (mb x d) = 5 / (1 x 1) = 5 is not a multiple of 2",
        ),
    ],
)
def test_contradictions_of_numbers_are_shown_with_the_arithmetic(parameters: dict[str, Any], arithmetic: str) -> None:
    with pytest.raises(InputError, match=re.escape(arithmetic)):
        cases(**parameters)


@pytest.mark.parametrize(
    ("model", "tensor", "padded"),
    [("gpt2", 1, 50304), ("bert", 1, 21248), ("gpt2", 2, 50432), ("gpt2", 8, 51200), ("bert", 4, 21504)],
)
def test_the_vocabulary_is_padded_so_that_every_rank_has_a_multiple_of_128(
    model: Any, tensor: int, padded: int
) -> None:
    found = ParallelParameters(model=model, tensor=tensor).padded_vocabulary
    assert found == padded
    assert found % (128 * tensor) == 0


def test_sequences_are_as_long_as_the_published_ones() -> None:
    assert ParallelParameters(model="gpt2").tokens == 1024
    assert ParallelParameters(model="bert").tokens == 512
    assert ParallelParameters(model="bert", sequence=64).tokens == 64
    assert ParallelParameters(model="llama").tokens == 2048


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"precision": "fp8", "tensor": 2}, "use tensor = 1, or bf16"),
        ({"precision": "fp32", "pipeline": 2, "schedule": "zero-bubble", "compile": "on"}, "--compile off"),
    ],
)
def test_what_cannot_be_done_says_what_to_use(parameters: dict[str, Any], words: str) -> None:
    (case,) = cases(**parameters)
    with pytest.raises(Unsupported, match=words):
        Parallel().measure(ParallelParameters(**parameters), Context(case=case))


@pytest.mark.parametrize(
    "parameters",
    [
        {"case": "gpt2/nl2_fp16_1x1x1_ac_mb4_gb4_1n1g", "checkpointing": True},
        {"checkpointing": True},
        {"heads": 16, "tensor": 16},
        {"precision": "fp8", "fp8_least": 32, "fp8_recipe": "rowwise"},
        {"tensor": 2, "sequence_parallel": True, "sequence": 32},
        {"tensor": 3, "heads": 3, "hidden": 96, "sequence": 32},  # the sequence stays whole
        {"model": "bert", "vocabulary": 1},
        {"pipeline": 2, "layers": 2},
        {"model": "llama", "context": 2, "tensor": 4},
        {"model": "llama", "hidden": 96, "heads": 3, "feed_forward": 40},  # three heads of keys
        {"model": "mixtral", "data": 4, "expert": 2, "context": 2},
        {"case": "mixtral/nl8_bf16_2x1x1_cp2_ep2_mb1_gb8_1n4g", "experts": 6, "experts_used": 6},
        {"pipeline": 2, "layers": 4, "schedule": "interleaved"},
        {"pipeline": 4, "micro_batch": 2, "global_batch": 8},
        {"pipeline": 4, "micro_batch": 2, "global_batch": 4, "schedule": "gpipe"},
        {"pipeline": 4, "micro_batch": 1, "global_batch": 3, "schedule": "interleaved"},  # one round
        {"pipeline": 2, "micro_batch": 1, "global_batch": 5, "schedule": "looped-bfs"},
        {"pipeline": 2, "micro_batch": 1, "global_batch": 6, "schedule": "zero-bubble"},
    ],
)
def test_what_goes_together_is_taken(parameters: dict[str, Any]) -> None:
    assert len(cases(**parameters)) == 1


def test_a_schedule_that_fills_its_stages_wants_as_many_micro_batches() -> None:
    with refused("too-few-micro-batches", key="schedule", case=1):
        cases(pipeline=4, micro_batch=1, global_batch=3, schedule="1f1b")


@pytest.mark.parametrize("name", ["fp8_recipe", "fp8_least"])
def test_what_is_for_fp8_is_refused_elsewhere(name: str) -> None:
    with refused("key-does-not-apply", key=name, case=1):
        cases(precision="bf16", **{name: {"fp8_recipe": "rowwise", "fp8_least": 17}[name]})


@pytest.mark.parametrize("key", ["model", "layers", "precision", "data", "tensor", "pipeline", "micro_batch"])
def test_a_word_is_not_contradicted_even_by_what_it_says(key: str) -> None:
    layout = ParallelParameters(case=WORD).layout
    with refused("conflicting-keys", key=key, case=1):
        cases(nodes=2, case=WORD, **{key: getattr(layout, key)})


def test_a_contradiction_within_a_word_is_one_of_the_word() -> None:
    with refused("not-divisible", key="heads", case=1):
        cases(case="gpt2/nl24_fp16_1x2x1_mb4_gb4_1n2g", heads=1)


@pytest.mark.parametrize(
    ("parameters", "batches"),
    [
        ({}, (4, 4)),
        ({"data": 3}, (4, 12)),
        ({"pipeline": 2}, (4, 16)),
        ({"pipeline": 3, "data": 2, "micro_batch": 5}, (5, 60)),
        ({"global_batch": 8}, (4, 8)),
    ],
)
def test_a_batch_that_is_not_given_is_one_micro_batch_or_two_for_each_pipeline_rank(
    parameters: dict[str, Any], batches: tuple[int, int]
) -> None:
    layout = ParallelParameters(**parameters).layout
    assert (layout.micro_batch, layout.global_batch) == batches
    assert (layout.nodes, layout.gpus) == (1, layout.data * layout.tensor * layout.pipeline)
    assert (layout.model, layout.layers, layout.precision) == ("gpt2", 24, "fp16")


@pytest.mark.parametrize(
    ("parameters", "name", "stages"),
    [
        ({"schedule": "gpipe"}, "", 1),
        ({"pipeline": 2}, "1f1b", 2),
        ({"pipeline": 2, "mode": "inference"}, "gpipe", 2),
        ({"pipeline": 2, "schedule": "interleaved"}, "interleaved", 4),
        ({"pipeline": 3, "schedule": "looped-bfs"}, "looped-bfs", 6),
    ],
)
def test_a_schedule_is_that_of_a_pipeline(parameters: dict[str, Any], name: str, stages: int) -> None:
    chosen = ParallelParameters(**parameters)
    assert (chosen.schedule_name, chosen.stages) == (name, stages)

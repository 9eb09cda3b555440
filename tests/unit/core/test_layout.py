"""The word for a layout: read and printed back the same, and refused with the arithmetic when it contradicts itself."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.published import published_rows
from paceline.core.errors import InputError
from paceline.core.layout import Layout
from support.refused import refused

FAMILIES = {"BERT": "bert", "GPT-2": "gpt2"}
counts = st.integers(1, 4096)
layouts = st.builds(
    Layout,
    model=st.sampled_from(["bert", "gpt2", "llama", "mixtral"]),
    layers=counts,
    precision=st.sampled_from(["fp32", "fp16", "bf16", "fp8"]),
    data=counts,
    tensor=counts,
    pipeline=counts,
    context=counts,
    expert=counts,
    checkpointing=st.booleans(),
    micro_batch=counts,
    global_batch=counts,
    nodes=counts,
    gpus=counts,
)


@given(layouts)
def test_a_layout_is_printed_as_it_is_read(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


def test_the_parts_of_the_word() -> None:
    layout = Layout.parse("gpt2/nl24_fp16_2x2x4_ac_mb32_gb1024_2n8g").check()
    assert (layout.layers, layout.data, layout.tensor, layout.pipeline) == (24, 2, 2, 4)
    assert layout.checkpointing
    assert layout.world_size == 16
    assert layout.micro_batches == 16


def test_ranks_for_tokens_and_for_experts_follow_the_mesh() -> None:
    layout = Layout.parse("mixtral/nl8_bf16_4x2x1_cp2_ep4_ac_mb1_gb8_2n8g").check()
    assert (layout.context, layout.expert) == (2, 4)
    assert layout.world_size == 16  # experts lie on ranks that are there already
    assert layout.micro_batches == 2
    assert Layout.parse("gpt2/nl24_fp16_2x2x4_ac_mb32_gb1024_2n8g").expert == 1


def test_experts_over_a_part_of_a_data_parallel_rank_are_refused() -> None:
    with refused("layout-experts", says="d = 3 is not a multiple of ep = 2"):
        Layout.parse("mixtral/nl8_bf16_3x1x1_ep2_mb1_gb3_1n3g").check()


def test_every_published_row_is_read_and_one_contradicts_itself() -> None:
    rows = published_rows("libai_vs_megatron")
    assert len(rows) == 44
    refusals = []
    for row in rows:
        word = f"{FAMILIES[row['model']]}/{row['case']}"
        assert str(Layout.parse(word)) == word
        try:
            Layout.parse(word).check()
        except InputError as error:
            refusals.append(error)
    [refusal] = refusals
    assert refusal.code == "layout-ranks"
    assert "8x1x1 = 8 ranks against 1n4g = 4 GPUs" in str(refusal)


def test_a_batch_that_cannot_be_divided_is_refused_with_the_arithmetic() -> None:
    arithmetic = "gb 100 is not a multiple of mb x d = 32 x 2 = 64"
    with refused("layout-batch", says=arithmetic):
        Layout.parse("bert/nl24_fp16_2x1x1_mb32_gb100_1n2g").check()


def test_more_stages_than_layers_are_refused() -> None:
    with refused("layout-stages", value="bert/nl2_fp16_1x1x4_mb1_gb4_1n4g"):
        Layout.parse("bert/nl2_fp16_1x1x4_mb1_gb4_1n4g").check()


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("nl24_fp16_1x1x1_mb1_gb1_1n1g", "the model and a slash is expected at 'nl24"),
        ("gpt2/24_fp16_1x1x1_mb1_gb1_1n1g", "nl and the number of layers is expected at '24_fp16"),
        ("gpt2/nl24_fp16_1x1_mb1_gb1_1n1g", "data x tensor x pipeline, like 2x2x4 is expected at '1x1_mb1"),
        ("gpt2/nl24_fp16_1x1x1_mb1_gb1_", "nodes and GPUs, like 2n8g is missing at its end"),
        ("gpt2/nl24_fp16_1x1x1_mb1_gb1_1n1g_x", "nodes and GPUs, like 2n8g is expected at '1n1g_x'"),
    ],
)
def test_a_word_that_is_none_is_refused_at_its_first_wrong_part(word: str, complaint: str) -> None:
    with refused("not-a-layout", value=word, says=complaint):
        Layout.parse(word)


@pytest.mark.parametrize(
    ("word", "code", "suggestion"),
    [
        ("gpt3/nl24_fp16_1x1x1_mb1_gb1_1n1g", "unknown-model", "gpt2"),
        ("gpt2/nl24_fp61_1x1x1_mb1_gb1_1n1g", "unknown-precision", "fp16"),
        ("gpt2/nl0_fp16_1x1x1_mb1_gb1_1n1g", "layout-out-of-range", None),
    ],
)
def test_a_word_with_a_wrong_part_is_refused_with_the_nearest(word: str, code: str, suggestion: str | None) -> None:
    with refused(code, suggestion=suggestion):
        Layout.parse(word)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(InputError):
        Layout.parse(text)

"""Attention: what is counted, which backend ran, a paged cache, and a check that finds one wrong element."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.benchmarks.compute.attention import Attention, AttentionParameters, Problem
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.devices.cpu import CpuDevice
from support.records import record
from support.refused import refused

CASE = Case(index=0, benchmark="attention", parameters={}, title="", target="cpu")
SMALL = {"batch_size": 2, "heads": 4, "kv_heads": 2, "length": 24, "head_size": 16}


def problem(**parameters: Any) -> Problem:
    return Problem(AttentionParameters(**(SMALL | parameters)), CpuDevice())


@pytest.mark.parametrize("direction", ["forward", "backward", "decode"])
@pytest.mark.parametrize("backend", ["auto", "flash", "math"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_backend_of_a_cpu_passes_its_check_and_says_that_it_ran(
    direction: str, backend: str, causal: bool, kv_heads: int
) -> None:
    made = problem(direction=direction, backend=backend, causal=causal, kv_heads=kv_heads)
    with made.chosen():
        made.check()
    assert made.backend == ("math" if backend == "math" else "flash")
    assert 0 < made.worst <= 1


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_format_passes_its_check(precision: str, direction: str) -> None:
    problem(precision=precision, direction=direction).check()


@pytest.mark.parametrize(
    ("given", "flops"),
    [
        ({"causal": False}, 4 * 2 * 4 * 16 * 24 * 24),
        ({"causal": True}, 4 * 2 * 4 * 16 * 24 * 25 / 2),
        ({"causal": False, "direction": "backward"}, 10 * 2 * 4 * 16 * 24 * 24),
        ({"direction": "decode"}, 4 * 2 * 4 * 16 * 24),
    ],
)
def test_only_scores_that_are_not_masked_count(given: dict[str, Any], flops: float) -> None:
    assert problem(**given).flops == flops


def test_keys_and_values_that_heads_share_are_read_once() -> None:
    assert problem(direction="decode").bytes == 4 * 2 * 2 * 16 * (4 * 1 + 2 * 24)
    assert problem(kv_heads=4, precision="bf16").bytes == 2 * 2 * 2 * 16 * (4 * 24 + 4 * 24)


@pytest.mark.parametrize("backend", ["cudnn", "efficient"])
def test_a_backend_that_is_not_for_a_cpu_is_unsupported_with_torchs_reason(backend: str) -> None:
    made = problem(backend=backend)
    with (
        made.chosen(),
        pytest.raises(Unsupported, match=f"backend = {backend} cannot .*No viable backend.*--backend auto"),
    ):
        made.call()


def test_blocks_of_a_paged_cache_give_what_the_cache_in_one_piece_gives() -> None:
    whole, paged = problem(direction="decode"), problem(direction="decode", page=8)
    assert torch.allclose(whole.call(), paged.call(), atol=1e-6)  # type: ignore[arg-type]
    paged.check()
    assert "by its table" in paged.how


def test_a_last_block_is_filled() -> None:
    assert problem(direction="decode", page=7).shape["keys"] == 28


def test_a_block_mask_shows_each_sequence_its_own_blocks() -> None:
    made = problem(direction="decode", page=8)
    key, value, mask = made.paged_operands()
    assert key.shape == (1, 2, 2 * 24, 16)
    own = [set(mask.full_kv_indices[sequence, 0, 0, :3].tolist()) for sequence in range(2)]
    assert own[0] | own[1] == set(range(6))
    # Uncompiled, flex ignores blocks, so the mask is written out.
    positions = torch.arange(48) // 8
    bias = torch.stack([torch.isin(positions, torch.tensor(sorted(one))) for one in own])[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(
        made.query, key.expand(2, -1, -1, -1), value.expand(2, -1, -1, -1), attn_mask=bias, enable_gqa=True
    )
    assert torch.allclose(expected, made.call(), atol=1e-6)  # type: ignore[arg-type]


def test_flex_computes_the_same_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    made = problem(backend="flex", length=128)
    made.check()
    assert made.backend == "flex"


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("wrong", [1.0, float("nan"), float("inf")])
def test_one_wrong_element_is_silent_corruption(direction: str, wrong: float) -> None:
    made = problem(direction=direction)
    right: Any = made.call()
    results = [one.clone() for one in (right if isinstance(right, tuple) else (right,))]
    results[-1][-1, -1, 3, 5] += wrong
    made._ready = lambda: tuple(results)
    with pytest.raises(SilentCorruption, match="is wrong in sequence 1, group 1"):
        made.check()


@pytest.mark.parametrize(
    ("given", "code", "key"),
    [
        ({"heads": 8, "kv_heads": 3}, "not-a-multiple", "kv_heads"),
        ({"kv_heads": 2}, "not-a-multiple", "kv_heads"),
        ({"page": 16}, "conflicting-keys", "page"),
    ],
)
def test_heads_that_do_not_divide_and_pages_without_decoding_are_refused(
    given: dict[str, int], code: str, key: str
) -> None:
    with refused(code, key=key):
        Attention.check(AttentionParameters(**given), CASE)


def measured(**parameters: Any) -> Any:
    given = AttentionParameters(**(SMALL | {"steps": 2, "warm_up": 0.001} | parameters))
    case = CASE.model_copy(update={"parameters": given.model_dump(exclude_defaults=True)})
    result = Attention().measure(given, Context(case=case))
    return record(case, result.measurements, facts=result.facts)


def test_the_share_is_of_a_product_that_was_measured_in_the_same_case() -> None:
    made = measured()
    share, rate = made.measurement("product_share"), made.measurement("compute_rate")
    assert share.value == pytest.approx(100 * rate.value / made.facts["product"])
    assert made.facts["product_source"].startswith("measured in this case: ")
    assert " in fp32 by " in made.facts["product_source"]
    assert made.primary == "compute_rate"
    assert made.subject.engine == "flash"
    assert made.work.flops == rate.work


@pytest.mark.parametrize(("length", "word"), [(130, "pages of 16, 144 keys"), (128, "pages of 16")])
def test_a_length_that_is_rounded_up_to_whole_pages_is_told_as_measured(length: int, word: str) -> None:
    given = {"direction": "decode", "page": 16, "length": length}
    assert Attention.title(AttentionParameters(**given)).endswith(word)
    made = measured(**given)
    assert made.facts["shape"]["keys"] == 16 * -(-length // 16)
    assert ("length" in made.facts) is (length == 130)


def test_decoding_leads_with_its_bandwidth_and_compares_with_no_product() -> None:
    made = measured(direction="decode", page=8)
    assert made.primary == "bandwidth"
    assert made.measurement("product_share") is None
    assert made.measurement("bandwidth").work == made.facts["bytes"] == made.work.bytes

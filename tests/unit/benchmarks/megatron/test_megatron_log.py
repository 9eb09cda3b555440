"""The logs of several generations of Megatron are understood or refused; a torn one is never taken for a whole one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.megatron._log import Log, parse, read_iterations
from support.recordings import recorded

MIB = 2**20
WHOLE = {  # name: its global batch
    "megatron-lm-2025": 8,
    "megatron-lm-2022-fp16": 4,
    "megatron-deepspeed-2024": 8,
    "bigscience-2022-seconds": 96,
    "four-ranks-interleaved": 16,
    "nan-left-out-bf16": 4,
    "nan-iterations-fp16": 4,
}
TEXTS = {name: recorded(f"megatron/{name}.log") for name in WHOLE}


def read(name: str) -> Log:
    return parse(TEXTS[name], 12, WHOLE[name])


@pytest.mark.parametrize("name", WHOLE)
def test_every_iteration_is_found_once_and_in_order(name: str) -> None:
    log = read(name)
    assert [one.number for one in log.iterations] == list(range(1, 13))
    assert {one.batch for one in log.iterations} == {WHOLE[name]}


def test_megatron_lm() -> None:
    log = read("megatron-lm-2025")
    first, last = log.iterations[0], log.iterations[-1]
    assert first.seconds == pytest.approx(4.1204)
    assert last.loss == pytest.approx(9.58)
    # The flop of an iteration are the same, whatever it took.
    assert [one.flops * one.seconds for one in log.iterations if one.flops] == pytest.approx([36.5e12] * 12, rel=0.01)
    assert not any(one.skipped or one.is_broken for one in log.iterations)
    assert list(log.memory) == [0]
    assert log.memory[0].after == 1
    assert log.memory[0].allocated == round(3835.12890625 * MIB)
    assert log.memory[0].peak == round(9214.7548828125 * MIB)


def test_megatron_deepspeed_tells_its_flops_at_the_end_of_the_line() -> None:
    log = read("megatron-deepspeed-2024")
    assert [one.flops * one.seconds for one in log.iterations if one.flops] == pytest.approx([186.4e12] * 12, rel=0.01)
    assert log.memory[0].peak == round(41299.50146484375 * MIB)


def test_seconds_are_not_taken_for_milliseconds() -> None:
    log = read("bigscience-2022-seconds")
    assert log.iterations[0].seconds == pytest.approx(7.231)
    assert log.memory[0].allocated == round(9909.07763671875 * MIB)


def test_an_older_log_tells_no_flops_and_skips_the_first_steps_of_fp16() -> None:
    log = read("megatron-lm-2022-fp16")
    assert [one.flops for one in log.iterations] == [None] * 12
    assert [one.number for one in log.iterations if one.skipped] == [1, 2, 3, 4]
    assert not any(one.is_broken for one in log.iterations)  # no loss, because it was skipped


def test_ranks_that_write_into_each_others_lines() -> None:
    log = read("four-ranks-interleaved")
    assert {rank: memory.peak for rank, memory in log.memory.items()} == {
        0: round(15754.88818359375 * MIB),
        1: round(15754.88818359375 * MIB),
        2: round(12680.6357421875 * MIB),
        3: round(12680.6357421875 * MIB),
    }
    assert all(one.flops and one.loss for one in log.iterations)


@pytest.mark.parametrize(
    ("name", "broken"), [("nan-left-out-bf16", [8, 9, 10, 11, 12]), ("nan-iterations-fp16", [10, 11])]
)
def test_what_is_no_number_is_seen_whether_it_is_left_out_or_counted(name: str, broken: list[int]) -> None:
    assert [one.number for one in read(name).iterations if one.is_broken] == broken


def test_a_loss_that_is_told_as_nan_is_one() -> None:
    line = TEXTS["megatron-lm-2025"].splitlines()[-2]
    (whole,) = read_iterations(line)
    (nan,) = read_iterations(re.sub(r"lm loss: [^|]+", "lm loss: NAN ", line))
    assert not whole.is_broken
    assert nan.is_broken


def test_a_log_that_breaks_off_says_how_many_iterations_it_has() -> None:
    with pytest.raises(ToolError, match=r"breaks off: it reports 8 of 12 iterations, the last one is 8"):
        parse(recorded("megatron/killed-mid-line.log"), 12, 8)


def test_an_iteration_that_another_rank_wrote_into_is_a_gap_and_no_end() -> None:
    text = re.sub(r"(iteration        7/.*?\(ms\):)", "\\1[rank1]: UserWarning\n", TEXTS["megatron-lm-2025"])
    with pytest.raises(ToolError, match=r"has gaps: it reports 11 of 12.*last one is 12, but iteration 7 is missing"):
        parse(text, 12, 8)


def test_a_training_that_begins_from_a_checkpoint_is_no_whole_one() -> None:
    resumed = "".join(
        line
        for line in TEXTS["megatron-lm-2025"].splitlines(keepends=True)
        if not re.search(r"iteration        [1-4]/", line)
    )
    with pytest.raises(ToolError, match=r"8 of 12.*iteration 1 is missing.*--load in 'extra'"):
        parse(resumed, 12, 8)


def test_a_log_without_iterations_ends_with_its_last_words() -> None:
    with pytest.raises(ToolError, match=r"no iteration, where 12 were expected; it ended with: .*training \.\.\."):
        parse("done with setup ...\ntraining ...\n", 12, 8)


@pytest.mark.parametrize(("wanted", "batch"), [(12, 16), (6, 8)])
def test_a_training_of_something_else_is_refused(wanted: int, batch: int) -> None:
    with pytest.raises(ToolError, match=rf"12 with a global batch of 8, but {wanted} with {batch}"):
        parse(TEXTS["megatron-lm-2025"], wanted, batch)


@pytest.mark.parametrize(("name", "number"), [("megatron-lm-2025", 5), ("nan-left-out-bf16", 12)])
def test_an_iteration_that_is_told_twice_counts_once(name: str, number: int) -> None:
    again = next(line for line in TEXTS[name].splitlines() if f"iteration {number:8d}/" in line)
    assert parse(f"{TEXTS[name]}{again}\n", 12, WHOLE[name]) == read(name)


def test_two_figures_for_one_iteration_are_refused() -> None:
    text = TEXTS["megatron-lm-2025"]
    again = next(line for line in text.splitlines() if "iteration        5/" in line)
    slower = re.sub(r"\(ms\): [\d.]+", "(ms): 999.9", again)
    with pytest.raises(ToolError, match="iteration 5 is reported twice"):
        parse(f"{text}{slower}\n", 12, 8)


@pytest.mark.parametrize("value", ["0.0", "-3.0", "nan", "inf", "12.5s", ""])
def test_a_time_that_cannot_be_is_no_iteration(value: str) -> None:
    text = re.sub(r"(iteration        7/.*?\(ms\):) [\d.]+", rf"\1 {value}", TEXTS["megatron-lm-2025"])
    with pytest.raises(ToolError, match="11 of 12"):
        parse(text, 12, 8)


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_a_log_that_was_cut_anywhere_is_never_taken_for_a_whole_one(name: str, data: st.DataObject) -> None:
    whole = TEXTS[name].encode()
    cut = whole[: data.draw(st.integers(0, len(whole)))].decode(errors="replace")
    try:
        log = parse(cut, 12, WHOLE[name])
    except ToolError:
        return
    assert log.iterations == read(name).iterations


@given(st.sampled_from(sorted(WHOLE)), st.data(), st.text(max_size=20))
def test_a_garbled_log_is_understood_or_refused(name: str, data: st.DataObject, noise: str) -> None:
    text = TEXTS[name]
    at = data.draw(st.integers(0, len(text)))
    until = data.draw(st.integers(at, min(len(text), at + 200)))
    try:
        log = parse(text[:at] + noise + text[until:], 12, WHOLE[name])
    except ToolError:
        return
    assert all(0 < one.seconds < float("inf") for one in log.iterations)


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(ToolError, match=r"pretrain_gpt\.py"):
        parse(noise.decode(errors="replace"), 12, 8)

"""What is sent to language models: fresh prompts of given lengths, the user's own, those of a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.benchmarks.serving.prompts import PromptMaker, check_prompts
from paceline.benchmarks.serving.requests import Requests
from paceline.load.arrivals import BLOCK, Schedule
from paceline.load.parameters import RequestParameters
from paceline.load.request import Endpoint, FreshWords, Wire
from support.refused import refused


def requests(
    wire: Wire = "openai-chat", *, planned: int | None = None, trace: Schedule | None = None, **wanted: Any
) -> Requests:
    endpoint = Endpoint(wire, "127.0.0.1", 1, "/", "m")
    return PromptMaker(RequestParameters(**wanted), endpoint, 3, planned, trace).made()


def bodies(**wanted: Any) -> list[dict[str, Any]]:
    return [json.loads(one.body) for one in requests(**wanted).prepared]


def sent(made: Requests, salt: int = 0) -> list[dict[str, Any]]:
    """What a worker sends of them, each once."""
    words = FreshWords(made.fresh, salt)
    return [json.loads(words.put_into(one.body, one.fresh, row)) for row, one in enumerate(made.prepared)]


def text(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def test_prompts_have_the_lengths_that_were_asked_for() -> None:
    for distinct in (50, None):
        made = requests(planned=50, distinct=distinct, prompt_tokens="uniform(5, 9)", output_tokens=12)
        assert {len(text(one).split()) for one in sent(made)} == {5, 6, 7, 8, 9}
        assert {len(text(json.loads(one.body)).split()) for one in made.prepared} == {5, 6, 7, 8, 9}
        assert {one["max_tokens"] for one in sent(made)} == {12}
        assert made.output_lengths == [12] * 50


def test_no_prompt_is_sent_twice_unless_that_is_asked_for() -> None:
    made = requests(planned=200)
    assert len(made.prepared) == 200 and made.in_turn
    first, second = ([text(one) for one in sent(made, salt)] for salt in (0, 10_000))
    assert len({*first, *second}) == 400
    assert len({one.split()[0] for one in first}) > 30, "a cache of prefixes would know the first words"
    assert len(made.prepared[0].body) == len(
        FreshWords(made.fresh, 7).put_into(made.prepared[0].body, made.prepared[0].fresh, 1)
    )
    assert all(not one.fresh.words for one in requests(distinct=4).prepared)
    assert len(requests(distinct=4).prepared) == 4


def test_prompts_share_only_the_prefix_that_was_asked_for() -> None:
    for wanted in ({"distinct": 20}, {"planned": 20}):
        texts = [text(one).split() for one in sent(requests(prompt_tokens=40, shared_prefix=0.5, **wanted))]
        assert len({tuple(words[:20]) for words in texts}) == 1
        assert len({tuple(words[20:]) for words in texts}) == 20


def test_a_system_prompt_is_the_same_for_all() -> None:
    made = sent(requests(planned=5, system_tokens=100, prompt_tokens=10))
    assert {(one["messages"][0]["role"], len(one["messages"][0]["content"].split())) for one in made} == {
        ("system", 100)
    }
    assert len({one["messages"][0]["content"] for one in made}) == 1
    assert len({text(one) for one in made}) == 5
    (completion,) = sent(requests("openai-completions", planned=1, system_tokens=100, prompt_tokens=10))
    assert len(completion["prompt"].split()) == 110


def test_completions_take_the_prompt_itself() -> None:
    (body,) = sent(requests("openai-completions", planned=1, stream=False))
    assert isinstance(body["prompt"], str) and "messages" not in body and body["stream"] is False
    assert "stream_options" not in body


def test_the_server_is_asked_to_count_tokens() -> None:
    assert bodies(planned=1)[0]["stream_options"] == {"include_usage": True}


def test_the_length_of_answers_can_be_forced() -> None:
    (body,) = bodies(planned=1, output_tokens=9, ignore_eos=True, min_tokens=20)
    assert (body["max_tokens"], body["ignore_eos"], body["min_tokens"]) == (9, True, 9)
    assert not {"ignore_eos", "min_tokens"} & bodies(planned=1)[0].keys()


def test_more_fields_are_sent_and_null_leaves_one_out() -> None:
    (body,) = bodies(planned=1, extra={"top_k": 1, "temperature": 0.7, "stream_options": None})
    assert (body["top_k"], body["temperature"], "stream_options" in body) == (1, 0.7, False)


def test_what_warms_up_a_server_is_not_what_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"one"\n"two"\n')
    made = requests(dataset=file)
    assert [text(json.loads(one.body)) for one in made.prepared] == ["one", "two"]
    assert not {"one", "two"} & {text(json.loads(one.body)) for one in made.warm_up}
    assert all(one.fresh.words for one in made.warm_up)


def trace_of(lengths: list[int], blocks: list[tuple[int, ...]] | None = None) -> Schedule:
    prompts = np.array(lengths, np.int32)
    return Schedule(np.arange(len(lengths)) * 1.0, None, prompts, prompts // 10 + 1, tuple(blocks) if blocks else None)


def test_a_trace_says_how_long_prompts_and_answers_are() -> None:
    made = requests(trace=trace_of([7, 300, 41]))
    assert [len(text(one).split()) for one in sent(made)] == [7, 300, 41]
    assert [one["max_tokens"] for one in sent(made)] == [1, 31, 5]
    assert [one["max_tokens"] for one in sent(requests(trace=trace_of([7, 300, 41]), output_tokens=3))] == [3, 3, 3]


def test_equal_hashes_of_a_trace_are_equal_words() -> None:
    lengths = [2 * BLOCK, 2 * BLOCK + 10, BLOCK - 100, 2 * BLOCK]
    made = requests(trace=trace_of(lengths, [(1, 2), (1, 2, 3), (1,), (4, 2)]))
    first, second, third, fourth = (text(one).split() for one in sent(made))
    assert [len(one) for one in (first, second, third, fourth)] == lengths
    assert second[: 2 * BLOCK] == first and third == first[: BLOCK - 100]
    assert fourth[BLOCK:] == first[BLOCK:] and fourth[0:BLOCK] != first[:BLOCK]
    again = [text(one).split() for one in sent(requests(trace=trace_of(lengths, [(1, 2), (1, 2, 3), (1,), (4, 2)])))]
    assert again[0][:20] != first[:20], "another run would find what this one left in a cache"


@pytest.mark.parametrize("key", ["prompt_tokens", "shared_prefix"])
def test_lengths_of_made_up_prompts_do_not_go_with_a_file(key: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"one"\n')
    with refused("conflicting-keys", key="requests.dataset"):
        check_prompts(RequestParameters.model_validate({"dataset": file, key: 1}), "openai-chat")


def test_what_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with refused("not-a-tokenizer", key="requests.tokenizer"):
        check_prompts(RequestParameters(tokenizer=tmp_path), "openai-chat")

"""OpenAI's completions over real sockets: streams, counts, limits, failures, and clients that leave."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.servers._embedded.language_service import LanguageService
from paceline.servers._embedded.openai_app import WordTokenizer
from paceline.servers.base import Need
from support.token_models import SEED, Counting, greedy, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def ask(port: int, path: str, body: object = None, method: str = "POST") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def events(body: bytes) -> list[Any]:
    """The events of a stream, of which the last must be [DONE]."""
    *pieces, last, rest = body.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces]


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@pytest.fixture
def model() -> Counting:
    return Counting()


@pytest.fixture
def served(model: Counting) -> Iterator[tuple[int, LanguageService]]:
    with serving(model, max_sequences=4) as made:
        yield made


def test_a_stream_has_one_token_in_each_chunk_and_the_usage(served: tuple[int, LanguageService]) -> None:
    port, service = served
    words = WordTokenizer(Counting.vocabulary).words
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5, "temperature": 0}
    status, body = ask(port, COMPLETIONS, {"prompt": f"some text {words[10]}", **options})
    *chunks, usage = events(body)
    assert status == 200
    assert [chunk["choices"][0]["text"].strip() for chunk in chunks] == words[11:16]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    assert usage["choices"] == []
    counts = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert usage["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 0}}
    assert service.describe()["generated_tokens"] == 5
    messages = [
        {"role": "system", "content": "some"},
        {"role": "user", "content": [{"type": "text", "text": words[10]}]},
    ]
    _, body = ask(port, CHAT, {"messages": messages, "stream": True, "max_tokens": 2})
    assert [chunk["choices"][0]["delta"]["content"] for chunk in events(body)] == [f"{words[11]} ", f"{words[12]} "]


def test_a_whole_answer_is_the_stream_in_one_piece(served: tuple[int, LanguageService]) -> None:
    port, _ = served
    status, body = ask(port, COMPLETIONS, {"prompt": [50, 51], "max_tokens": 3})
    answer = json.loads(body)
    words = WordTokenizer(Counting.vocabulary).words
    assert status == 200
    assert answer["choices"][0]["text"] == " ".join(words[52:55]) + " "
    assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["text"].split()) == 3
    _, body = ask(port, CHAT, {"messages": [{"role": "user", "content": words[50]}], "max_completion_tokens": 2})
    assert json.loads(body)["choices"][0]["message"] == {"role": "assistant", "content": f"{words[51]} {words[52]} "}


@pytest.mark.parametrize(
    ("more", "made", "reason"),
    [({}, 2, "stop"), ({"ignore_eos": True}, 7, "length"), ({"min_tokens": 3}, 7, "length")],
)
def test_the_end_of_the_text(served: tuple[int, LanguageService], more: dict[str, Any], made: int, reason: str) -> None:
    body = {"prompt": [0], "max_tokens": 7, "temperature": 0, **more}  # 1, and then 2, which is the end
    answer = json.loads(ask(served[0], COMPLETIONS, body)[1])
    assert answer["usage"]["completion_tokens"] == made
    assert answer["choices"][0]["finish_reason"] == reason
    assert len(answer["choices"][0]["text"].split()) == made - (reason == "stop")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (COMPLETIONS, {"prompt": "a b", "max_tokens": 511}, "at most 512 together (max_length)"),
        (COMPLETIONS, {"prompt": ""}, "at least one token"),
        (COMPLETIONS, {"prompt": [1, 100]}, "a list of tokens below 100"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens: 0 is not a whole number from 1"),
        (COMPLETIONS, {"prompt": "a", "temperature": "hot"}, "temperature: 'hot' is not a number"),
        (COMPLETIONS, {"prompt": "a", "stop": ["b"]}, "stop: this server does not have it"),
        (COMPLETIONS, {"prompt": "a", "n": 2}, "n: this server gives one answer"),
        (COMPLETIONS, [1], "the body must be a JSON object"),
        (CHAT, {"messages": "a"}, "messages: a list of messages is needed"),
        (CHAT, {"messages": [{"content": [{"type": "image_url"}]}]}, "content: text is needed"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    served: tuple[int, LanguageService], path: str, body: object, says: str
) -> None:
    port, service = served
    status, answer = ask(port, path, body)
    assert status == 400
    assert says in json.loads(answer)["error"]["message"]
    assert service.describe()["requests"]["refused"] == 1


def test_requests_that_overlap_share_steps(served: tuple[int, LanguageService], model: Counting) -> None:
    port, service = served
    model.gate = threading.Semaphore(0)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, port, COMPLETIONS, {"prompt": [10 * n], "max_tokens": 6}) for n in range(1, 5)]
        wait(lambda: len(service._open) == 4)
        model.gate.release(1000)
        answers = [json.loads(one.result()[1]) for one in asked]
    words = WordTokenizer(Counting.vocabulary).words
    for number, answer in enumerate(answers, start=1):
        assert answer["choices"][0]["text"].split() == words[10 * number + 1 : 10 * number + 7]
    assert max(model.sizes) == 4


def test_a_client_that_leaves_frees_its_blocks(served: tuple[int, LanguageService], model: Counting) -> None:
    port, service = served
    model.gate = threading.Semaphore(1)  # the prompt and its first token
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"prompt": [10] * 100, "max_tokens": 400, "stream": True}
    connection.request("POST", COMPLETIONS, json.dumps(body).encode())
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    assert service.describe()["kv_blocks_used"] == 7
    answer.close()
    connection.close()
    wait(lambda: service.describe()["requests"]["cancelled"] == 1)
    model.gate.release(1000)
    wait(lambda: service.describe()["kv_blocks_used"] == 0)
    counted = service.describe()
    assert counted["running"] == counted["queue"] == counted["requests"]["ok"] == 0
    assert counted["generated_tokens"] <= 2  # the step that was under way may have ended
    assert ask(port, COMPLETIONS, {"prompt": [1], "max_tokens": 1})[0] == 200


def test_too_many_that_wait_are_declined(model: Counting) -> None:
    model.gate = threading.Semaphore(0)
    with serving(model, max_sequences=1, max_queue=1) as (port, service), ThreadPoolExecutor(2) as pool:
        body = {"prompt": [1], "max_tokens": 2}
        first = pool.submit(ask, port, COMPLETIONS, body)
        wait(lambda: service.running == 1)
        second = pool.submit(ask, port, COMPLETIONS, body)
        wait(lambda: service.describe()["queue"] == 1)
        status, answer = ask(port, COMPLETIONS, body)
        assert (status, json.loads(answer)["error"]["type"]) == (503, "server_error")
        model.gate.release(1000)
        assert first.result()[0] == second.result()[0] == 200
        assert service.describe()["requests"] == {"ok": 2, "refused": 0, "shed": 1, "failed": 0, "cancelled": 0}


def test_a_step_that_fails_fails_its_requests_alone(served: tuple[int, LanguageService], model: Counting) -> None:
    port, service = served
    model.fails = True
    status, body = ask(port, COMPLETIONS, {"prompt": [1]})
    assert (status, json.loads(body)["error"]["message"]) == (500, "the engine failed: ArithmeticError: out of numbers")
    model.fails = False
    assert ask(port, COMPLETIONS, {"prompt": [1]})[0] == 200
    assert service.describe()["kv_blocks_used"] == 0


def test_a_stream_that_fails_does_not_end_as_if_it_were_whole(
    served: tuple[int, LanguageService], model: Counting
) -> None:
    model.gate = threading.Semaphore(1)
    connection = http.client.HTTPConnection("127.0.0.1", served[0], timeout=60)
    connection.request("POST", COMPLETIONS, json.dumps({"prompt": [10], "stream": True}).encode())
    answer = connection.getresponse()
    first = answer.readline()
    model.fails = True
    model.gate.release(1)
    body = first + answer.read()
    connection.close()
    assert b"[DONE]" not in body
    assert "out of numbers" in json.loads(body.decode().split("\n\n")[1].removeprefix("data: "))["error"]["message"]


def test_models_and_metrics(served: tuple[int, LanguageService]) -> None:
    port, _ = served
    assert json.loads(ask(port, "/v1/models", method="GET")[1])["data"][0]["id"] == "m"
    ask(port, COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True})
    status, body = ask(port, "/metrics", method="GET")
    lines = [line.split() for line in body.decode().splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, value in lines}
    assert status == 200
    assert values['paceline_requests_total{outcome="ok"}'] == 1
    assert values["paceline_prompt_tokens_total"] == 3
    assert values["paceline_generated_tokens_total"] == 4
    assert values["paceline_requests_running"] == values["paceline_kv_cache_usage_ratio"] == 0
    assert ask(port, "/v1/elsewhere", method="GET")[0] == 404
    assert ask(port, "/v1/models", {})[0] == 405


def test_a_served_decoder_says_to_many_what_it_says_alone() -> None:
    pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")
    from paceline.servers._embedded.paged_decoder import PagedDecoder

    need = Need("llama3-8b", "tiny", "fp32", "cpu", SEED)
    decoder = PagedDecoder(need, max_sequences=3, max_length=None, blocks=6, with_graphs=True)
    prompts = [[(17 * row + 5 * column) % 1024 for column in range(4 + 5 * row)] for row in range(8)]
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": 20}
    with serving(decoder, max_sequences=3, prefill_tokens=32) as (port, service):
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, port, COMPLETIONS, {"prompt": prompt, **options}) for prompt in prompts]
            answers = [json.loads(one.result()[1]) for one in asked]
        counted = service.describe()
    words = WordTokenizer(1024).words
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["choices"][0]["text"].split() == [words[token] for token in greedy("llama3-8b", prompt, 20)]
    # What the answers say of themselves is what the server has counted.
    usages = [answer["usage"] for answer in answers]
    assert counted["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages) == sum(map(len, prompts))
    assert counted["generated_tokens"] == sum(usage["completion_tokens"] for usage in usages) == 8 * 20


def test_any_word_is_a_token() -> None:
    tokenizer = WordTokenizer(1000)
    assert tokenizer.read("  the quick\n the ") == [(the := tokenizer.read("the")[0]), tokenizer.read("quick")[0], the]
    assert tokenizer.read(" ".join(tokenizer.words[4:40])) == list(range(4, 40))
    assert all(4 <= token < 1000 for token in tokenizer.read("any word at all, in Ελληνικά too"))

"""A language model behind the embedded server, as a user runs it: no other software, and counts that agree."""

from __future__ import annotations

import pytest

from paceline.core.record import Outcome, Record
from support.cli import Sandbox

pytestmark = [pytest.mark.slow]

LONG = 600.0  # seconds; a busy machine starts a server slowly
MODEL = ("--model", "llama3.2-1b", "--scale", "tiny", "--target", "cpu")
SHORT = ("--load", "{arrival: closed, users: 3, requests: 12}", "--warm-up", "0s", "--no-report")


def run(sandbox: Sandbox, *more: str) -> Record:
    done = sandbox.ask("run", "serve", *MODEL, *SHORT, *more, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.OK
    return record


def test_a_language_model_is_served_and_its_tokens_are_counted(sandbox: Sandbox) -> None:
    record = run(sandbox, "--requests", "{prompt_tokens: 20, output_tokens: 10, ignore_eos: true}")
    assert record.facts["wire"] == "openai-chat"
    counted = record.facts["server_statistics"]
    answered = counted["requests"]["ok"]
    assert answered == 12 + 1  # the first one shows that it answers
    assert counted["requests"] == {"ok": answered, "refused": 0, "shed": 0, "failed": 0, "cancelled": 0}
    assert (counted["prompt_tokens"], counted["generated_tokens"]) == (answered * 20, answered * 10)
    assert counted["kv_blocks_used"] == counted["cached_tokens"] == 0
    for name, length in {"prompt_tokens": 20, "output_tokens": 10}.items():
        measured = record.measurement(name)
        assert measured is not None
        assert measured.summary.mean == length
    assert record.measurement("inter_token_latency") is not None
    assert record.facts["server"]["kv_block_tokens"] == 16


def test_a_shared_beginning_comes_from_the_prefix_cache(sandbox: Sandbox) -> None:
    requests = "{prompt_tokens: 40, output_tokens: 4, shared_prefix: 0.8}"
    record = run(sandbox, "--requests", requests, "--server", "{kind: embedded, prefix_caching: true}")
    counted = record.facts["server_statistics"]
    assert 0 < counted["cached_tokens"] <= 12 * 32
    share = record.measurement("cached_prompt_share")
    assert share is not None
    assert 0 < share.summary.mean <= 100 * 32 / 40


def test_a_sweep_over_users_is_one_command_with_one_server(sandbox: Sandbox) -> None:
    load = ("--load", "{arrival: sweep, users: 4, requests: 24}", "--price", "2", "--warm-up", "0s")
    lengths = ("--requests", "{prompt_tokens: 16, output_tokens: 6, ignore_eos: true}")
    done = sandbox.ask("run", "serve", *MODEL, *load, *lengths, "--report", "page.html", timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = sandbox.load().records
    assert record.load is not None and record.primary == "token_throughput"
    swept = [int(one.at) for one in record.load.loads]
    assert swept == [1, 2, 4][: len(swept)]  # it may be saturated before
    for users in swept:
        for name in ("token_throughput", "tokens_per_user", "first_token_p50", "between_tokens_p50"):
            assert record.measurement(name, at={"users": users}) is not None, name
        assert record.measurement("cost_per_million_tokens", at={"users": users}) is not None
    assert record.facts["server_statistics"]["requests"]["ok"] == 24 * len(swept) + 1  # and one to begin with
    reported = {one.name: one.values for one in record.load.series}
    assert {"server_running", "server_queue", "kv_cache_use"} <= set(reported)
    assert min(reported["server_running"]) >= 0 and max(reported["server_running"]) <= 4
    assert "tokens/s" in done.stdout and "requests/s" not in done.stdout
    page = (sandbox.work / "page.html").read_text()
    assert len(swept) == 1 or "Throughput against speed for each user" in page


@pytest.mark.parametrize(
    ("profile", "users"), [("synchronous", 1), ("{arrival: throughput, users: 3, requests: 9}", 3)]
)
def test_profiles_go_by_the_names_that_people_know(sandbox: Sandbox, profile: str, users: int) -> None:
    lengths = ("--requests", "{prompt_tokens: 8, output_tokens: 4}", "--warm-up", "0s", "--no-report")
    short = () if "requests" in profile else ("--load.requests", "6")
    done = sandbox.ask("run", "serve", *MODEL, "--load", profile, *short, *lengths, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = sandbox.load().records
    assert record.load is not None and record.load.loop == "closed"
    assert f" at {users} user" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "resnet18", "--wire", "openai-chat"), "model 'resnet18' does not make text token by token"),
        (("--server", "{kind: embedded, engine: onnxruntime}"), "language models are served with engine = torch"),
        (("--server", "{kind: embedded, instances: 2}"), "language models are served with instances = 1"),
    ],
)
def test_what_does_not_go_with_a_language_model_is_refused(
    sandbox: Sandbox, arguments: tuple[str, ...], says: str
) -> None:
    done = sandbox.ask("run", "serve", *MODEL, *SHORT, *arguments)
    assert done.returncode == 2
    assert says in " ".join((done.stdout + done.stderr).split())

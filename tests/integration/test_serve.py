"""The benchmark `serve` as a user runs it: a real server, a real load, and every way in which that goes wrong."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from paceline.core.record import CauseKind, Outcome, Record
from support.ceiling import remember_the_ceiling
from support.cli import Sandbox, events, sandbox_in

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # requests must be sent in time

MODEL = "generated/fc:layers=1,width=16"
LONG = 600.0  # seconds; a busy machine starts a server slowly
COMMON = {"benchmark": "serve", "model": MODEL, "scale": "tiny", "warm_up": "300ms"}
LIGHT = {"engine": "onnxruntime"}  # starts without torch, for what is not about the engine
SHORT = ("closed", "single-stream", "offline", "wrong", "port")  # the others take a minute
OWN_MODEL = """
import torch
from paceline.models import Batch, Workload

class Branching(torch.nn.Module):
    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x - 1

def branching() -> Workload:
    def make(samples, generator):
        vectors = torch.randn(samples, 4, generator=generator)
        return Batch(inputs=(vectors,), targets=(vectors,))
    return Workload(module=Branching(), make_batch=make, loss=lambda output, batch: output.sum())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One home for all, so that the load generator is calibrated once."""
    with sandbox_in(tmp_path_factory.mktemp("serve") / "sandbox") as made:
        yield made


@pytest.fixture(scope="module")
def poisson(place: Sandbox, with_long: bool) -> Record:
    """A load at a fixed rate, asked for by flags alone; with long tests, the load generator is calibrated first."""
    if not with_long:
        remember_the_ceiling(place.environment()["XDG_DATA_HOME"])
    asked = ("--load.rate", "30", "--load.duration", "2s", "--server.engine", "onnxruntime", "--slo", "{p50: 2s}")
    server = ("--server.max-batch", "4", "--server.max-delay", "1ms", "--warm-up", "300ms", "--price", "3.6")
    model = ("--model", MODEL, "--scale", "tiny")
    done = place.run("run", "serve", *model, *asked, *server, "--no-report", "--json", timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = place.load().records
    assert record.outcome is Outcome.OK
    return record


@pytest.fixture(scope="module")
def suite(place: Sandbox, poisson: Record, with_long: bool) -> dict[str, Record]:
    """One run of many cases, good and bad, by name; the load generator was calibrated before."""
    remember_the_ceiling(place.environment()["XDG_DATA_HOME"])
    place.write("own.py", OWN_MODEL)
    np.savez(place.work / "other.npz", y=np.zeros((3, 16), np.float32))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases: dict[str, dict[str, Any]] = {
            "closed": {"load": {"arrival": "closed", "users": 2, "requests": 20}},
            "single-stream": {"server": LIGHT, "load": {"arrival": "single-stream", "requests": 10}},
            "multi-stream": {"server": LIGHT, "load": {"arrival": "multi-stream", "requests": 10, "samples": 3}},
            "grpc": {
                "server": LIGHT,
                "load": {"arrival": "closed", "users": 2, "requests": 20},
                "wire": "kserve-grpc",
            },
            "offline": {"server": LIGHT, "load": {"arrival": "offline", "requests": 40}, "wire": "kserve-json"},
            "search": {"slo": {"p90": "100ms"}, "search_budget": "4s", "search_tolerance": "20%"},
            "never": {"server": LIGHT, "slo": {"p50": "1us"}, "search_budget": "60s"},
            "wrong": {"server": {"kind": "wrong"}, "load": {"rate": 20, "requests": 10}},
            "port": {"server": LIGHT | {"port": taken.getsockname()[1]}, "load": {"rate": 20, "requests": 10}},
            "branching": {"model": "own:branching", "server": {"engine": "torch-export"}, "load": {"rate": 9}},
            "late": {"server": LIGHT | {"ready_timeout": "10ms"}, "load": {"rate": 9}},
            "dataset": {"server": LIGHT, "load": {"rate": 9}, "requests": {"dataset": "other.npz"}},
        }
        if not with_long:
            cases = {name: cases[name] for name in SHORT}
        name = place.suite(*({**COMMON, **case} for case in cases.values()))
        done = place.run("run", name, "--no-report", "--json", timeout=LONG)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    stored = place.load()
    assert stored.missing == []
    assert place.left_behind() == []
    return dict(zip(cases, stored.records, strict=True))


def value(record: Record, name: str, **at: Any) -> float:
    found = record.measurement(name, at=at)
    assert found is not None, f"there is no {name} at {at}"
    return found.value


def parts(record: Record, name: str) -> dict[str, float]:
    return {str(next(iter(m.at.values()))): m.value for m in record.measurements if m.metric.name == name and m.at}


def message(record: Record) -> str:
    assert record.cause is not None
    assert "\n" not in record.cause.message
    return record.cause.message


# What a load at a fixed rate says


def test_every_answered_request_is_a_latency(poisson: Record) -> None:
    latency = poisson.measurement("latency")
    assert latency is not None
    assert value(poisson, "error_rate") == value(poisson, "shed_rate") == 0.0
    assert value(poisson, "delivered") == 100.0
    answered = poisson.facts["server_statistics"]["requests"]["ok"]
    assert 20 < len(latency.samples) < answered  # the server has counted the warm-up as well


def test_the_record_says_how_much_the_load_generator_could_have_sent(poisson: Record) -> None:
    said = re.fullmatch(
        r"(?:at least )?(\d+) requests/s( of .+)?( by the client in C)? from one worker "
        r"against a server that does nothing",
        poisson.facts["client_ceiling"],
    )
    assert said is not None, poisson.facts["client_ceiling"]
    assert int(said[1]) > value(poisson, "offered_rate")


def test_percentiles_and_rates_agree_with_the_samples(poisson: Record) -> None:
    latency = poisson.measurement("latency")
    assert latency is not None
    for name, share in (("latency_p50", 0.5), ("latency_p90", 0.9)):
        told = poisson.measurement(name)
        if told is None:  # fewer than fifty requests happened to arrive
            continue
        assert told.value == pytest.approx(np.quantile(latency.samples, share, method="inverted_cdf"))
        assert told.interval is None  # it would need a hundred
    assert poisson.measurement("latency_p99") is None  # it would need five hundred
    assert value(poisson, "throughput") == pytest.approx(value(poisson, "goodput"))
    assert 15 < value(poisson, "offered_rate") < 60
    assert poisson.facts["slo"].startswith("not decidable yet: ")  # so few requests say nothing of a tail


def test_the_stages_add_up_to_the_latency(poisson: Record) -> None:
    stages = parts(poisson, "stage_time")
    latency = poisson.measurement("latency")
    assert latency is not None
    assert {"send lateness", "transmission", "queue", "inference"} <= stages.keys()
    assert sum(stages.values()) == pytest.approx(latency.summary.mean, rel=0.05)


def test_batches_the_cold_start_and_what_the_server_used_are_told(poisson: Record) -> None:
    assert sum(parts(poisson, "batch_share").values()) == pytest.approx(100.0)
    assert 1.0 <= value(poisson, "batch_size") <= 4.0
    assert {"process to ready", "ready to first answer"} <= parts(poisson, "cold_start").keys()
    assert value(poisson, "cpu_utilisation") > 0
    assert value(poisson, "server_memory") > 1 << 20
    assert {"before", "after"} <= poisson.conditions.keys()


def test_cost_follows_from_price_and_throughput(poisson: Record) -> None:
    assert value(poisson, "cost_per_thousand") == pytest.approx(3.6 / 3600 * 1000 / value(poisson, "throughput"))
    assert poisson.facts["price"] == "3.6 USD per hour (the user's own price)"


def test_answers_were_compared_with_the_model(poisson: Record) -> None:
    checked, _, rest = poisson.facts["answers_checked"].partition(",")
    assert int(checked) >= 1
    assert "off by at most" in rest


def test_the_flags_reached_the_parts_of_the_parameters(poisson: Record) -> None:
    assert poisson.case.parameters["load"]["rate"] == 30
    assert poisson.case.parameters["server"]["engine"] == "onnxruntime"
    assert poisson.facts["server"]["max_batch"] == 4


# Other loads


def test_closed_loops_and_scenarios_of_mlperf_are_marked(suite: dict[str, Record]) -> None:
    expected = {"closed": ("closed", 20), "single-stream": ("closed", 10), "offline": ("burst", 40)}
    for name, (loop, requests) in expected.items():
        record = suite[name]
        assert record.outcome is Outcome.OK, (name, record.cause)
        latency = record.measurement("latency")
        assert latency is not None
        assert (record.facts["loop"], len(latency.samples)) == (loop, requests)
        assert ("closed_loop" in record.facts) == (loop == "closed")
    assert suite["offline"].facts["wire"] == "kserve-json"
    assert suite["offline"].measurement("offered_rate") is None  # all came at once


@pytest.mark.long
def test_multi_stream_sends_its_samples_in_each_request(suite: dict[str, Record]) -> None:
    record = suite["multi-stream"]
    assert record.outcome is Outcome.OK, record.cause
    assert value(record, "sample_throughput") == pytest.approx(3 * value(record, "throughput"))


@pytest.mark.long
def test_a_search_tells_the_capacity_or_why_it_is_not_sure(suite: dict[str, Record]) -> None:
    record = suite["search"]
    assert record.outcome is Outcome.OK, record.cause
    capacity = record.measurement("capacity")
    assert capacity is not None
    assert capacity.value > 1
    warnings = {warning.kind for warning in record.warnings}
    assert capacity.interval is not None or warnings & {"imprecise", "client-limited"}
    tried = {m.at["rate"] for m in record.measurements if m.metric.name == "throughput" and m.at}
    assert tried  # one may be all that a busy machine has time for
    keys = [(m.metric.name, m.scope, json.dumps(m.at, sort_keys=True)) for m in record.measurements]
    assert len(keys) == len(set(keys))
    assert record.measurement("latency") is not None
    assert "confirmed_at" in record.facts


@pytest.mark.long
def test_a_promise_that_cannot_be_kept_fails_with_one_sentence(suite: dict[str, Record]) -> None:
    record = suite["never"]
    assert record.outcome is Outcome.FAILED
    assert message(record).startswith("the slo was not met, even at 1/s: p50 is ")
    assert message(record).endswith(", above 1 µs")


# What goes wrong while it runs


def test_wrong_answers_are_found(suite: dict[str, Record]) -> None:
    record = suite["wrong"]
    assert record.outcome is Outcome.FAILED
    assert record.cause is not None
    assert record.cause.kind is CauseKind.CORRUPTION
    assert "differs from the model's own" in message(record)


@pytest.mark.parametrize(
    ("name", "outcome", "says"),
    [
        ("port", Outcome.FAILED, ("in use",)),
        pytest.param(
            *("branching", Outcome.UNSUPPORTED, ("own:branching as torch-export", "cannot be exported")),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("late", Outcome.FAILED, ("not ready after 0.01 s", "ready_timeout")),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("dataset", Outcome.FAILED, ("other.npz", "has no array", "it has y")),
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_shows_only_while_it_runs_ends_its_case_with_a_reason(
    suite: dict[str, Record], name: str, outcome: Outcome, says: tuple[str, ...]
) -> None:
    record = suite[name]
    assert record.outcome is outcome
    for words in says:
        assert words in message(record)


def test_the_log_of_a_server_that_could_not_listen_is_kept(suite: dict[str, Record]) -> None:
    cause = suite["port"].cause
    assert cause is not None
    assert cause.detail


@pytest.mark.long
def test_a_server_that_is_killed_under_load_ends_the_case_soon(place: Sandbox) -> None:
    load = ("--load.rate", "20", "--load.duration", "300s", "--warm-up", "300ms", "--server.engine", "onnxruntime")
    run = place.start("run", "serve", "--model", MODEL, "--scale", "tiny", *load, "--no-report", "--json")
    assert run.stdout is not None
    for line in run.stdout:
        if json.loads(line).get("phase") == "measuring":
            break
    time.sleep(2.0)  # for the load generator to start
    killed = time.monotonic()
    _embedded(place).send_signal(signal.SIGKILL)
    rest, _ = run.communicate(timeout=LONG)
    assert time.monotonic() - killed < 100.0
    assert run.returncode == 1
    assert events(rest)[-1]["event"] == "run_ended"
    (record,) = place.load().records
    assert record.outcome is Outcome.FAILED
    words = message(record).split()
    assert message(record).startswith("the server ended under load: ")
    answered, total, lost = (int(word) for word in words if word.isdigit())
    assert answered + lost == total
    assert record.cause is not None
    assert record.cause.detail  # what the server wrote last
    assert place.left_behind() == []


def _embedded(place: Sandbox) -> psutil.Process:
    """The server itself, not the process that watches over it."""
    found = [one for one in place.processes() if "paceline.servers._embedded" in one.cmdline()]
    return max(found, key=lambda one: one.create_time())


# What is refused before anything runs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("when\n1\n2\n", "name one of them timestamp"),
        ("timestamp,kind\n0,0\n1,32\n", "an arrival is of kind 32, but there are 32 kinds, from 0"),
    ],
)
def test_recorded_arrivals_that_cannot_be_sent_are_refused_at_once(sandbox: Sandbox, text: str, says: str) -> None:
    (sandbox.work / "arrivals.csv").write_text(text)
    done = sandbox.ask("run", "serve", "--load.arrival", "trace", "--load.file", "arrivals.csv", "--no-report")
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert not sandbox.store.exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), ("give a load", "or an slo")),
        (("--server", "{kind: embeded}"), ("unknown server 'embeded'", "did you mean 'embedded'?")),
        (("--server", "{max_bach: 4}", "--load.rate", "5"), ("unknown key 'max_bach'", "did you mean 'max_batch'?")),
        (("--server.engin", "torch", "--load.rate", "5"), ("--server.engin", "--server.engine")),
        (("--instance", "c7g.larg", "--load.rate", "5"), ("unknown instance 'c7g.larg'", "did you mean 'c7g.large'?")),
        (("--wire", "openai-chat", "--load.rate", "5"), ("'resnet18' does not make text", "kserve-binary")),
        (
            ("--requests.form", "image", "--wire", "kserve-json", "--load.rate", "5"),
            ("pictures do not travel as JSON", "kserve-binary"),
        ),
        (
            ("--requests.form", "text", "--server", "{kind: mlserver}", "--load.rate", "5"),
            ("server 'mlserver' takes tensors, not text", "requests.processing to client"),
        ),
        (("--requests.processing", "client", "--load.rate", "5"), ("tensors need none", "form")),
        (
            ("--requests.form", "image", "--requests.dataset", "none", "--load.rate", "5"),
            ("requests.dataset = none", "no such folder"),
        ),
        (("--model", "resnet81", "--load.rate", "5"), ("unknown model 'resnet81'", "did you mean")),
        (
            ("--requests.samples", "uniform(1, 9)", "--load.rate", "5"),
            ("requests of 9 samples do not fit into max_batch = 8",),
        ),
        (("--requests.dataset", "none.npz", "--load.rate", "5"), ("none.npz", "no such file")),
        (("--load.arrival", "trace", "--load.file", "none.csv"), ("none.csv", "no such file")),
        (("--load.arrival", "poisson"), ("poisson needs rate",)),
        (
            ("--load.arrival", "constant", "--load.rate", "0.001", "--load.duration", "1s"),
            ("not a single request", "raise its rate or its duration"),
        ),
        (("--slo", "{p50: 2s, p99: 1s}"), ("a higher percentile cannot have a shorter bound",)),
        (
            ("--slo.first-token", "10ms", "--load.rate", "5"),
            ("need answers that come token by token", "openai-chat"),
        ),
        (("--price", "1", "--instance", "c7g.large", "--load.rate", "5"), ("instance and price",)),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) and value and value[0].startswith("--") else "",
)
def test_what_cannot_work_is_refused_at_once(sandbox: Sandbox, flags: tuple[str, ...], says: tuple[str, ...]) -> None:
    done = sandbox.ask("run", "serve", *flags, "--no-report")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("paceline: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for words in says:
        assert words in done.stderr
    assert not sandbox.store.exists()

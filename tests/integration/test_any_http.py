"""A plain HTTP server of the standard library, measured by one command; what is wrong is refused beforehand."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline.core.record import Outcome, Record
from support import docs_markdown as markdown
from support.ceiling import remember_the_ceiling
from support.cli import Sandbox, events

SECRET = "sesame-0123456789"
SHORT = ("--warm-up", "0s", "--no-report")
LOAD = ("--load.rate", "40", "--load.duration", "1s", *SHORT)
GUIDE = markdown.ROOT / "docs" / "guide" / "serving.md"


class Predict(BaseHTTPRequestHandler):
    """Answers as the body asks for, and remembers what it was asked."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    asked: ClassVar[list[tuple[str, str, dict[str, str], Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "null")
        self.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        status, text = 201, json.dumps({"label": "cat", "heard": self.headers.get("Authorization")})
        if isinstance(body, dict) and body.get("n", 0) % 4 == 3:
            status, text = (500, "out of memory") if body["n"] % 8 == 3 else (201, '{"label": "dog"}')
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Predict.asked = []
    made = ThreadingHTTPServer(("127.0.0.1", 0), Predict)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    thread.join()
    made.server_close()


def measured(sandbox: Sandbox, *flags: str, code: int = 0, **env: str) -> Record:
    remember_the_ceiling(sandbox.environment()["XDG_DATA_HOME"])
    done = sandbox.run("run", "serve", "--server", "url", *flags, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    (record,) = sandbox.load().records
    return record


@pytest.mark.slow
@pytest.mark.alone
def test_good_and_wrong_answers_are_told_apart_and_no_secret_is_kept(sandbox: Sandbox, server: str) -> None:
    record = measured(
        sandbox,
        *("--server.url", server, "--server.path", "/predict?top=5", "--requests.distinct", "8"),
        *("--server.body", '{"n": {{index}}, "pixels": {{input}}}', "--input", "4", "--server.order", "in-turn"),
        *("--server.header", "Authorization: Bearer $THEIR_TOKEN", "--server.header", "X-Team: a, b"),
        *("--server.expect-status", "200-299", "--server.expect-json", "label=cat", "--server.expect-text", "ca[t]"),
        *("--load.arrival", "closed", "--load.users", "1", "--load.requests", "80", *SHORT),
        THEIR_TOKEN=SECRET,
    )
    assert record.outcome is Outcome.OK
    values = {one.metric.name: one for one in record.measurements}
    assert values["error_rate"].value == 25.0  # two of eight requests in rotation
    assert values["latency"].summary.count == 60
    (warning,) = [one for one in record.warnings if one.kind == "errors"]
    assert "20 of 80 requests failed" in warning.message
    assert "10 times expected status 200-299, got 500: out of memory" in warning.message
    assert '10 times expected JSON with label=cat, got 201: {"label": "dog"}' in warning.message
    facts = record.facts["http"]
    assert (facts["method"], facts["path"], facts["headers"]) == ("POST", "/predict?top=5", ["authorization", "x-team"])
    assert re.fullmatch("sha256:[0-9a-f]{64}", facts["body_digest"])
    assert facts["good_answer"] == "status 200-299; JSON with label=cat; text that matches 'ca[t]'"
    assert record.subject is not None and (record.subject.model, record.subject.precision) == ("/predict?top=5", None)
    command, path, headers, body = Predict.asked[-1]
    assert (command, path) == ("POST", "/predict?top=5")
    assert (headers["authorization"], headers["x-team"]) == (f"Bearer {SECRET}", "a, b")
    assert headers["content-type"] == "application/json" and len(body["pixels"]) == 4
    assert [body["n"] for *_, body in Predict.asked[-16:]] == [0, 1, 2, 3, 4, 5, 6, 7] * 2
    for file in sandbox.folder.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


@pytest.mark.slow
def test_a_server_that_answers_otherwise_is_shown_before_the_load(sandbox: Sandbox, server: str) -> None:
    flags = ("--server.url", server, "--server.path", "/predict", "--server.body", "{}", *LOAD)
    secret = ("--server.header", "Authorization: $THEIR_TOKEN", "--server.expect-json", "heard=nothing")
    record = measured(sandbox, *flags, *secret, code=1, THEIR_TOKEN=SECRET)
    assert record.outcome is Outcome.FAILED and record.cause is not None
    first, *example = record.cause.message.split("\n")
    assert first.endswith('expected JSON with heard=nothing, got 201: {"label": "cat", "heard": "***"}')
    assert len(example) == 4 and example[0].startswith("  sent:   POST /predict, 2 bytes")
    assert len(Predict.asked) == 1


@pytest.mark.slow
def test_a_load_is_shown_while_it_runs(sandbox: Sandbox, server: str) -> None:
    remember_the_ceiling(sandbox.environment()["XDG_DATA_HOME"])
    load = ("--load.rate", "40", "--load.duration", "3s", *SHORT, "--json")
    flags = ("--server.url", server, "--server.body", '{"n": 1}', *load)
    done = sandbox.ask("run", "serve", "--server", "url", *flags)
    assert done.returncode in {0, 1}, done.stdout + done.stderr  # requests may be late on a busy machine
    shown = [one["load"] for one in events(done.stdout) if one["event"] == "case_progress" and "load" in one]
    assert shown and any(one["rate"] > 0 for one in shown)
    for one in shown:
        assert 0 <= one["failures"] <= 1 and ("p99" not in one or 0 < one["p50"] <= one["p99"])


@contextmanager
def guide_server(folder: Path) -> Iterator[str]:
    """The guide's own server, at a port that is free."""
    (folder / "predict.py").write_text(markdown.files(GUIDE)["predict.py"])
    process = subprocess.Popen([sys.executable, "-u", "predict.py", "0"], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        yield _port_of(process.pid)
    finally:
        process.kill()
        process.wait()


def _port_of(pid: int) -> str:
    import psutil

    while True:
        for one in psutil.Process(pid).net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN:
                return str(one.laddr.port)
        threading.Event().wait(0.02)


def _guide_commands() -> list[str]:
    section = GUIDE.read_text(encoding="utf-8").partition("### Any HTTP server\n")[2].partition("\n## ")[0]
    return re.findall(r"^paceline run serve .*$", section, re.MULTILINE)


@pytest.mark.long
@pytest.mark.alone
def test_every_command_of_the_guide_measures_its_server(sandbox: Sandbox) -> None:
    remember_the_ceiling(sandbox.environment()["XDG_DATA_HOME"])
    sandbox.write("lines.jsonl", '{"pixels": [1]}\n{"pixels": [-1, 2, 3]}\n')
    with guide_server(sandbox.work) as port:
        commands = _guide_commands()
        assert len(commands) == 3
        for command in commands:
            words = shlex.split(command.replace(":8000", f":{port}"))[1:]
            done = sandbox.ask(*words, "--load.duration", "1s", *SHORT)
            assert done.returncode == 0, done.stdout + done.stderr
            (record,) = sandbox.load().records
            assert next(m for m in record.measurements if m.metric.name == "error_rate").value == 0.0


URL = ("--server.url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--wire", "http"), "'url' is missing"),
        (URL, "'model' is missing; a server that speaks none of the protocols has wire: http"),
        ((*URL, "--server.path", "predict"), "'predict' is not a path; write it like /predict"),
        ((*URL, "--server.method", "FETCH"), "must be one of 'GET', 'POST', 'PUT', 'PATCH' or 'DELETE'"),
        ((*URL, "--server.header", "X-Team"), "is not a header; write it like 'X-Team: vision'"),
        ((*URL, "--server.header", f"X-Api-Key: {SECRET}"), "write 'X-Api-Key: $NAME', in single quotes"),
        ((*URL, "--server.header", "X-Api-Key: $NOT_SET"), "$NOT_SET is empty or not set"),
        ((*URL, "--server.body", "@none.json"), "body = '@none.json': the file cannot be read"),
        ((*URL, "--server.body", '{"x": {{inputs}}}'), "unknown placeholder in server.body '{{inputs}}': did you mean"),
        ((*URL, "--server.body", "{{input}}"), "or the shape with --input 1x3x224x224"),
        ((*URL, "--server.body", "{x}"), "server.body is not JSON"),
        ((*URL, "--server.body", "{}", "--requests.dataset", "none.jsonl"), "there is no such file"),
        ((*URL, "--server.expect-status", "2xx"), "'2xx' is not a status; write 200, or 200-299"),
        ((*URL, "--server.expect-json", "a..b"), "'a..b' is not a JSON path; write it as label"),
        ((*URL, "--server.expect-text", "("), "'(' is not a regular expression"),
        (
            (*URL, "--server.body", "{}", "--requests.samples", "4"),
            "requests.samples and multi-stream are not for wire http",
        ),
        ((*URL, "--server.body", "{}", "--wire", "openai-chat"), "body: only wire http takes it, not openai-chat"),
        (("--server.url", "grpc://h", "--wire", "http"), "wire http needs an address that starts with http://"),
        (("--server.from-curl", "wget http://h"), "it does not begin with curl; expected is a line like"),
        (("--server.from-curl", f"curl http://h -u me:{SECRET}"), "'-u' is not taken"),
        (("--server.from-curl", f"curl http://h -H 'Authorization: Bearer {SECRET}'"), "in single quotes"),
    ],
)
def test_a_dry_run_refuses_each_wrong_form(sandbox: Sandbox, flags: tuple[str, ...], said: str) -> None:
    done = sandbox.ask("run", "serve", "--server", "url", *flags, "--load.rate", "1", "--dry-run")
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert SECRET not in done.stderr

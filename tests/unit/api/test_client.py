"""How the verbs of a leader speak to it: what is sent again, what is not, and where a token never goes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.api.client import Client, NoLeader, open_client
from paceline.api.jobs import read_needs
from paceline.cli import submit as submit_verb
from paceline.core.errors import InputError
from support.refused import refused

Answers = list[tuple[int, dict[str, str], Any]]


class Heard:
    """What a server was sent."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []


@contextmanager
def server(*answers: tuple[int, dict[str, str], Any]) -> Iterator[tuple[str, Heard]]:
    """Gives these answers, one after the other, the last one again and again; a status of 0 hangs up."""
    heard = Heard(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            heard.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            status, headers, answer = heard.answers.pop(0) if len(heard.answers) > 1 else heard.answers[0]
            if not status:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}", heard
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def _error(message: str, remedy: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"error": {"code": "x", "message": message, "remedy": remedy} | fields}


JOB = {"id": "x", "name": "gemm", "state": "queued"}


@pytest.mark.parametrize(
    "first",
    [
        (503, {"Retry-After": "0"}, _error("full")),
        (429, {"Retry-After": "0"}, _error("slow down")),
        (0, {}, None),
    ],
)
def test_a_job_is_sent_again_under_the_same_id(first: tuple[int, dict[str, str], Any]) -> None:
    with server(first, first, (201, {}, JOB)) as (url, heard):
        done = CliRunner().invoke(submit_verb.command, ["gemm", "--set", "size=64", "--only", "gemm", "--leader", url])
    assert (done.exit_code, len(heard.requests)) == (0, 3), done.output
    bodies = [json.loads(body) for *_, body in heard.requests]
    assert bodies[0] == bodies[1] == bodies[2]
    assert (bodies[0]["suite"], bodies[0]["overrides"]) == ("gemm", {"size": "64"})
    assert bodies[0]["only"] == ["gemm"]


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        (["gemm", "--size", "256"], {"size": "256"}),
        (["gemm", "--size", "64,128", "--repeat", "2", "--set", "precision=fp32"],
         {"size": ["64", "128"], "repeat": "2", "precision": "fp32"}),
        (["a-suite-of-the-leader", "--set", "size=64"], {"size": "64"}),
    ],
)  # fmt: skip
def test_parameters_are_flags_as_in_run(words: list[str], overrides: dict[str, Any]) -> None:
    with server((201, {}, JOB)) as (url, heard):
        done = CliRunner().invoke(submit_verb.command, [*words, "--leader", url])
    assert done.exit_code == 0, done.output
    ((*_, body),) = heard.requests
    assert (json.loads(body)["suite"], json.loads(body)["overrides"]) == (words[0], overrides)


@pytest.mark.parametrize(
    "words",
    [["gemm"], ["--repeat", "2"], ["--set", "size=64"], ["--only", "gemm"], ["--priority", "3"],
     ["--machines", "gpus=8"], ["--tag", "x"], ["--each"]],
)  # fmt: skip
def test_a_round_that_is_gone_on_with_stays_as_it_was(words: list[str]) -> None:
    given = ["--resume", "fleet-1", *words, "--leader", "http://127.0.0.1:9"]
    done = CliRunner().invoke(submit_verb.command, given)
    assert isinstance(done.exception, InputError)
    assert (done.exception.code, done.exception.exit_code) == ("resume-with-other-options", 2)


def test_flags_of_what_is_not_known_here_are_refused() -> None:
    done = CliRunner().invoke(submit_verb.command, ["gem", "--size", "256", "--leader", "http://127.0.0.1:9"])
    assert isinstance(done.exception, InputError)
    assert (done.exception.code, done.exception.suggestion) == ("unknown-suite-or-benchmark", "gemm")


def test_a_refusal_is_not_sent_again() -> None:
    known = {"code": "unknown-key", "case": 2, "key": "sise", "value": 64, "suggestion": "size"}
    message = "unknown key 'sise'; see paceline show gemm"
    with server((422, {}, _error("unknown key 'sise'", "see paceline show gemm", **known))) as (url, heard):
        with refused("unknown-key", message=message, case=2, key="sise", value=64, suggestion="size"):
            Client(url).post("/jobs", {})
        assert len(heard.requests) == 1


def test_a_wait_is_as_long_as_the_leader_says() -> None:
    waited: list[float] = []
    with server((429, {"Retry-After": "7"}, _error("slow down")), (200, {}, {})) as (url, _):
        Client(url, sleep=waited.append).get("/jobs")
    assert waited == [7.0]


def test_patience_ends() -> None:
    with server((503, {"Retry-After": "9999"}, _error("the disk is full"))) as (url, heard):
        with pytest.raises(NoLeader, match="the disk is full"):
            Client(url).get("/jobs")
        assert len(heard.requests) == 1


def test_nobody_there_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(NoLeader, match="start one with `paceline leader`") as raised:
        Client(f"http://127.0.0.1:{port}", patience=0.0).get("/jobs")
    assert raised.value.exit_code == 2


def test_a_leader_without_tls_is_not_called_untrusted() -> None:
    with server((200, {}, {})) as (url, _), pytest.raises(NoLeader, match=r"no TLS connection .* begins with http://"):
        Client(url.replace("http:", "https:"), patience=0.0).get("/jobs")


@pytest.mark.parametrize("answer", [(200, {}, b"<html>"), (404, {}, b"<html>"), (500, {}, b"")])
def test_something_else_at_that_address_is_told(answer: tuple[int, dict[str, str], bytes]) -> None:
    with server(answer) as (url, _), pytest.raises(NoLeader, match="is not a leader of Paceline"):
        Client(url).get("/jobs")


def test_a_token_follows_no_redirection() -> None:
    with server((200, {}, {})) as (elsewhere, stolen), server((307, {"Location": elsewhere}, b"")) as (url, heard):
        with pytest.raises(NoLeader):
            Client(url, "secret").get("/jobs")
        assert heard.requests[0][2]["authorization"] == "Bearer secret"
        assert stolen.requests == []


def test_a_leader_on_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with server((200, {}, {"jobs": []})) as (url, _):
        assert Client(url).get("/jobs") == {"jobs": []}


def test_the_environment_says_where_and_who(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with server((200, {}, {})) as (url, heard):
        monkeypatch.setenv("PACELINE_LEADER", url)
        monkeypatch.setenv("PACELINE_TOKEN", "from-environment")
        open_client(None, None).get("/jobs")
        (tmp_path / "token").write_text("from-file\n")
        open_client(url, tmp_path / "token").get("/jobs")
    assert [headers["authorization"] for _, _, headers, _ in heard.requests] == [
        "Bearer from-environment",
        "Bearer from-file",
    ]


@pytest.mark.parametrize("url", ["", "gpu7", "file:///etc/passwd", "ftp://gpu7", "http://", "http://a@b", "http://x:y"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with refused("not-an-address", key="--leader", value=url):
        Client(url)


def test_a_token_file_that_holds_none_is_refused(tmp_path: Path) -> None:
    with refused("unreadable-file", key="--token-file", value=str(tmp_path / "absent")):
        open_client(None, tmp_path / "absent")
    (tmp_path / "token").write_text("two words")
    with refused("not-a-token", key="--token-file"):
        open_client(None, tmp_path / "token")


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("", {}),
        ("gpu=h200,gpus=8", {"gpu": "h200", "gpus": 8}),
        ("label=a, label=b,nodes=2", {"labels": ["a", "b"], "nodes": 2}),
        ("memory=80,whole-node", {"memory_gib": 80, "whole_node": True}),
    ],
)
def test_needs_are_read(text: str, needs: dict[str, Any]) -> None:
    assert read_needs(text) == needs


@pytest.mark.parametrize("text", ["gpus=many", "gpus", "gpu=", "whole-node=1", "label="])
def test_needs_that_are_badly_written_are_refused(text: str) -> None:
    with refused("invalid-need", key="--machines", value=text):
        read_needs(text)


def test_an_unknown_need_is_refused_with_the_nearest() -> None:
    with refused("unknown-need", key="--machines", value="gpuss", suggestion="gpus"):
        read_needs("gpuss=8")


def test_the_beginning_of_an_id_is_enough() -> None:
    jobs = {"jobs": [{"id": "abc1"}, {"id": "abd2"}]}
    with server((200, {}, jobs)) as (url, _):
        client = Client(url)
        assert [client.job(text) for text in ("abc", "abd2", "last", "zzz")] == ["abc1", "abd2", "abc1", "zzz"]
        with refused("ambiguous-job", value="ab"):
            client.job("ab")


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_waiting_ends_as_the_job_does(state: str, code: int) -> None:
    ended = JOB | {"state": state, "followers": [], "progress": {}, "failure": None, "run_id": "run-1", "waits_for": ""}
    with server((201, {}, JOB), (503, {"Retry-After": "0"}, _error("restarting")), (200, {}, ended)) as (url, _):
        done = CliRunner().invoke(submit_verb.command, ["gemm", "--wait", "--leader", url])
    assert (done.exit_code, f"{state} - run run-1" in done.output) == (code, True), done.output


def test_a_suite_that_is_no_json_is_refused(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: x\ncases: [{benchmark: gemm, size: .nan}]\n")
    with refused("not-json"):
        CliRunner().invoke(submit_verb.command, [str(suite), "--leader", "http://127.0.0.1:9"], catch_exceptions=False)

"""A leader as people start it: jobs from the command line, tokens, and a leader that is killed and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.store import open_store
from support.cli import GENEROUS, Sandbox

pytestmark = pytest.mark.slow


@contextmanager
def leader(sandbox: Sandbox, *arguments: str, end: int = signal.SIGTERM) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`paceline leader`, until it is ended by this signal; gives its process and its URL."""
    process = sandbox.start("leader", *(arguments or ("--port", "0")))
    try:
        yield process, _url(process)
    finally:
        if process.poll() is None:
            process.send_signal(end)
        process.communicate(timeout=GENEROUS)


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Leading at "):
            return line.split()[-1]
    pytest.fail(f"no leader: {process.communicate()[1]}")


def ask(url: str, path: str, token: str | None = None) -> Any:
    request = urllib.request.Request(f"{url}/api/v1/{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        data = answer.read()
    return json.loads(data) if answer.headers["content-type"] == "application/json" else data.decode()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + GENEROUS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.1)


def submitted(sandbox: Sandbox, url: str, *arguments: str) -> str:
    done = sandbox.ask("submit", *arguments, "--leader", url, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])


def test_a_job_from_the_command_line_runs_and_shows_its_report(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": "20ms"}, {"benchmark": "nap", "duration": "30ms"})
    with leader(sandbox) as (process, url):
        here = {"PACELINE_LEADER": url}
        done = sandbox.ask("submit", suite, "--tag", "night", "--wait", env=here)
        assert done.returncode == 0, done.stderr
        assert "succeeded - run " in done.stdout
        listed = json.loads(sandbox.ask("jobs", "--json", env=here).stdout)
        assert [(job["name"], job["state"]) for job in listed] == [("suite", "succeeded")]
        assert "succeeded" in sandbox.ask("jobs", "--state", "succeeded", env=here).stdout
        told = sandbox.ask("logs", "last", "--follow", env=here)
        assert told.stdout.count("ok after") == 2
        page = ask(url, f"runs/{listed[0]['run_id']}/report")
        assert "<html" in page
        assert listed[0]["run_id"] in page
        failed = sandbox.ask("submit", "raises", "--wait", env=here)
        assert failed.returncode == 1
        assert "failed (cases: 1 of 1 cases did not succeed" in failed.stdout
        late = sandbox.suite({"benchmark": "nap", "duration": "300s", "timeout": "1s"}, name="late.yaml")
        failed = sandbox.ask("submit", late, "--wait", env=here)
        assert (failed.returncode, "failed (timeout: " in failed.stdout) == (1, True)
        assert "What helps: give the suite's entries a longer `timeout`" in failed.stdout
        table = sandbox.ask("jobs", env=here).stdout
        assert "timeout: 1 of 1 cases did not succeed" in table
        assert "\ntimeout: give the suite's entries a longer `timeout`" in table
        refused = sandbox.ask("submit", "nap", "--set", "duratoin=1s", env=here)
        assert (refused.returncode, "did you mean 'duration'" in refused.stderr) == (2, True)
    assert process.returncode == 0
    stored = sandbox.load(listed[0]["run_id"])
    assert (stored.all_ok, stored.run.tags) == (True, ["night"])
    assert len(stored.records) == 2
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_a_leader_killed_in_the_middle_loses_nothing_and_counts_nothing_twice(sandbox: Sandbox) -> None:
    suite = sandbox.suite(*({"benchmark": "nap", "duration": "1s", "steps": n} for n in (1, 2, 3)))
    with leader(sandbox, end=signal.SIGKILL) as (_, url):
        job = submitted(sandbox, url, suite)
        waiting = submitted(sandbox, url, "nap", "--set", "duration=20ms")
        until(lambda: ask(url, f"jobs/{job}")["state"] == "running", "the job runs")
    port = url.rpartition(":")[2]
    with leader(sandbox, "--port", port) as (_, again):
        assert again == url
        until(lambda: ask(url, f"jobs/{job}")["state"] == "succeeded", "the job has ended")
        until(lambda: ask(url, f"jobs/{waiting}")["state"] == "succeeded", "the other has ended")
        shown = ask(url, f"jobs/{job}")
    kinds = [entry["kind"] for entry in shown["history"]]
    assert (kinds[-1], kinds.count("ended")) == ("ended", 1)
    with open_store(sandbox.store) as store:
        assert [len(store.attempts(shown["run_id"], index)) for index in range(3)] == [1, 1, 1]
        assert len(store.runs(None)) == len(shown["run_ids"]) + 1
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_what_runs_goes_on_while_nobody_leads(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": "1s", "steps": 2})
    with leader(sandbox) as (process, url):
        job = submitted(sandbox, url, suite)
        until(lambda: ask(url, f"jobs/{job}")["state"] == "running", "the job runs")
    assert process.returncode == 0
    assert sandbox.processes(), "it is measured by a process of its own"
    with leader(sandbox) as (_, url):
        until(lambda: ask(url, f"jobs/{job}")["state"] == "succeeded", "the job has ended")
        assert ask(url, f"jobs/{job}")["attempt"] == 1


@pytest.mark.long
def test_a_running_job_is_cancelled(sandbox: Sandbox) -> None:
    with leader(sandbox) as (_, url):
        job = submitted(sandbox, url, "hang")
        until(lambda: ask(url, f"jobs/{job}")["state"] == "running", "the job runs")
        assert "being stopped" in sandbox.ask("cancel", job[:6], "--leader", url).stdout
        until(lambda: ask(url, f"jobs/{job}")["state"] == "cancelled", "the job is cancelled")
        assert "is cancelled" in sandbox.ask("cancel", job, "--leader", url).stdout
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_tokens_let_people_in(sandbox: Sandbox) -> None:
    made = sandbox.ask("token", "create", "ann", "--scope", "submit")
    token = made.stdout.strip()
    assert made.returncode == 0
    assert token not in made.stderr
    with leader(sandbox) as (_, url):
        here = {"PACELINE_LEADER": url}
        refused = sandbox.ask("submit", "nap", env=here)
        assert (refused.returncode, "paceline token create" in refused.stderr) == (2, True)
        taken = sandbox.ask("submit", "nap", "--set", "duration=20ms", env=here | {"PACELINE_TOKEN": token})
        assert taken.returncode == 0, taken.stderr
        (sandbox.work / "token").write_text(token)
        listed = sandbox.ask("jobs", "--json", "--token-file", "token", env=here)
        assert [job["submitted_by"] for job in json.loads(listed.stdout)] == ["ann"]
        assert "ann" in sandbox.ask("token", "list").stdout
        assert sandbox.ask("token", "revoke", "ann").returncode == 0
        until(
            lambda: sandbox.ask("jobs", "--token-file", "token", env=here).returncode == 2, "the token no longer holds"
        )


@pytest.mark.long
def test_a_wide_door_needs_a_token_and_tls_keeps_it_secret(sandbox: Sandbox) -> None:
    wide = sandbox.ask("leader", "--host", "0.0.0.0", "--port", "0")
    assert (wide.returncode, "paceline token create NAME --scope submit" in wide.stderr) == (2, True)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=sandbox.work, check=True, capture_output=True,
    )  # fmt: skip
    secure = ("--port", "0", "--tls-cert", "cert.pem", "--tls-key", "key.pem", "--token-file", "secret")
    with leader(sandbox, *secure) as (_, url):
        assert url.startswith("https://127.0.0.1:")
        assert (sandbox.work / "secret").stat().st_mode & 0o077 == 0
        arguments = ("jobs", "--leader", url, "--token-file", "secret")
        assert "not trusted" in sandbox.ask(*arguments).stderr
        trusting = sandbox.ask(*arguments, env={"SSL_CERT_FILE": str(sandbox.work / "cert.pem")})
        assert (trusting.returncode, "no such jobs" in trusting.stdout) == (0, True), trusting.stderr


def test_a_second_leader_and_an_absent_one_are_told_in_one_line(sandbox: Sandbox) -> None:
    with leader(sandbox) as (_, url):
        second = sandbox.ask("leader", "--port", "0")
        assert (second.returncode, "another leader uses the store" in second.stderr) == (2, True)
        other = sandbox.ask("leader", "--port", url.rpartition(":")[2], "--store", str(Path("other.db")))
        assert (other.returncode, "--port 0" in other.stderr) == (2, True)
    absent = sandbox.ask("jobs", "--leader", url)
    assert (absent.returncode, len(absent.stderr.splitlines())) == (2, 1)
    assert "paceline leader" in absent.stderr


def test_a_terminal_interrupt_ends_a_leader_cleanly(sandbox: Sandbox) -> None:
    with leader(sandbox, end=signal.SIGINT) as (process, _):
        assert os.getpgid(process.pid) == process.pid
    assert process.returncode == 0

"""What a peer of the load generator costs is told without what its start costs, and never from a run that failed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.null_server import Behaviour, running

guidellm = pytest.importorskip("bench.guidellm", reason="is found from the repository: python -m pytest")

CPU = min(os.sched_getaffinity(0))

# Spends 1.5 s of CPU time on starting, and 0.5 ms on each request, of which it sends one.
PEER = """
import json, sys, time, urllib.request

def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def option(name, key):
    words = dict(word.split("=", 1) for word in sys.argv[sys.argv.index(name) + 1].split(","))
    return words[key]

spend(1.5)
count = int(option("--constraint", "count"))
with urllib.request.urlopen(option("--backend", "target") + option("--backend", "request_format"), b"{}") as answer:
    assert json.load(answer)["choices"][0]["message"]["content"]
spend(count * 0.0005)
made = {"requests_made": {"successful": count - LOST}}
with open(option("--output", "path"), "w") as file:
    json.dump({"benchmarks": [{"scheduler_metrics": made}]}, file)
"""


def environment(folder: Path, lost: int = 0) -> Path:
    """One that holds a program which takes what guidellm takes."""
    path = folder / "bin" / "guidellm"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nLOST = {lost}\n{PEER}")
    path.chmod(0o755)
    return folder


def test_the_start_of_a_peer_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(guidellm.PEERS, str(environment(tmp_path)))
    program = guidellm.program()
    assert program is not None
    with running(Behaviour(chats=True)) as endpoint:
        found = guidellm.per_cpu_second(program, endpoint, 4, CPU)
    assert 1000 < found < 8000  # 2,000 are what it was made for; with its start it would be 850


def test_requests_without_an_answer_are_no_measurement(tmp_path: Path) -> None:
    program = environment(tmp_path, lost=1) / "bin" / "guidellm"
    with running(Behaviour(chats=True)) as endpoint, pytest.raises(ValueError, match="200 requests of guidellm 199"):
        guidellm.per_cpu_second(program, endpoint, 4, CPU)


def test_an_environment_without_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guidellm.PEERS, raising=False)
    assert guidellm.program() is None
    monkeypatch.setenv(guidellm.PEERS, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="install guidellm into that environment"):
        guidellm.program()

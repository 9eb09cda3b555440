"""Two sides measured in alternation, each time in fresh processes, until the rounds have decided."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support.ceiling import remember_the_ceiling
from support.cli import Sandbox, events
from support.embedded import Doubling, running
from support.repository import commit, repository


def test_parameters_of_a_benchmark_are_compared_round_by_round(sandbox: Sandbox) -> None:
    done = sandbox.ask("ab", "duration=20ms", "duration=60ms", "--rounds", "2", "--", "run", "nap", "--steps", "4")
    assert done.returncode == 3, done.stdout + done.stderr
    run = sandbox.load()
    assert [record.case.title[-2] for record in run.records] == list("ABBA")
    assert [record.case.repeat for record in run.records] == [1, 1, 2, 2]
    assert (run.run.name, run.run.status) == ("ab duration=20ms duration=60ms", "finished")
    assert "B (duration=0.06) against A (duration=0.02)" in done.stdout
    assert "nap steps=4: cannot be decided after 2 rounds: it takes at least 5 rounds." in done.stdout
    assert "cannot be decided from 2 rounds" in " ".join(done.stdout.split())
    again = sandbox.ask("compare", "last", "--json")
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["paired"]
    (row,) = document["comparisons"][0]["rows"]
    assert row["ratio"] > 1.5  # a nap takes its time at least, and the longer one three times that
    assert row["reference_parts"] == 2


def test_two_commits_of_a_repository_are_compared(sandbox: Sandbox) -> None:
    folder = repository(sandbox.work)
    commit(folder, {"bench.py": "print('took 30 ms')"})
    commit(folder, {"bench.py": "print('took 31 ms')"})
    (folder / "bench.py").write_text("raise SystemExit(1)")  # what is not committed does not count
    words = ("--metric-from", "took ([0-9]+)", "--", "python3", "bench.py")
    done = sandbox.ask("ab", "HEAD~1", "HEAD", "--json", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    *_, end = events(done.stdout)
    assert (end["event"], end["ended"]) == ("ab_ended", "decided")
    assert end["cases"][0]["decision"] == "worse"
    assert end["cases"][0]["low"] > 1.0
    # The working tree is a side, too, and fails as it is.
    broken = sandbox.ask("ab", "HEAD", ".", *words)
    assert broken.returncode == 1
    assert "it exited with 1" in broken.stderr


def test_two_values_of_a_variable_are_compared(sandbox: Sandbox) -> None:
    sandbox.write("pause.py", "import os; print('took', os.environ['PAUSE'])")
    words = ("--metric-from", "took (.*)", "--", "python3", "pause.py")
    done = sandbox.ask("ab", "PAUSE=0.15", "PAUSE=0.03", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "command python3 pause.py: B is 4.99x to 5.01x lower in figure" in done.stdout


def test_two_commands_are_compared_by_what_they_print(sandbox: Sandbox) -> None:
    done = sandbox.ask("ab", "echo speed 100", "echo speed 101", "--metric-from", "speed (?P<speed>[0-9.]+)",
                       "--higher-is-better", "--within", "2%")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "any difference larger than 2.0 % in speed is ruled out: B / A is 1.0" in done.stdout
    worse = sandbox.ask("ab", "echo speed 101", "echo speed 100", "--metric-from", "speed ([0-9.]+)",
                        "--higher-is-better", "--within", "0.5%")  # fmt: skip
    assert worse.returncode == 1, worse.stdout + worse.stderr
    assert "B is lower by " in worse.stdout


@pytest.mark.long
@pytest.mark.alone  # requests must be sent in time
def test_two_servers_are_compared_and_named_by_their_addresses(sandbox: Sandbox) -> None:
    remember_the_ceiling(sandbox.environment()["XDG_DATA_HOME"])
    np.savez(sandbox.work / "x.npz", x=np.ones((4, 3), np.float32))
    load = ("--load.rate", "30", "--load.duration", "2s", "--warm-up", "300ms", "--requests.dataset", "x.npz")
    served = ("run", "serve", "--model", "generated/fc:layers=1,width=16", "--server.model", "m", *load)
    with running(Doubling()) as quick, running(Doubling(wait=lambda: time.sleep(0.08))) as slow:
        one, other = (f"http://127.0.0.1:{server.port}" for server in (quick, slow))
        done = sandbox.run("ab", one, other, "--rounds", "15", "--", *served, timeout=600)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"url model=m dataset=x.npz poisson 30/s: B is [^:]*slower[^:]* in latency p90, after", text), text
    assert f"B (server.url={other}) against A (server.url={one})" in text
    assert f"the sides differ in server.url ({one}, {other})" in text
    titles = {record.case.title for record in sandbox.load().records}
    assert all(title.count("127.0.0.1") == 1 for title in titles)


def test_rounds_that_do_not_suffice_leave_it_undecided(sandbox: Sandbox) -> None:
    done = sandbox.ask("ab", "echo 1", "echo 2", "--metric-from", "([0-9]+)", "--rounds", "3")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "cannot be decided after 3 rounds: it takes at least 5 rounds." in done.stdout


def test_a_commit_that_does_not_build_is_said_with_the_last_lines_of_its_build(sandbox: Sandbox) -> None:
    folder = repository(sandbox.work)
    commit(folder, {"build.sh": "touch built", "run.sh": "test -e built"})
    commit(folder, {"build.sh": "echo no such header >&2; exit 7"})
    words = ("--build", "sh build.sh", "--rounds", "2", "--", "sh", "run.sh")
    done = sandbox.ask("ab", "HEAD~1", "HEAD", *words)
    assert done.returncode == 2
    assert "B (HEAD) could not be built (exit code 7)" in done.stderr
    assert done.stderr.rstrip().endswith("no such header")
    fine = sandbox.ask("ab", "HEAD~1", "HEAD~1", *words)
    assert fine.returncode == 3, fine.stderr
    assert "building" not in fine.stdout  # it is in the cache


def test_a_project_is_installed_into_an_environment_of_its_commit(sandbox: Sandbox) -> None:
    folder = repository(sandbox.work)
    project = {
        "pyproject.toml": '[project]\nname = "tiny"\nversion = "1"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND,
        "src/tiny.py": "COST = 1.0",
    }
    commit(folder, project)
    commit(folder, {"src/tiny.py": "COST = 2.0"})
    program = "import tiny, numpy; print('cost', tiny.COST)"  # with the packages that are here already
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = sandbox.ask("ab", "HEAD~1", "HEAD", "--metric-from", "cost (.*)", "--json", "--", "python3", "-c", program,
                       env={"PATH": path})  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert events(done.stdout)[-1]["cases"][0]["ratio"] == pytest.approx(2.0)


def test_what_was_interrupted_goes_on(sandbox: Sandbox) -> None:
    words = ("sleep 0.05", "sleep 0.051", "--rounds", "100", "--within", "0.001%")
    process = sandbox.start("ab", *words)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round   2"):
            break
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    run = sandbox.load()
    assert run.run.status == "interrupted"
    assert f"paceline ab --resume {run.run.id} 'sleep 0.05'" in stderr
    measured = len(run.records)
    assert measured >= 4
    again = sandbox.ask("ab", "--resume", run.run.id, *words[:2], "--rounds", str(measured // 2 + 2), *words[4:])
    assert again.returncode == 3, again.stdout + again.stderr
    rounds = sandbox.load(run.run.id)
    assert rounds.run.status == "finished"
    assert [record.case.index for record in rounds.records] == list(range(2 * (measured // 2 + 2)))
    other = sandbox.ask("ab", "--resume", run.run.id, "sleep 0.05", "sleep 0.06")
    assert other.returncode == 2
    refused = sandbox.ask("run", "--resume", run.run.id)
    assert refused.returncode == 2
    assert "paceline ab --resume" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("one", "two", "--", "true"), "are not two of one kind"),
        (("env:A=1", "set:b=2", "--", "true"), "two of one kind"),
        (("A=1", "A=2"), "write it after --"),
        (("b=1", "b=2", "--", "absent-program"), "'absent-program' cannot be started"),
        (("duration=1ms", "duratio=2ms", "--", "run", "nap"), "B (duratio=2ms): --set duratio: unknown key 'duratio'"),
        (("steps=4", "steps=[4, 5]", "--", "run", "nap"), "the sides make 1 and 2 cases"),
        (("duration=1ms", "duration=2ms", "--", "run", "nap", "--repeat", "2"), "--repeat does not go with ab"),
        (("A=1", "A=2", "--rounds", "5", "run", "nap", "--steps", "3"), "follows --"),
        (("http://a:1", "http://b:1", "--", "run", "serve", "--load.rate", "9"), "write --server.model NAME after run"),
        (("echo 1", "echo 2", "--budget", "soon"), "--budget: 'soon' is not a duration"),
        (("echo 1", "echo 2", "--metric-from", "x(.*)"), "printed nothing that matches 'x(.*)'"),
    ],
)
def test_what_cannot_be_compared_is_refused(sandbox: Sandbox, words: tuple[str, ...], said: str) -> None:
    done = sandbox.ask("ab", *words)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "There are no runs yet" in sandbox.ask("results").stdout


BACKEND = """
import pathlib, zipfile


def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "tiny-1-py3-none-any.whl"
    info = "tiny-1.dist-info"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        wheel.writestr("tiny.pth", str(pathlib.Path("src").absolute()))
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name


build_wheel = build_editable
"""

"""One command measures on every host at once: real ssh into network namespaces, and what becomes of bad ones."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.core.record import Outcome
from paceline.core.run import RunRecords
from paceline.store import open_store
from support.cli import MARK, Sandbox, events
from support.namespaces import cpu_quota, ip, ssh_hosts
from support.watching import Watched

NO_HOSTS = ["--remote-shell", "env HOST={host}"]
NAPS = [{"benchmark": "nap", "steps": steps, "duration": "100ms"} for steps in (2, 3, 4)]
SLOW = {"PACELINE_TEST_NAP_FACTOR": "150"}  # longer than any start of a process takes, on whichever machine this runs


def plan_of(sandbox: Sandbox) -> dict[str, object]:
    """What is kept of the only run over a fleet."""
    (path,) = (sandbox.folder / "data" / "paceline" / "fleets").iterdir()
    plan: dict[str, object] = json.loads(path.read_text())
    return plan


def runs_of(sandbox: Sandbox) -> dict[str, RunRecords]:
    """The run of each host that has one."""
    runs = plan_of(sandbox)["runs"]
    assert isinstance(runs, dict)
    with open_store(sandbox.store) as store:
        return {host: store.load(run_id) for host, run_id in runs.items()}


@pytest.mark.long
def test_a_slow_an_unreachable_and_a_dying_host_are_named_and_resuming_finishes(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    mark = {MARK: sandbox.mark}
    with ssh_hosts(tmp_path / "ssh", [{**mark}, mark | SLOW, {**mark}, mark | SLOW]) as (hosts, shell):
        good, slow, unreachable, dying = hosts
        ip("link", "set", unreachable.outer, "down")
        names = sandbox.write("hosts.txt", "".join(f"{host.address}\n" for host in hosts))
        words = ["--each", "--hosts", names, "--remote-shell", shell, "--tag", "check"]
        watched = Watched.start(sandbox, "run", sandbox.suite(*NAPS), *words, "--json")
        assert watched.wait_for("node", node=dying.address, state="measuring"), watched.errors
        assert watched.wait_for("case_ended", node=good.address)
        dying.kill()
        assert watched.finish_within(400) == 1, watched.errors
        (end,) = [event for event in watched.said if event["event"] == "fleet_ended"]
        assert end["nodes"] == {
            good.address: "finished",
            slow.address: "finished",
            unreachable.address: "unreachable",
            dying.address: "lost",
        }
        causes = {event["node"]: event["cause"] for event in watched.said if event.get("cause")}
        assert f"{unreachable.address} cannot be used" in causes[unreachable.address]
        assert "it was lost: its process ended with code 255" in causes[dying.address]
        assert set(end["slow"]) == {slow.address}
        assert "times as long as on the others" in end["slow"][slow.address]
        runs = runs_of(sandbox)
        assert set(runs) == {good.address, slow.address, dying.address}
        assert all({"check", end["fleet"]} <= set(run.run.tags) for run in runs.values())
        assert runs[good.address].all_ok
        assert runs[dying.address].missing
        assert runs[dying.address].run.status == "interrupted"

        dying.variables.pop("PACELINE_TEST_NAP_FACTOR")
        dying.serve()
        ip("link", "set", unreachable.outer, "up")
        again = sandbox.run("run", "--resume", end["fleet"], timeout=400)
        assert again.returncode == 0, again.stdout + again.stderr
        assert "4 of 4 nodes measured everything." in again.stdout
        finished = runs_of(sandbox)
        assert set(finished) == {host.address for host in hosts}
        assert all(run.all_ok and len(run.records) == len(NAPS) for run in finished.values())
        assert all(finished[host].run.id == run.run.id for host, run in runs.items())
        assert [record.attempt for record in finished[good.address].records] == [1] * len(NAPS)
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_node_check_names_a_host_without_cpu_time_one_out_of_reach_and_one_that_dies(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """What node-check measures without torch; the slow host has a twentieth of a core from its first case on."""
    mark = {MARK: sandbox.mark}
    with (
        cpu_quota(f"paceline-{tmp_path.name}", 0.05) as quota,
        ssh_hosts(tmp_path / "ssh", [{**mark} for _ in range(5)]) as (hosts, shell),
    ):
        *good, slow, dying, unreachable = hosts
        ip("link", "set", unreachable.outer, "down")
        names = sandbox.write("hosts.txt", "".join(f"{host.address}\n" for host in hosts))
        only = ["--only", "memory-latency", "--only", "tcp loopback", "--set", "memory_latency.sizes=[256KiB,16MiB]"]
        words = ["--each", "--hosts", names, "--remote-shell", shell]
        watched = Watched.start(sandbox, "run", "node-check", *only, *words, "--json")
        assert watched.wait_for("node", node=slow.address, state="measuring"), watched.errors
        for process in slow.processes:
            with suppress(OSError):
                quota.write_text(str(process.pid))
        assert watched.wait_for("node", node=dying.address, state="measuring"), watched.errors
        dying.kill()
        assert watched.finish_within(600) == 1, watched.errors
        (end,) = [event for event in watched.said if event["event"] == "fleet_ended"]
        states = {host.address: "finished" for host in (*good, slow)}
        assert end["nodes"] == states | {dying.address: "lost", unreachable.address: "unreachable"}
        assert slow.address in end["slow"]  # the others share the cores that are left

        for process in slow.processes:  # it is repaired
            with suppress(OSError):
                (quota.parent.parent / "cgroup.procs").write_text(str(process.pid))
        dying.serve()
        ip("link", "set", unreachable.outer, "up")
        again = sandbox.run("run", "--resume", end["fleet"], timeout=600)
        assert again.returncode == 0, again.stdout + again.stderr
        assert "5 of 5 nodes measured everything." in again.stdout
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_every_host_has_a_run_of_its_own_with_cases_of_several_ranks(sandbox: Sandbox) -> None:
    suite = sandbox.suite(
        NAPS[0],
        {"benchmark": "collective", "target": "cpu", "ranks": 2, "sizes": "1KiB", "budget": "10ms", "warm_up": "1ms"},
    )
    done = sandbox.run("run", suite, "--each", "--hosts", "one,two", *NO_HOSTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 nodes measured everything." in done.stdout
    for run in runs_of(sandbox).values():
        assert [(record.outcome, record.case.ranks) for record in run.records] == [(Outcome.OK, 1), (Outcome.OK, 2)]
        assert run.run.environment.is_known
    assert sandbox.left_behind() == []


def test_a_case_that_fails_on_a_host_is_named(sandbox: Sandbox) -> None:
    done = sandbox.run("run", sandbox.suite(NAPS[0], {"benchmark": "raises"}), "--each", "--hosts", "one", *NO_HOSTS)
    assert done.returncode == 1
    assert "0 of 1 nodes measured everything." in done.stdout
    assert "one: raises" in done.stdout


def test_resuming_goes_on_with_the_hosts_that_the_fleet_has(sandbox: Sandbox, by_name: list[str]) -> None:
    first = sandbox.ask("run", sandbox.suite(NAPS[0]), *by_name, "--hosts", "good,none")
    assert first.returncode == 1, first.stdout + first.stderr
    before = plan_of(sandbox)
    for hosts in ("good", "others,more"):
        narrowed = sandbox.ask("run", "--resume", str(before["id"]), "--hosts", hosts)
        assert narrowed.returncode == 2
        assert "goes on with its own hosts" in narrowed.stderr
    assert plan_of(sandbox) == before
    again = sandbox.ask("run", "--resume", str(before["id"]))
    assert again.returncode == 1
    assert "1 of 2 nodes measured everything." in again.stdout


def test_resuming_with_another_store_is_refused_and_makes_none(sandbox: Sandbox) -> None:
    first = sandbox.ask("run", sandbox.suite(NAPS[0]), "--each", "--hosts", "one,two", *NO_HOSTS)
    assert first.returncode == 0, first.stdout + first.stderr
    fleet, missing = str(plan_of(sandbox)["id"]), sandbox.folder / "nowhere" / "zz.db"
    typo = sandbox.ask("run", "--resume", fleet, "--store", str(missing))
    assert typo.returncode == 2
    assert "there is no store" in typo.stderr
    assert not missing.parent.exists()

    other = str(sandbox.folder / "other.db")
    assert sandbox.ask("run", sandbox.suite(NAPS[0]), "--no-report", "--store", other).returncode == 0
    elsewhere = sandbox.ask("run", "--resume", fleet, "--store", other)
    assert elsewhere.returncode == 2
    assert elsewhere.stdout == ""
    assert f"has none of the 2 runs of {fleet}: name the one that they went to with --store" in elsewhere.stderr


def test_a_host_whose_run_was_deleted_measures_anew_when_the_fleet_is_resumed(sandbox: Sandbox) -> None:
    first = sandbox.ask("run", sandbox.suite(NAPS[0]), "--each", "--hosts", "one,two", *NO_HOSTS)
    assert first.returncode == 0, first.stdout + first.stderr
    before = {host: run.run.id for host, run in runs_of(sandbox).items()}
    assert sandbox.ask("results", "delete", before["one"]).returncode == 0
    again = sandbox.ask("run", "--resume", str(plan_of(sandbox)["id"]))
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"one: the store does not have its run {before['one']} any more: it measures anew" in again.stdout
    assert "2 of 2 nodes measured everything." in again.stdout
    after = runs_of(sandbox)
    assert after["one"].all_ok
    assert after["one"].run.id != before["one"]
    assert after["two"].run.id == before["two"]


def test_a_host_that_has_fewer_devices_than_a_config_asks_for_says_so(sandbox: Sandbox) -> None:
    pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")
    mode = {"name": "local", "proc_num": 64, "prefix": "CUDA_VISIBLE_DEVICES={proc_rank}"}
    parameters = {"m": 16, "n": 16, "k": 16, "num_steps": 3}
    entry = {"enable": True, "frameworks": ["pytorch"], "modes": [mode], "parameters": parameters}
    sandbox.write("many.yaml", json.dumps({"superbench": {"benchmarks": {"matmul": entry}}}))
    said = "one: it does not measure as the config says: matmul, mode local, proc_num, 64: "
    done = sandbox.ask("run", "many.yaml", "--each", "--hosts", "one", *NO_HOSTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
    strict = sandbox.ask("run", "many.yaml", "--each", "--hosts", "one", "--strict", *NO_HOSTS)
    assert strict.returncode == 1
    assert said.replace("one: ", "one: refused: --strict: ", 1) in strict.stdout


def test_an_interrupt_ends_everything_everywhere_and_says_how_to_go_on(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "hang", "timeout": "100s"})
    until = ["--until-defect", "--store", "other.db"]
    watched = Watched.start(sandbox, "run", suite, "--each", "--json", "--hosts", "one,two", *until, *NO_HOSTS)
    for host in ("one", "two"):
        assert watched.wait_for("node", node=host, state="measuring")
    watched.process.send_signal(signal.SIGINT)
    assert watched.finish() == 130
    again = f"{plan_of(sandbox)['id']} --store other.db --until-defect"
    assert f"go on with: paceline run --resume {again}" in watched.errors
    assert sandbox.left_behind() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nap", "--each"], "--each goes with --hosts"),
        (["nap", "--each", "--hosts", "a", "--affinity", "0"], "--affinity does not go with --each"),
        (["nap", "--each", "--hosts", "a", "--profile"], "--profile does not go with --each"),
        (["nap", "--each", "--hosts", "a", "--explain"], "--explain does not go with --each"),
        (["nap", "--each", "--hosts", "a", "--dry-run"], "--dry-run does not go with --each"),
        (["nap", "--each", "--hosts", "a", "--remote-shell", "ssh there"], "for the name of the host"),
        (["nap", "--each", "--hosts", "a", "--steps", "none"], "steps"),
        (["--resume", "fleet-never"], "no run over a fleet has the name 'fleet-never' here"),
    ],
)
def test_what_does_not_fit_is_refused(sandbox: Sandbox, words: list[str], message: str) -> None:
    done = sandbox.ask("run", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not sandbox.store.exists()


def test_events_name_their_node(sandbox: Sandbox) -> None:
    done = sandbox.run("run", sandbox.suite(NAPS[0]), "--each", "--json", "--hosts", "one,two", *NO_HOSTS)
    assert done.returncode == 0, done.stderr
    said = events(done.stdout)
    assert [event["event"] for event in (said[0], said[-1])] == ["fleet_started", "fleet_ended"]
    assert {event["node"] for event in said[1:-1]} == {"one", "two"}
    assert sum(event["event"] == "case_ended" for event in said) == 2


# A host named 'slow' takes sixty times as long, and one named 'none' cannot be entered.
BY_NAME = """#!/bin/sh
[ "$1" = slow ] && export PACELINE_TEST_NAP_FACTOR=60
[ "$1" = none ] && echo "nobody answers" >&2 && exit 255
shift
exec "$@"
"""
TEN_TIMES = "rules: {slow: {check: variance, worse_by: 900 %}}"  # a busy machine may oversleep, but not by so much


@pytest.fixture
def by_name(sandbox: Sandbox) -> list[str]:
    """Options that enter hosts by their name."""
    script = sandbox.work / sandbox.write("enter", BY_NAME)
    script.chmod(0o755)
    return ["--each", "--remote-shell", f"{script} {{host}}"]


def test_a_check_ends_early_on_the_host_that_is_accused_and_resuming_measures_the_rest(
    sandbox: Sandbox, by_name: list[str]
) -> None:
    naps = [{"benchmark": "nap", "steps": steps, "duration": "100ms"} for steps in range(1, 7)]
    rules = sandbox.write("rules.yaml", TEN_TIMES)
    words = [*by_name, "--hosts", "one,two,three,slow", "--until-defect", "--rules", rules]
    done = sandbox.run("run", sandbox.suite(*naps), *words)
    assert done.returncode == 1
    assert "3 of 4 nodes measured everything." in done.stdout
    assert "slow is accused: nap" in done.stdout
    runs = runs_of(sandbox)
    assert all(len(runs[host].records) == len(naps) for host in ("one", "two", "three"))
    assert 0 < len(runs["slow"].records) < len(naps)
    assert runs["slow"].run.status == "finished"

    again = sandbox.run("run", "--resume", str(plan_of(sandbox)["id"]), *NO_HOSTS, timeout=200)  # it is repaired
    assert again.returncode == 0, again.stdout + again.stderr
    assert "4 of 4 nodes measured everything." in again.stdout
    assert [record.attempt for record in runs_of(sandbox)["slow"].records] == [1] * len(naps)


def test_a_host_that_was_accused_before_measures_nothing_more_where_that_is_asked_again(
    sandbox: Sandbox, by_name: list[str]
) -> None:
    naps = [{"benchmark": "nap", "steps": steps, "duration": "2s"} for steps in range(1, 4)]
    suite = sandbox.suite({"benchmark": "raises"}, *naps)
    first = sandbox.run("run", suite, *by_name, "--hosts", "one", "--until-defect", "--json")
    assert first.returncode == 1
    (accused,) = [event for event in events(first.stdout) if event["event"] == "accused"]
    assert (accused["node"], accused["why"].partition(":")[0]) == ("one", "raises")
    assert events(first.stdout)[-1]["nodes"] == {"one": "accused"}
    measured = len(runs_of(sandbox)["one"].records)
    assert measured <= len(naps)
    again = sandbox.run("run", "--resume", str(plan_of(sandbox)["id"]), "--until-defect")
    assert again.returncode == 1
    assert measured <= len(runs_of(sandbox)["one"].records) <= len(naps)

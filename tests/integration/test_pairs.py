"""Every pair of six hosts at a switch, one of them slow and one link slow: both are named, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from support.cli import Sandbox
from support.namespaces import SwitchedHosts, switched_hosts

RATE = "80mbit"


@pytest.fixture(scope="module")
def hosts() -> Iterator[SwitchedHosts]:
    with switched_hosts(6) as made:
        try:
            for name in made.names:
                made.limit(name, RATE)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"tc cannot limit rates here: {error.stderr.strip()}")
        yield made


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("by", ["collective", "tcp"])
def test_a_slow_host_and_a_slow_link_are_named(hosts: SwitchedHosts, sandbox: Sandbox, by: str) -> None:
    first, second, third, *_ = hosts.names
    hosts.limit(third, "40mbit")
    hosts.limit(first, RATE, {second: "20mbit"})
    hosts.limit(second, RATE, {first: "20mbit"})
    sandbox.ask("run", "pairs", *hosts.flags, "--by", by, "--size", "512KiB", "--exchanges", "9", "--no-report")
    (record,) = sandbox.load().records
    assert record.outcome == "ok", record.cause
    slow = [warning.message for warning in record.warnings if warning.kind == "slow"]
    assert len(slow) == 1
    assert slow[0].count("; ") == 1, slow
    node, link = sorted(slow[0].split("; "), reverse=True)
    assert node.startswith(f"node {third} is ")
    assert link.startswith(f"link {first} - {second} is ")
    pairs = [one for one in record.measurements if one.name == "pair_bandwidth" and one.at]
    assert len(pairs) == 15
    rates = {(one.at["one"], one.at["other"]): one.value for one in pairs}
    assert min(rates, key=lambda pair: rates[pair]) == (first, second)


@pytest.mark.long
def test_by_tcp_the_data_crosses_the_network_in_every_pattern(hosts: SwitchedHosts, sandbox: Sandbox) -> None:
    apart = [*hosts.flags, "--by", "tcp", "--size", "64KiB", "--exchanges", "3", "--no-report"]
    sandbox.ask("run", "pairs", *apart, "--pattern", "k-batch,all-to-all", "--batch", "2")
    batches, everybody = sandbox.load().records
    assert (batches.outcome, everybody.outcome) == ("ok", "ok"), (batches.cause, everybody.cause)
    assert (batches.facts["pairs"], batches.facts["rounds"]) == (3, 1)
    assert (everybody.facts["pairs"], everybody.facts["rounds"]) == (15, 1)
    fastest = max(one.value for one in everybody.measurements if one.name == "pair_bandwidth" and one.at)
    assert fastest < 1.5 * 10e6, "no pair is faster than the 80 Mbit/s of its adapters: nothing stays on the loopback"


def test_by_tcp_ranks_of_one_machine_are_pairs_too(sandbox: Sandbox) -> None:
    words = ["--ranks", "3", "--by", "tcp", "--size", "64KiB", "--exchanges", "3", "--streams", "2"]
    sandbox.ask("run", "pairs", *words, "--pattern", "pair-wise,all-to-all", "--no-report")
    pairs, together = sandbox.load().records
    assert (pairs.facts["pairs"], pairs.facts["rounds"]) == (3, 3)
    assert (together.facts["pairs"], together.facts["rounds"]) == (3, 1)
    for record in (pairs, together):
        assert record.outcome == "ok", record.cause
        times = [one for one in record.measurements if one.name == "pair_time"]
        assert [one.count for one in times] == [3, 3, 3]
        assert record.facts["checked"].startswith("bytes are counted")
    assert sandbox.left_behind() == []


def test_without_an_adapter_rdma_says_what_it_takes(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "pairs", "--ranks", "2", "--by", "rdma", "--no-report")
    (record,) = sandbox.load().records
    assert record.outcome == "unsupported"
    assert "no RDMA device" in done.stdout


def test_ranks_of_one_machine_are_pairs_too(sandbox: Sandbox) -> None:
    sandbox.ask("run", "pairs", "--ranks", "3", "--size", "64KiB", "--exchanges", "3", "--no-report")
    (record,) = sandbox.load().records
    assert record.facts["pairs"] == 3
    assert record.facts["rounds"] == 3
    assert record.facts["verdict"] == "not judged: it takes 4 ends to tell a slow link from a slow end"


def test_one_rank_has_no_pair(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "pairs", "--no-report")
    assert "pairs takes several ranks: use --hosts A,B,C,D" in done.stdout

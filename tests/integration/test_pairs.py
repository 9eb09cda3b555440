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
def test_a_slow_host_and_a_slow_link_are_named(hosts: SwitchedHosts, sandbox: Sandbox) -> None:
    first, second, third, *_ = hosts.names
    hosts.limit(third, "40mbit")
    hosts.limit(first, RATE, {second: "20mbit"})
    hosts.limit(second, RATE, {first: "20mbit"})
    sandbox.ask("run", "pairs", *hosts.flags, "--size", "512KiB", "--exchanges", "5", "--no-report")
    (record,) = sandbox.load().records
    assert record.outcome == "ok", record.cause
    slow = [warning.message for warning in record.warnings if warning.kind == "slow"]
    assert len(slow) == 1
    node, link = sorted(slow[0].split("; "), reverse=True)
    assert node.startswith(f"node {third} is ")
    assert link.startswith(f"link {first} - {second} is ")
    pairs = [one for one in record.measurements if one.name == "pair_bandwidth" and one.at]
    assert len(pairs) == 15
    rates = {(one.at["one"], one.at["other"]): one.value for one in pairs}
    assert min(rates, key=lambda pair: rates[pair]) == (first, second)


def test_ranks_of_one_machine_are_pairs_too(sandbox: Sandbox) -> None:
    sandbox.ask("run", "pairs", "--ranks", "3", "--size", "64KiB", "--exchanges", "3", "--no-report")
    (record,) = sandbox.load().records
    assert record.facts["pairs"] == 3
    assert record.facts["rounds"] == 3
    assert record.facts["verdict"] == "not judged: it takes 4 ends to tell a slow link from a slow end"


def test_one_rank_has_no_pair(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "pairs", "--no-report")
    assert "pairs takes several ranks: use --hosts A,B,C,D" in done.stdout

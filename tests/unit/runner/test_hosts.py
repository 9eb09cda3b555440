"""How hosts are written, and how a command gets to them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from paceline.remote.hosts import RemoteShell
from paceline.runner.hosts import AGENT, Host, read_hosts
from support.refused import refused

WORDS = ["-P", "-m", AGENT]


def test_hosts_in_one_word() -> None:
    assert read_hosts("a,me@b:2,[fe80::1]:8") == [Host("a"), Host("me@b", 2), Host("[fe80::1]", 8)]
    assert [host.address for host in read_hosts("a,me@b:2,[fe80::1]:8")] == ["a", "b", "fe80::1"]


def test_hosts_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# the rack\nnode1 slots=4\n\nnode2   slots = 2 # half of it\nnode3\n", encoding="utf-8")
    assert read_hosts(str(path)) == [Host("node1", 4), Host("node2", 2), Host("node3")]


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("", "not-a-host", ""),
        ("a,", "not-a-host", ""),
        ("a b", "not-a-host", "a b"),
        ("a:0", "host-without-ranks", "a:0"),
        ("a:two", "not-a-host", "a:two"),
        ("-oProxyCommand=x", "not-a-host", "-oProxyCommand=x"),
        ("a, -b", "not-a-host", "-b"),
        ("a,b,a", "duplicate-host", "a"),
        ("no/file", "missing-file", "no/file"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(text: str, code: str, value: str) -> None:
    with refused(code, key="--hosts", value=value, where=f"--hosts {text}"):
        read_hosts(text)


def test_ssh_is_given_one_word_that_a_shell_reads_back() -> None:
    python = "/opt/my python/$(bin)/python"
    command = RemoteShell("ssh -p 22 {host}", python).command("me@a", AGENT)
    assert command[:-1] == ["ssh", "-p", "22", "me@a"]
    assert shlex.split(command[-1]) == [python, *WORDS]
    echoed = subprocess.run(["sh", "-c", f"printf '%s\\n' {command[-1]}"], capture_output=True, text=True, check=True)
    assert echoed.stdout.splitlines() == [python, *WORDS]


def test_other_ways_are_given_the_words_as_they_are() -> None:
    command = RemoteShell("ip netns exec {host}", "/opt/my python").command("a", AGENT)
    assert command == ["ip", "netns", "exec", "a", "/opt/my python", *WORDS]


def test_this_machine_is_entered_without_a_remote_shell() -> None:
    assert RemoteShell(python="/python").command("localhost", AGENT) == ["/python", *WORDS]


@pytest.mark.parametrize(
    ("template", "code"), [("ssh", "missing-host"), ("", "missing-host"), ("ssh '{host}", "not-a-command")]
)
def test_a_remote_shell_must_say_where_the_host_goes(template: str, code: str) -> None:
    with refused(code, value=template):
        RemoteShell(template)

"""Environments of servers: made whole or not at all, once by however many ask, with words that help when pip fails."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import zipfile
from pathlib import Path

import pytest

from paceline.core.installing import InstallFailed
from paceline.servers import _environment
from paceline.servers._environment import Requirements, folder_of, install
from support.cli import Sandbox

pytestmark = [pytest.mark.slow]

METADATA = "Metadata-Version: 2.1\nName: tiny-server\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Requirements:
    """A server that pip installs from a file."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    wheel = tmp_path / "tiny_server-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_server.py", "ANSWER = 42\n")
        archive.writestr("tiny_server-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_server-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("tiny_server-1.0.dist-info/RECORD", "")
    return Requirements(server="tiny", packages=(str(wheel),), shown=("tiny-server",))


def started_at(requirements: Requirements, results: multiprocessing.Queue[float]) -> None:
    results.put(install(requirements, lambda _: None).seconds)


@pytest.mark.long
def test_an_environment_is_made_once_and_removed(tiny: Requirements) -> None:
    assert tiny.missing() == "tiny is not installed; run: paceline servers install tiny"
    spawn = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[float] = spawn.Queue()
    both = [spawn.Process(target=started_at, args=(tiny, results)) for _ in range(2)]
    for one in both:
        one.start()
    seconds = sorted(results.get(timeout=300) for _ in both)
    for one in both:
        one.join()
    assert seconds[0] == 0.0 < seconds[1]  # one made it, the other waited
    assert tiny.missing() is None
    assert _environment.versions(tiny.python(), tiny.shown)["tiny-server"] == "1.0"
    asked = subprocess.run([tiny.python(), "-c", "import tiny_server; print(tiny_server.ANSWER)"], capture_output=True)
    assert asked.stdout.strip() == b"42"
    assert "Successfully installed" in (folder_of("tiny") / "install.log").read_text()
    assert _environment.remove("tiny")
    assert not _environment.remove("tiny")
    assert tiny.missing() is not None


@pytest.mark.long
def test_a_failure_tells_the_last_lines_and_leaves_nothing_that_looks_whole(tiny: Requirements) -> None:
    absent = Requirements(server="tiny", packages=("/no/such/wheel-1.0-py3-none-any.whl",), shown=())
    with pytest.raises(InstallFailed) as failed:
        install(absent, lambda _: None)
    assert "the packages of tiny could not be installed (exit code 1)" in str(failed.value)
    assert "/no/such/wheel" in str(failed.value)
    assert str(folder_of("tiny") / "install.log") in str(failed.value)
    assert absent.missing() is not None
    assert install(tiny, lambda _: None).seconds > 0  # and it can be made good
    assert tiny.missing() is None


@pytest.mark.long
def test_torch_is_the_one_that_paceline_runs_with(tiny: Requirements, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch = Requirements(server="tiny", packages=tiny.packages, shown=(), torch=True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9.9+nowhere")
    with pytest.raises(InstallFailed, match=r"torch==9\.9\.9\+nowhere"):
        install(with_torch, lambda _: None)


def test_the_command_lists_what_is_there_and_refuses_what_is_not(sandbox: Sandbox) -> None:
    listed = sandbox.run("servers", "--json")
    assert listed.returncode == 0
    rows = {row["name"]: row for row in json.loads(listed.stdout)["servers"]}
    assert rows["embedded"]["missing"] is None
    assert "paceline servers install mlserver" in rows["mlserver"]["missing"]
    assert "kserve-grpc" in rows["mlserver"]["wires"]
    assert "mlserver is not installed" in sandbox.run("servers").stdout
    for arguments, words in (
        (("install", "mlserve"), "did you mean 'mlserver'?"),
        (("install", "url"), "'url' is not installed by pip"),
        (("remove", "embedded"), "'embedded' is not installed by pip"),
    ):
        refused = sandbox.ask("servers", *arguments)
        assert refused.returncode == 2
        assert words in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert sandbox.run("servers", "remove", "mlserver").stdout == "mlserver: was not installed\n"

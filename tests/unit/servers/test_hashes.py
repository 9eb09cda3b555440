"""What `servers install` installs is what was tested: pip compares every pinned file with its hash."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from paceline.core.installing import InstallFailed
from paceline.servers import _environment
from paceline.servers._environment import Requirements, folder_of, install

PINS = sorted((Path(_environment.__file__).parent / "_pins").glob("*.txt"))


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def a_wheel(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    return path


def tiny(pins: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> Requirements:
    """A server of one package, whose pins have the hash of this content."""
    pins.write_text(f"# pins\ntiny==1.0 \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n")
    monkeypatch.setattr(Requirements, "pins", property(lambda _: pins))
    return Requirements(server="tiny", packages=("tiny==1.0",), shown=("tiny",))


@pytest.mark.parametrize("path", PINS, ids=lambda path: path.stem)
def test_every_pin_has_a_hash(path: Path) -> None:
    entries = path.read_text().replace("\\\n", " ").splitlines()[1:]
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==\S+( +--hash=sha256:[0-9a-f]{64})+", entry), entry


@pytest.mark.slow
def test_a_file_with_another_hash_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = a_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    requirements = tiny(tmp_path / "pins.txt", monkeypatch, wheel.read_bytes() + b"tampered")
    with pytest.raises(InstallFailed, match="DO NOT MATCH THE HASHES"):
        install(requirements, lambda _: None)
    assert not requirements.is_complete()


def test_pinned_files_come_first_and_the_rest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[list[str]] = []

    def note(command: Sequence[str], log: Path, failure: str) -> None:
        steps.append(list(command))

    installed = [{("pip", "26.0")}, {("pip", "26.0"), ("Tiny", "1.0"), ("torch", "2.13.0+cpu")}]
    monkeypatch.setattr(_environment, "run_step", note)
    monkeypatch.setattr(_environment, "_installed", lambda _: installed.pop(0))
    said: list[str] = []
    install(tiny(tmp_path / "pins.txt", monkeypatch, b""), said.append)
    hashed, rest = (step[step.index("--no-input") + 1 :] for step in steps[1:])
    assert hashed == ["--require-hashes", "--no-deps", "--requirement", str(tmp_path / "pins.txt")]
    assert rest == ["--constraint", str(folder_of("tiny") / "pins.txt"), "tiny==1.0"]
    assert (folder_of("tiny") / "pins.txt").read_text() == "tiny==1.0\n"
    assert said[-1] == "without a hash to compare with: torch 2.13.0+cpu"

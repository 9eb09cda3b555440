"""A git repository made in a test."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path


def repository(folder: Path) -> Path:
    """An empty one."""
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "--quiet", "--initial-branch", "main")
    return folder


def commit(folder: Path, files: Mapping[str, str]) -> None:
    """One more commit, with these files changed."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    _git(folder, "add", "--all")
    _git(folder, "-c", "user.name=Test", "-c", "user.email=test@localhost", "commit", "--quiet", "--message", "change")


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)

"""Other people's tools in a test: each in an environment of its own, which is kept for the next time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.docs_markdown import ROOT


@dataclass(frozen=True)
class ToolEnvironment:
    """An environment with some packages, in which this checkout's `paceline` runs, too."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run its interpreter with these arguments."""
        variables = self.variables(env)
        return subprocess.run(
            [str(self.python), *arguments],
            capture_output=True, text=True, check=False, env=variables, cwd=cwd, timeout=timeout,
        )  # fmt: skip

    def variables(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of its processes: this checkout is found, and nothing that a tool is set to elsewhere."""
        foreign = ("MLFLOW_", "WANDB_", "PACELINE_", "PYTHON")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        path = f"{self.folder / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
        return kept | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"} | dict(more or {})


def of_product(extra: str = "") -> list[str]:
    """What `pip install paceline[EXTRA]` would install besides Paceline itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else [])]


def tool_environment(name: str, *packages: str) -> ToolEnvironment:
    """The environment with these packages, made if it is not there; where that cannot be, the test is skipped."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline-tests"
    cache.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(repr((sorted(packages), sys.version_info[:2])).encode()).hexdigest()[:12]
    folder = cache / f"{name}-{key}"
    with (cache / f"{name}-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make(folder, name, packages)
    return ToolEnvironment(folder)


def _make(folder: Path, name: str, packages: tuple[str, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=580)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        last = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), "pip failed")
        pytest.skip(f"NOT TESTED with {name}, which cannot be installed here: {last}")
    (folder / "complete").touch()

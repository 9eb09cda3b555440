"""Versions of what computes, read from files: nothing is imported and no device is touched."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import pwd
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from paceline.core.environment import Git, Software
from paceline.core.probe import attempt, read_text
from paceline.core.text import clean
from paceline.devices import accelerators
from paceline.version import VERSION

ALLOWED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # and those of the device kinds
ALLOWED_PREFIXES = ("NCCL_", "TORCH_", "PYTORCH_", "KMP_")

_SECRET = r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_SECRET_ASSIGNMENT = re.compile(rf"\b([\w-]*(?:{_SECRET})[\w-]*)=[^\s&;,]+", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s]*@")


def homes(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Every path under which this user's home folder is known, longest first."""
    folders = {environ.get("HOME", "")}
    with suppress(KeyError, OSError):  # a container's user need not have an entry
        folders.add(pwd.getpwuid(os.getuid()).pw_dir)
    folders |= {os.path.realpath(home) for home in folders if home}
    usable = {home.rstrip("/") for home in folders if home.startswith("/")}
    return tuple(sorted(usable - {""}, key=len, reverse=True))


def scrub(text: str, home_folders: Sequence[str] | None = None) -> str:
    """The text without home folders, URL credentials and assigned secrets, and clean."""
    text = _URL_CREDENTIALS.sub(r"\1", text)
    text = _SECRET_ASSIGNMENT.sub(r"\1=...", text)
    for home in homes() if home_folders is None else home_folders:
        text = re.sub(re.escape(home) + r"(?![\w-])", "~", text)
    return clean(text)


def scrub_all(value: Any, home_folders: Sequence[str] | None = None) -> Any:
    """The same for every string in nested lists and mappings."""
    home_folders = homes() if home_folders is None else home_folders
    if isinstance(value, str):
        return scrub(value, home_folders)
    if isinstance(value, Mapping):
        return {key: scrub_all(item, home_folders) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrub_all(item, home_folders) for item in value]
    return value


def shareable_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables that bear on a number and may be recorded; what is not known to be harmless is not."""
    home_folders = homes(environ)
    allowed = {*ALLOWED, *(name for kind in accelerators() for name in (kind.visible_variable, *kind.variables))}
    return {
        name: scrub(environ[name], home_folders)
        for name in sorted(environ)
        if (name in allowed or name.startswith(ALLOWED_PREFIXES)) and not _SECRET_NAME.search(name)
    }


PACKAGES = """
    torch torchvision torchaudio torchao triton pytorch-triton transformers accelerate flash-attn xformers vllm
    onnx onnxruntime onnxruntime-gpu openvino tensorrt ray mpi4py numpy scipy mkl pydantic nvidia-ml-py
    """.split()  # noqa: SIM905
_GIT_SECONDS = 0.3


def describe_software() -> Software:
    """Python, Paceline and the libraries next to them."""
    spec = attempt(lambda: importlib.util.find_spec("torch"))  # of a top-level name: finds, but does not import
    torch = Path(spec.origin).parent if spec and spec.origin else None
    return Software(
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        paceline=VERSION,
        packages=attempt(packages) or {},
        torch_cuda=attempt(lambda: torch_build("cuda", torch)) if torch else None,
        torch_hip=attempt(lambda: torch_build("hip", torch)) if torch else None,
    )


def packages(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Installed versions by name; NVIDIA's libraries are found by their prefix, as their names change with CUDA."""
    folders = [path for entry in sys.path for path in Path(entry or ".").glob("nvidia_*.dist-info")]
    of_nvidia = sorted({path.name.partition("-")[0].replace("_", "-") for path in folders})
    versions = {
        name: attempt(partial(importlib.metadata.version, name)) for name in dict.fromkeys([*names, *of_nvidia])
    }
    return {name: version for name, version in versions.items() if version}


def torch_build(kind: str, folder: Path) -> str | None:
    """What torch was built for (`cuda`, `hip`), out of its version file as text."""
    text = read_text(folder / "version.py") or ""
    match = re.search(rf"^{kind}\s*(?::[^=\n]*)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


def git(folder: Path | None = None) -> Git | None:
    """Commit of the repository around the folder, and whether tracked files differ from it."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return Git(commit=commit, dirty=None if changes is None else bool(changes))


def _git(folder: Path | None, *arguments: str) -> str | None:
    # Without optional locks a look at the status can never get in the way of somebody's commit.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

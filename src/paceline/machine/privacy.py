"""Keeps secrets and home folders out of what is stored and shared with a result."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from paceline.devices import accelerators

ALLOWED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # and those of the device kinds
ALLOWED_PREFIXES = ("NCCL_", "TORCH_", "PYTORCH_", "KMP_")

_SECRET = r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_SECRET_ASSIGNMENT = re.compile(rf"\b([\w-]*(?:{_SECRET})[\w-]*)=[^\s&;,]+", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s]*@")


def homes(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Every path under which this user's home folder is known, longest first."""
    found = {environ.get("HOME", "")}
    with suppress(KeyError, OSError):  # a container's user need not have an entry
        found.add(pwd.getpwuid(os.getuid()).pw_dir)
    found |= {os.path.realpath(home) for home in found if home}
    usable = {home.rstrip("/") for home in found if home.startswith("/")}
    return tuple(sorted(usable - {""}, key=len, reverse=True))


def scrub(text: str, home_folders: Sequence[str] | None = None) -> str:
    """The text without home folders, URL credentials and assigned secrets."""
    text = _URL_CREDENTIALS.sub(r"\1", text)
    text = _SECRET_ASSIGNMENT.sub(r"\1=...", text)
    for home in homes() if home_folders is None else home_folders:
        text = re.sub(re.escape(home) + r"(?![\w-])", "~", text)
    return text


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
    """Environment variables that bear on a number and may be told; whatever is not known to be harmless stays out."""
    home_folders = homes(environ)
    allowed = {*ALLOWED, *(name for kind in accelerators() for name in (kind.visible_variable, *kind.variables))}
    return {
        name: scrub(environ[name], home_folders)
        for name in sorted(environ)
        if (name in allowed or name.startswith(ALLOWED_PREFIXES)) and not _SECRET_NAME.search(name)
    }

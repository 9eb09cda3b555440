"""Gives pinned versions the SHA-256 of their files, as the package index states them, so that pip refuses any other.

python tools/pin_hashes.py             # the pins of every server, and requirements.lock
python tools/pin_hashes.py FILE ...    # these files of pins

It asks the index that pip is configured with. requirements.lock has what `paceline[all]` needs at run time, in the
versions of constraints.txt; what needs what is read from the environment that this runs in (`make lint` makes it).
torch is in none of the files: which build of it is right depends on the machine, and each has other hashes.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
PINS = ROOT / "src" / "paceline" / "servers" / "_pins"
LOCK = ROOT / "requirements.lock"
CHOSEN_BY_MACHINE = "torch"
EXTRA = "all"
_LOCK_HEADER = "# What paceline[all] needs at run time, but torch; made by tools/pin_hashes.py from constraints.txt"
_PLATFORM = re.compile(r"any|(many)?linux\w*_(x86_64|aarch64)")  # a wheel for another system is never installed
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Links(HTMLParser):
    """The links of a page of the index: the name of each file, and its hash."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address, _, fragment = (dict(attrs).get("href") or "").partition("#")
        if tag == "a" and fragment.startswith("sha256="):
            self.files[unquote(address.rpartition("/")[2])] = fragment.removeprefix("sha256=")


def files_of(page: str) -> dict[str, str]:
    """The files that a page of the index lists, each with its SHA-256; in the form of PEP 691 or PEP 503."""
    if page.lstrip().startswith("{"):
        listed = json.loads(page)["files"]
        return {one["filename"]: one["hashes"]["sha256"] for one in listed if "sha256" in one["hashes"]}
    links = _Links()
    links.feed(page)
    return links.files


def hashes(files: dict[str, str], version: str) -> list[str]:
    """Those of the files of a version that a Linux machine may install, sorted."""
    return sorted({sha for name, sha in files.items() if _is_file_of(name, version) and _SHA256.fullmatch(sha)})


def pinned(text: str) -> dict[str, str]:
    """The versions that a file of pins states, by name as it is written there."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", text, re.MULTILINE))


def with_hashes(header: str, pins: dict[str, str]) -> str:
    """The text of a file of pins; an error names all that the index has no hash of."""
    with ThreadPoolExecutor(8) as threads:
        found = dict(zip(pins, threads.map(lambda name: hashes(_listed(name), pins[name]), pins), strict=True))
    if missing := [f"{name}=={pins[name]}" for name in pins if not found[name]]:
        sys.exit(f"{index()} states no SHA-256 of: {', '.join(missing)}; nothing was written")
    lines = [header]
    for name, version in pins.items():
        lines += [" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{sha}" for sha in found[name])])]
    return "\n".join(lines) + "\n"


def run_time_names(root: Path = ROOT) -> set[str]:
    """What `paceline[all]` needs, directly or not, but torch and what only some builds of it need."""
    constrained = set(map(canonicalize_name, pinned((root / "constraints.txt").read_text(encoding="utf-8"))))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed: set[str] = set()
    waiting = [*map(Requirement, project["dependencies"]), *map(Requirement, extras[EXTRA])]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        if name == CHOSEN_BY_MACHINE:
            waiting += [one for one in _requirements(requirement) if canonicalize_name(one.name) in constrained]
            continue
        if name == canonicalize_name(project["name"]):
            waiting += [Requirement(text) for extra in requirement.extras for text in extras[extra]]
            continue
        needed.add(name)
        waiting += _requirements(requirement)
    return needed


@cache
def index() -> str:
    """The address of the index that pip is configured with."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return (asked.stdout.strip() or "https://pypi.org/simple").rstrip("/")


@cache
def _listed(name: str) -> dict[str, str]:
    accepted = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    request = urllib.request.Request(f"{index()}/{canonicalize_name(name)}/", headers={"Accept": accepted})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return files_of(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return {}


def _is_file_of(name: str, version: str) -> bool:
    try:
        if not name.endswith(".whl"):
            return parse_sdist_filename(name)[1] == Version(version)
        _, of, _, tags = parse_wheel_filename(name)
        return of == Version(version) and any(_PLATFORM.fullmatch(tag.platform) for tag in tags)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False


def _requirements(requirement: Requirement) -> Iterator[Requirement]:
    """What an installed distribution needs on Linux, on either architecture."""
    for text in importlib.metadata.requires(requirement.name) or ():
        needed = Requirement(text)
        settings = [
            {"extra": extra, "platform_machine": machine}
            for extra in ("", *requirement.extras)
            for machine in ("x86_64", "aarch64")
        ]
        if needed.marker is None or any(needed.marker.evaluate(one) for one in settings):
            yield needed


def main(arguments: Iterable[str]) -> None:
    """Rewrite the files."""
    chosen = [Path(argument) for argument in arguments]
    for path in chosen or sorted(PINS.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        path.write_text(with_hashes(text.partition("\n")[0], pinned(text)), encoding="utf-8")
    if not chosen:
        versions = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
        names = run_time_names()
        if unknown := names - set(map(canonicalize_name, versions)):
            sys.exit(f"constraints.txt has no version of: {', '.join(sorted(unknown))}; nothing was locked")
        locked = {name: version for name, version in versions.items() if canonicalize_name(name) in names}
        LOCK.write_text(with_hashes(_LOCK_HEADER, locked), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

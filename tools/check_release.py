"""Checks that a tag, the version, the changelog and the citation agree, and prints the notes of the release.

python3 tools/check_release.py v0.2.0
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def version(root: Path = ROOT) -> str:
    """The version of the code."""
    return str(runpy.run_path(str(root / "src" / "paceline" / "version.py"))["VERSION"])


def section(number: str, root: Path = ROOT) -> tuple[str, str]:
    """The date of a version in the changelog and what stands below it; two empty texts if there is none."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    match = re.search(rf"^## {re.escape(number)} - (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return (match[1], match[2].strip()) if match else ("", "")


def cited(root: Path = ROOT) -> str:
    """The version of the citation."""
    match = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else ""


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Why this tag cannot be released."""
    number = version(root)
    date, notes = section(number, root)
    found = []
    if tag != f"v{number}":
        found.append(f"the tag is {tag}, but src/paceline/version.py has {number}: tag v{number}")
    if cited(root) != number:
        found.append(f"CITATION.cff has version {cited(root) or 'none'}: write {number}")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        found.append(f"CHANGELOG.md has no line '## {number} - YYYY-MM-DD': write the day of the release")
    elif not notes:
        found.append(f"CHANGELOG.md says nothing about {number}")
    return found


def main(arguments: list[str]) -> int:
    """The exit code: 0 can be released, 1 cannot, 2 wrong usage."""
    if len(arguments) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    found = problems(arguments[0])
    sys.stderr.writelines(f"{problem}\n" for problem in found)
    if not found:
        sys.stdout.write(f"{section(version())[1]}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

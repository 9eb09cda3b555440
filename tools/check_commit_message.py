"""Refuses a commit message whose subject does not fit a line of a log: the commit-msg hook, and a check of a range.

python3 tools/check_commit_message.py FILE               the message of a commit that is being made
python3 tools/check_commit_message.py --range A..B       all commits of a range, merges left out
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LONGEST = 72
SCISSORS = "# ------------------------ >8"  # what `git commit --verbose` writes above the difference
AUTOSQUASH = ("fixup! ", "squash! ", "amend! ")


def problems(message: str) -> list[str]:
    """What is wrong with a message, in words."""
    lines = [line for line in message.partition(SCISSORS)[0].splitlines() if not line.startswith("#")]
    while lines and not lines[0].strip():
        lines.pop(0)
    if not lines:
        return ["the message is empty"]
    subject = lines[0].rstrip()
    for prefix in AUTOSQUASH:
        subject = subject.removeprefix(prefix)
    if subject.startswith("Merge "):
        return []
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters, and at most {LONGEST} are allowed: {subject}")
    if subject.endswith("."):
        found.append(f"the subject ends with a full stop: {subject}")
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is not empty: it separates the subject from the body")
    return found


def _of_range(commits: str) -> list[str]:
    log = subprocess.run(["git", "log", "--no-merges", "--format=%h%n%B%x00", commits], capture_output=True, text=True)
    if log.returncode:
        return [log.stderr.strip()]
    entries = [entry.strip("\n") for entry in log.stdout.split("\0") if entry.strip()]
    parts = [entry.partition("\n") for entry in entries]
    return [f"{commit}: {problem}" for commit, _, message in parts for problem in problems(message)]


def main(arguments: list[str]) -> int:
    """The exit code: 0 accepted, 1 refused, 2 wrong usage."""
    match arguments:
        case ["--range", commits]:
            found = _of_range(commits)
        case [file] if not file.startswith("-"):
            found = problems(Path(file).read_text(encoding="utf-8"))
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    sys.stderr.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

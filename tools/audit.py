"""Asks the advisory service for known vulnerabilities of what an SBOM lists; no answer is not a good one.

python tools/audit.py build/sbom.json

pip-audit calls a package that the service does not answer about "skipped", and reports success. Here that is a failure
of its own: 0 no known vulnerability, 1 there are some, 3 not all could be asked about.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OWN = "paceline"  # not published before its release


def pins(sbom: Mapping[str, Any]) -> list[str]:
    """What the SBOM lists, as pip writes it; advisories know no local builds, such as 2.13.0+cpu."""
    listed = ((one["name"], one["version"].partition("+")[0]) for one in sbom["components"])
    return sorted(f"{name}=={version}" for name, version in listed if name != OWN)


def verdict(audited: Mapping[str, Any], expected: int) -> tuple[int, str]:
    """The exit code, and the words for it."""
    answered = [one for one in audited["dependencies"] if "skip_reason" not in one]
    vulnerable = [one for one in answered if one["vulns"]]
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'no version'}"
        for one in vulnerable
        for flaw in one["vulns"]
    ]
    unanswered = expected - len(answered)
    if unanswered:
        lines.append(f"NOT AUDITED: the advisory service gave no answer about {unanswered} of {expected} packages")
    if not lines:
        lines.append(f"no known vulnerability in {expected} packages")
    return 1 if vulnerable else 3 if unanswered else 0, "\n".join(lines)


def main(path: Path) -> int:
    """Audit, and say what came of it."""
    listed = pins(json.loads(path.read_text(encoding="utf-8")))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(listed))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off"]
        asked = subprocess.run(
            [*command, "--format=json", "-r", file.name], capture_output=True, text=True, check=False
        )
    try:
        audited = json.loads(asked.stdout)
    except ValueError:
        print(f"NOT AUDITED: pip-audit failed: {(asked.stderr.strip() or 'without a word').splitlines()[-1]}")
        return 3
    code, words = verdict(audited, len(listed))
    print(words)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

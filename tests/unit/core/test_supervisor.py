"""What stands between Paceline and a command: it bounds what the command prints into a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CAPPING = (
    "import os, sys; from paceline.core import supervisor; supervisor._MOST_OUTPUT, supervisor._HEAD = 1000, 100\n"
    "os.write(1, b'a' * int(sys.argv[1])); supervisor._cap_output(); os.write(1, b'then\\n')"
)


def printed(path: Path, size: int) -> str:
    with path.open("ab") as output:
        subprocess.run([sys.executable, "-c", CAPPING, str(size)], stdout=output, check=True)
    return path.read_text()


def test_a_file_that_became_too_long_keeps_its_head_and_what_comes_later(tmp_path: Path) -> None:
    assert printed(tmp_path / "short", 1000) == "a" * 1000 + "then\n"
    assert printed(tmp_path / "long", 1001) == "a" * 100 + "\n[901 bytes of output were dropped here]\nthen\n"


def test_what_is_no_file_is_left_alone() -> None:
    done = subprocess.run([sys.executable, "-c", CAPPING, "5000"], capture_output=True, check=True)
    assert done.stdout == b"a" * 5000 + b"then\n"

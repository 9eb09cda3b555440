"""The C sources build without a warning, with every compiler at hand."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from paceline.benchmarks import memory
from paceline.measure import native

SOURCES = sorted(Path(memory.__file__).parent.glob("*.c"))
COMPILERS = [name for name in ("gcc", "clang", "cc") if shutil.which(name)]


@pytest.mark.skipif(not COMPILERS, reason="needs a C compiler: apt install gcc")
@pytest.mark.parametrize("level", ["-O0", "-O3"])
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_compiler_has_anything_to_complain_about(source: Path, compiler: str, level: str, tmp_path: Path) -> None:
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [compiler, *native.FLAGS, level, *warnings, str(source), "-o", str(tmp_path / "built.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_three_are_there() -> None:
    assert [source.name for source in SOURCES] == ["copy.c", "latency.c", "stream.c"]

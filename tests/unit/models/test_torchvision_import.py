"""The torchvision import: plain where that works, a clear refusal where it is absent, everything else as raised."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TARGET = "import paceline.models._modules.torchvision_import as found"

# Importing torch takes seconds, and none of these tests is about that: one process does, and each code runs in a copy.
COPIES = """
import json, os, sys, traceback
import torch
for line in sys.stdin:
    code, path, output = json.loads(line)
    if os.fork() == 0:
        sys.stdout = sys.stderr = open(output, "w", buffering=1)
        try:
            sys.path[:0] = [path] if path else []
            exec(code, {})
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.wait()
    print("done", flush=True)
"""

Python = Callable[..., str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    """Run code where torch is imported and torchvision is not; gives what was printed."""
    output = tmp_path_factory.mktemp("output") / "output.txt"
    with subprocess.Popen(
        [sys.executable, "-c", COPIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as copies:
        assert copies.stdin is not None
        assert copies.stdout is not None
        writing, reading = copies.stdin, copies.stdout

        def run(code: str, *, path: Path | None = None) -> str:
            print(json.dumps([code, path and str(path), str(output)]), file=writing, flush=True)
            assert reading.readline() == "done\n"
            return output.read_text()

        yield run


def test_absent(python: Python) -> None:
    said = python(f"import sys; sys.modules['torchvision'] = None\n{TARGET}")
    assert "MissingDependency: torchvision is not available here; install the torchvision release" in said


def test_the_plain_import_is_taken_where_it_works(python: Python, tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text("")
    said = python(f"{TARGET}\nprint(found.torchvision.__file__, found._keep_alive)", path=tmp_path)
    assert said.split() == [str(package / "__init__.py"), "[]"]


def test_missing_operators_are_declared(python: Python, tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("import torchvision.first")
    (package / "first.py").write_text(
        "import torch\nprint('tried')\ntorch.library.register_fake('torchvision::nms')(print)\n"
    )
    (package / "models.py").write_text("")
    said = python(f"{TARGET}\nprint(len(found._keep_alive))", path=tmp_path)
    assert said.split() == ["tried", "tried", "1"]


def test_other_failures_pass_through(python: Python, tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')")
    assert "RuntimeError: something else" in python(TARGET, path=tmp_path)

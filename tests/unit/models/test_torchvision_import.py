"""The torchvision import: plain where that works, a clear refusal where it is absent, everything else as raised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TARGET = "import paceline.models._modules.torchvision_import as found"


def python(code: str, *, path: Path | None = None) -> str:
    before = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_absent() -> None:
    said = python(f"import sys; sys.modules['torchvision'] = None\n{TARGET}")
    assert "MissingDependency: torchvision is not available here; install the torchvision release" in said


def test_the_plain_import_is_taken_where_it_works(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text("")
    said = python(f"{TARGET}\nprint(found.torchvision.__file__, found._keep_alive)", path=tmp_path)
    assert said.split() == [str(package / "__init__.py"), "[]"]


def test_missing_operators_are_declared(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("import torchvision.first")
    (package / "first.py").write_text(
        "import torch\nprint('tried')\ntorch.library.register_fake('torchvision::nms')(print)\n"
    )
    (package / "models.py").write_text("")
    said = python(f"{TARGET}\nprint(len(found._keep_alive))", path=tmp_path)
    assert said.split() == ["tried", "tried", "1"]


def test_other_failures_pass_through(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')")
    assert "RuntimeError: something else" in python(TARGET, path=tmp_path)

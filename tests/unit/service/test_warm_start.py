"""What makes a worker import everything anew before it forks the next job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.service.follower import warm_start


def test_code_that_is_edited_where_it_is_counts_as_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "edited_plugin" / "benchmarks"
    inner.mkdir(parents=True)
    module = inner / "one.py"
    for file in (inner.parent / "__init__.py", inner / "__init__.py", module, tmp_path / "single_plugin.py"):
        file.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("paceline", "edited_plugin", "single_plugin", "absent_plugin", "absent_plugin.inner")
    monkeypatch.setattr(warm_start, "providers", lambda: names)
    seen = [warm_start._imported_from()]
    (inner / "notes.txt").write_text("no code")
    assert warm_start._imported_from() == seen[0]
    os.utime(module, (1, 1))  # also where it is older than before
    seen.append(warm_start._imported_from())
    os.utime(tmp_path / "single_plugin.py", (1, 1))
    seen.append(warm_start._imported_from())
    module.unlink()
    seen.append(warm_start._imported_from())
    assert all(one != other for place, one in enumerate(seen) for other in seen[:place])

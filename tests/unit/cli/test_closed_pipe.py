"""A reader that leaves early, as `head` does, costs neither the file that was asked for nor the verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "data" / "superbench"
RESULTS, RULES, BASELINE = (str(DATA / name) for name in ("results-summary.jsonl", "rules.yaml", "baseline.json"))
DIAGNOSE = ("diagnose", RESULTS, "--rules", RULES, "--baseline", BASELINE)


@pytest.mark.parametrize(
    ("words", "output", "code"),
    [
        (("baseline", RESULTS, "-o", "out.json"), "out.json", 0),
        ((*DIAGNOSE, "--html", "-o", "out.html"), "out.html", 1),
        ((*DIAGNOSE, "--json"), None, 1),
        ((*DIAGNOSE, "--rules", "missing.yaml"), None, 2),
    ],
    ids=["baseline", "page", "data", "refusal"],
)
def test_the_file_is_written_and_the_exit_code_is_the_verdict(
    tmp_path: Path, words: tuple[str, ...], output: str | None, code: int
) -> None:
    source, sink = os.pipe()
    os.close(source)  # whoever read has left
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *words], cwd=tmp_path, stdout=sink, stderr=sink, check=False
    )
    os.close(sink)
    assert done.returncode == code
    if output is not None:
        assert (tmp_path / output).stat().st_size > 1000

"""How long a person waits: from `paceline run` to the first figure on a terminal, and from `git clone` to it.

`python -m bench first-figure` times this checkout; with the path of another one it times both, in alternation.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import click

ROOT = Path(__file__).parents[1]
TIMES = 3
LIMIT = 180.0  # seconds that anybody waits
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
# Of a case in flight, or of one that has ended.
_FIGURE = re.compile(r": [\d.,]+ [^\s,]+.*? steps|✓ .*? [\d.,]+ \S+")


def print_first_figures(others: Sequence[str] = ()) -> None:
    """A line for each checkout, the ratio of two, and the way from a clone."""
    trees = [ROOT, *(Path(other).resolve() for other in others)]
    for tree in trees:
        if not (tree / "src" / "paceline").is_dir():
            raise click.BadParameter(f"'{tree}' is not a checkout of Paceline")
    with tempfile.TemporaryDirectory() as folder:
        waits: dict[Path, list[float]] = {tree: [] for tree in trees}
        for turn in range(TIMES + 1):
            for tree in trees:
                waited = first_figure(tree, Path(folder))
                if turn:  # the first one compiles and fills the disk's cache
                    waits[tree].append(waited)
        for tree, seconds in waits.items():
            shown = ", ".join(f"{one:.2f}" for one in seconds)
            click.echo(f"paceline run to the first figure  {median(seconds):6.2f} s  ({shown})  {tree.name}")
        if len(trees) > 1:
            ratio = median(waits[trees[1]]) / median(waits[ROOT])
            click.echo(f"{trees[1].name} / {ROOT.name}  {ratio:.3g}")
        _print_clone(Path(folder))
    click.echo(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


def first_figure(tree: Path, folder: Path) -> float:
    """Seconds until `paceline run` of a checkout shows a figure of its first case; then it is interrupted."""
    data = Path(tempfile.mkdtemp(dir=folder))
    environment = _environment(folder) | {"PYTHONPATH": str(tree / "src"), "XDG_DATA_HOME": str(data)}
    return _seconds_to_figure([sys.executable, "-P", "-m", "paceline", "run", "--no-report"], environment)


def _print_clone(folder: Path) -> None:
    """What a stranger does, but for fetching torch and the like: those are taken from this environment."""
    begun = time.monotonic()
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    cloned = time.monotonic() - begun
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(clone / ".venv")], check=True)
    (site,) = (clone / ".venv" / "lib").glob("python*/site-packages")
    paths = [str(clone / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "paceline.pth").write_text("\n".join(paths), encoding="utf-8")
    made = time.monotonic() - begun - cloned
    data = Path(tempfile.mkdtemp(dir=folder))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    python = str(clone / ".venv" / "bin" / "python")
    run = [python, "-P", "-m", "paceline", "run", "--no-report"]
    figure = _seconds_to_figure(run, environment | {"XDG_DATA_HOME": str(data)})
    click.echo(
        f"git clone to the first figure     {cloned + made + figure:6.2f} s  "
        f"(clone {cloned:.2f}, environment {made:.2f}, first run {figure:.2f}; packages were there)"
    )


def _environment(folder: Path) -> dict[str, str]:
    """Compiled code is kept, as it is for users, but not in the checkouts."""
    values = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return values | {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def _seconds_to_figure(command: Sequence[str], environment: Mapping[str, str]) -> float:
    begun = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], list(command), {**environment, "TERM": "xterm", "COLUMNS": "120"})
    text = ""
    try:
        while time.monotonic() < begun + LIMIT:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                received = os.read(terminal, 65536)
            except OSError:  # it has ended
                break
            text += _ESCAPES.sub("", received.decode(errors="replace"))
            if _FIGURE.search(text):
                return time.monotonic() - begun
    finally:
        os.kill(pid, signal.SIGINT)
        while select.select([terminal], [], [], 10.0)[0]:  # until it has left, so that it disturbs nobody
            try:
                if not os.read(terminal, 65536):
                    break
            except OSError:
                break
        os.waitpid(pid, 0)
        os.close(terminal)
    raise ValueError(f"no figure was shown within {LIMIT:g} s; the last of it was: {text[-300:]!r}")

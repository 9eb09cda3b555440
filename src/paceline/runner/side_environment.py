"""Environments of the sides of an A/B comparison: a worktree for a commit, packages on top of those that are there.

Each is built once and is then in the user's cache folder. An environment sees every package of the one that it is based
on, so that only what differs is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.errors import InputError
from paceline.core.files import cache_directory
from paceline.core.installing import InstallFailed, one_at_a_time, run_step

WORKING_TREE = "."
_HAS_PIP = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pip') is None)"
_SITES = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))]))"


@dataclass(frozen=True)
class Built:
    """A side's folder and environment."""

    label: str
    folder: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)
    python: str | None = None  # None where it has no environment of its own


def commit_of(revision: str) -> str | None:
    """The hash of a commit in the repository of the current folder; that of the working tree holds what is tracked."""
    if revision == WORKING_TREE:
        snapshot = _git("stash", "create")
        return snapshot or (_git("rev-parse", "HEAD") if snapshot is not None else None)
    if not revision or revision.startswith("-"):
        return None
    return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")


def commit_side(revision: str, build: str | None, base: str, where: str, say: Callable[[str], None]) -> Built:
    """A commit as a worktree, and an environment with what it installs."""
    commit, root = commit_of(revision), _git("rev-parse", "--show-toplevel")
    if commit is None or root is None:
        message = f"{where}: there is no such commit in the repository of this folder"
        raise InputError("unknown-commit", message, value=revision)
    if revision == WORKING_TREE and _git("ls-files", "--others", "--exclude-standard", root):
        say(f"{where}: files that git does not track are not part of it; add them with git add")
    shared = _git("rev-parse", "--path-format=absolute", "--git-common-dir")
    # A snapshot of the working tree is another commit each time, of the same content.
    content = _git("rev-parse", f"{commit}^{{tree}}") if revision == WORKING_TREE else commit
    with _cached(["commit", shared, content, build, base], where) as (folder, log, is_complete):
        tree = folder / "tree"
        if not is_complete:
            say(f"{where}: checking out {commit[:10]}, and building it")
            run_step(["git", "worktree", "add", "--force", "--detach", str(tree), commit], log, _not_built(where))
            if (tree / ".gitmodules").exists():
                run_step(["git", "submodule", "update", "--init", "--recursive"], log, _not_built(where), folder=tree)
            steps = [["sh", "-c", build]] if build else _usual_steps(tree)
            if steps:
                _make_environment(folder / "env", base, log, where)
            for step in steps:
                run_step(step, log, _not_built(where), folder=tree, variables=_variables(folder / "env"))
    below = tree / Path.cwd().relative_to(root) if Path.cwd().is_relative_to(root) else tree
    label = "working-tree" if revision == WORKING_TREE else revision
    return Built(
        label=label if commit.startswith(label) else f"{label}@{commit[:8]}",
        folder=below if below.is_dir() else tree,
        variables=_variables(folder / "env") | _moved_path(Path(root), tree),
        python=_python(folder / "env"),
    )


def package_side(packages: Sequence[str], base: str, where: str, say: Callable[[str], None]) -> Built:
    """Packages in an environment of their own, before those that are there already."""
    with _cached(["packages", *packages, base], where) as (folder, log, is_complete):
        if not is_complete:
            say(f"{where}: installing")
            _make_environment(folder / "env", base, log, where)
            step = [*_pip(folder / "env"), *packages]
            run_step(step, log, f"{where} could not be installed", variables=_variables(folder / "env"))
    label = "+".join(packages) or "as-is"
    return Built(label, variables=_variables(folder / "env"), python=_python(folder / "env"))


@contextmanager
def _cached(key: Sequence[str | None], where: str) -> Iterator[tuple[Path, Path, bool]]:
    """The folder for this key, its log, and whether it was completed before; a failed build leaves only the log."""
    folder = cache_directory() / "ab" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    marker, log = folder / "complete", folder / "build.log"
    with one_at_a_time(folder, lambda _: None):
        if marker.exists():
            yield folder, log, True
            return
        for name in ("tree", "env"):
            shutil.rmtree(folder / name, ignore_errors=True)
        log.unlink(missing_ok=True)
        try:
            yield folder, log, False
        except InstallFailed as error:
            raise InputError("build-failed", str(error), value=where) from None
        marker.touch()


def _usual_steps(tree: Path) -> list[list[str]]:
    """What installs a project; none where it has nothing to install."""
    pip, steps = _pip(tree.parent / "env"), []
    if (tree / "requirements.txt").exists():
        steps.append([*pip, "--requirement", "requirements.txt"])
    if _is_project(tree):
        steps.append([*pip, "--editable", "."])
    return steps


def _is_project(tree: Path) -> bool:
    if (tree / "setup.py").exists():
        return True
    try:
        settings = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or one that pip would refuse: it may hold settings of tools alone
        return False
    return "project" in settings or "build-system" in settings


def _make_environment(environment: Path, base: str, log: Path, where: str) -> None:
    """One that sees the packages of its base, whose own come first."""
    has_pip = subprocess.run([base, "-c", _HAS_PIP], check=False).returncode == 0
    options = ["--without-pip"] if has_pip else []
    run_step([base, "-m", "venv", *options, str(environment)], log, f"the environment of {where} could not be made")
    sites = json.loads(subprocess.run([base, "-c", _SITES], capture_output=True, text=True, check=True).stdout)
    target = next(environment.glob("lib/python*/site-packages"))
    # The last of its kind: what is installed here in place is looked for before what the base has in place.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sites]
    (target / "zz_packages_of_the_base.pth").write_text("".join(lines), encoding="utf-8")


def _pip(environment: Path) -> list[str]:
    return [str(environment / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]


def _python(environment: Path) -> str | None:
    return str(environment / "bin/python") if environment.exists() else None


def _variables(environment: Path) -> dict[str, str]:
    if not environment.exists():
        return {}
    path = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"VIRTUAL_ENV": str(environment), "PATH": path}


def _moved_path(root: Path, tree: Path) -> dict[str, str]:
    """PYTHONPATH with the worktree's folders instead of those of the repository: both sides would be the same code."""
    given = os.environ.get("PYTHONPATH")
    if not given:
        return {}
    moved = []
    for text in given.split(os.pathsep):
        path = Path(text).absolute()
        moved.append(str(tree / path.relative_to(root)) if path.is_relative_to(root) else text)
    return {"PYTHONPATH": os.pathsep.join(moved)}


def _not_built(where: str) -> str:
    return f"{where} could not be built"


def _git(*words: str) -> str | None:
    """What git answers; None if it refuses, or there is none."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None

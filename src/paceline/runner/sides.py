"""The two sides of an A/B comparison: what each is, its folder, environment and settings, and how it is measured.

A commit has a worktree, and packages come on top of those that are there. An environment is built once, and is then in
the user's cache folder; it sees every package of the one that it is based on, so that only what differs is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from paceline.core.die_with_parent import die_with_parent
from paceline.core.errors import InputError
from paceline.core.files import cache_directory
from paceline.core.installing import InstallFailed, one_at_a_time, run_step
from paceline.core.interrupt import signal_name

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


Kind = Literal["commit", "packages", "env", "set", "command", "server"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORMS = (
    "a commit (HEAD~1, '.' for the working tree), packages ('numpy==1.26'), a variable (OMP_NUM_THREADS=1), "
    "a parameter (batch_size=8), a server (http://host:8000), or, without a command after --, a command"
)
RUN = "run"  # the first word of what Paceline measures itself; any other command is timed
GRACE = 10.0  # seconds for an interrupted command to clean up
_COMMA = re.compile(r",(?=\s*[\w.-]+=)")  # between settings; one within a value stays
_SERVED_MODEL = re.compile(r"\bserver(\.model\b|=|$)")
_SETTING = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)=(?!=)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w,.-]*\])?\s*(==|>=|<=|~=|!=|<|>|@ )")


@dataclass(frozen=True)
class Side:
    """One of the two, ready to be measured."""

    mark: str  # A or B
    label: str  # as short as the user wrote it
    folder: Path | None = None  # where its command runs; None is the current one
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ()  # words that a run of Paceline gets in addition
    command: tuple[str, ...] = ()  # instead of the one that both have
    python: str = sys.executable


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    seconds: float
    output: str
    code: int

    @property
    def last_line(self) -> str:
        """What it wrote last."""
        return next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")

    @property
    def problem(self) -> str:
        """Why it is not a success; empty if it is one."""
        if self.code == 0:
            return ""
        how = f"it exited with {self.code}" if self.code > 0 else f"it was ended by {signal_name(-self.code)}"
        return f"{how}: {self.last_line}" if self.last_line else how


def read_kind(texts: Sequence[str], words: Sequence[str]) -> tuple[Kind, list[str]]:
    """What both sides are, and each without its prefix; `words` are those that are measured on both."""
    named = {kind for kind in KINDS for text in texts if text.startswith(f"{kind}:")}
    if len(named) > 1:
        message = f"one side is '{texts[0]}', the other '{texts[1]}': give two of one kind"
        raise InputError("two-kinds", message, value=" ".join(texts))
    fitting = sorted(named) or [kind for kind in KINDS if all(_fits(kind, text, words) for text in texts)]
    if not fitting:
        message = f"'{texts[0]}' and '{texts[1]}' are not two of one kind; a side is {FORMS}"
        raise InputError("unknown-sides", message, value=" ".join(texts))
    if len(fitting) > 1:
        forms = " or ".join(f"{kind}:{texts[0]}" for kind in fitting)
        message = f"'{texts[0]}' may be {' or '.join(fitting)}; write {forms}"
        raise InputError("ambiguous-sides", message, value=texts[0], suggestion=f"{fitting[0]}:{texts[0]}")
    kind: Kind = next(kind for kind in KINDS if kind == fitting[0])
    _check_words(kind, words)
    return kind, [text.removeprefix(f"{kind}:") for text in texts]


def _fits(kind: Kind, text: str, words: Sequence[str]) -> bool:
    setting = _SETTING.match(text)
    if kind == "server":
        return "://" in text
    if kind == "packages":
        return "://" not in text and _REQUIREMENT.match(text) is not None
    if kind in ("env", "set"):
        is_parameter = words[:1] == [RUN] and setting is not None and not setting["name"].isupper()
        return setting is not None and is_parameter == (kind == "set")
    if kind == "command":
        first = (_split(text) or [""])[0]
        return not words and bool(first) and shutil.which(first) is not None
    return commit_of(text) is not None


def _check_words(kind: Kind, words: Sequence[str]) -> None:
    if kind == "command" and words:
        message = "two commands are measured as they are: leave out what follows --"
        raise InputError("command-with-words", message, value=shlex.join(words))
    if kind != "command" and not words:
        message = (
            "what to measure is missing: write it after --, as in: -- run train --model resnet50, or: -- ./train.sh"
        )
        raise InputError("nothing-to-measure", message)
    # A suite may have its own; of the benchmark alone nobody else says it.
    if kind == "server" and words[:2] == [RUN, "serve"] and not any(_SERVED_MODEL.search(word) for word in words):
        message = "what the servers call their model is missing: write --server.model NAME after run serve"
        raise InputError("missing-model", message, key="server.model")
    if kind in ("set", "server") and words[0] != RUN:
        what = "a parameter" if kind == "set" else "a server"
        message = f"{what} goes with a benchmark of Paceline: -- run ..., not with '{words[0]}'"
        raise InputError("not-a-run", message, value=words[0])


def make_side(
    mark: str, kind: Kind, text: str, words: Sequence[str], build: str | None, say: Callable[[str], None]
) -> Side:
    """A side, its environment built unless it was before."""
    if kind == "command":
        return Side(mark, text, command=tuple(_split(text)))
    if kind == "env":
        return Side(mark, text or "as-is", variables=dict(_settings(text)))
    if kind == "set":
        return Side(mark, text or "as-is", settings=_set_words(_settings(text)))
    if kind == "server":
        return Side(mark, text, settings=_set_words([("server.kind", "url"), ("server.url", text)]))
    base = sys.executable if words[:1] == [RUN] else shutil.which("python3") or sys.executable
    where = f"{mark} ({text})"
    built: Built
    if kind == "packages":
        built = package_side(shlex.split(text), base, where, say)
    else:
        built = commit_side(text, build, base, where, say)
    return Side(mark, built.label, built.folder, built.variables, python=built.python or sys.executable)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        message = f"the command cannot be read: {str(error).lower()}"
        raise InputError("unreadable-command", message, value=text) from None


def _settings(text: str) -> list[tuple[str, str]]:
    settings = []
    for setting in _COMMA.split(text) if text else ():
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            message = "write a side as name=value, or several with commas between"
            raise InputError("not-a-setting", message, where=text, value=text)
        settings.append((name.strip(), value.strip()))
    return settings


def _set_words(settings: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(word for name, value in settings for word in ("--set", f"{name}={value}"))


def run_command(command: Sequence[str], side: Side) -> Ended:
    """A fresh process with the side's folder and variables until it ends; nothing of it outlives this one."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=side.folder,
                env=os.environ | dict(side.variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),  # no other thread runs here
            )
        except OSError as error:
            message = f"{side.mark} ({side.label}): '{command[0]}' cannot be started: {error.strerror}"
            raise InputError("cannot-start", message, value=command[0]) from None
        begin = time.monotonic()  # the program is loaded: forking this process is not its work
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            raise
        seconds = time.monotonic() - begin
        output.seek(0)
        return Ended(seconds, output.read().decode(errors="replace"), code)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):  # it may end at the same moment
            os.killpg(process.pid, number)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
        return

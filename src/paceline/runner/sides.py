"""The two sides of an A/B comparison: what each is, its folder, environment and settings, and how it is measured."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from paceline.core.die_with_parent import die_with_parent
from paceline.core.errors import InputError
from paceline.core.interrupt import signal_name
from paceline.runner.side_environment import Built, commit_of, commit_side, package_side

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

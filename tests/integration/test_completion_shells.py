"""Completion in real shells: installed as a user installs it, then asked for by the keys that a user presses."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from paceline.store import open_store
from support.cli import GENEROUS, Sandbox
from support.store_samples import a_run

# What is typed, and what it becomes.
LINES = {
    "paceline run gem": "paceline run gemm",
    "paceline report bef": "paceline report before",
    "paceline run train --model resnet15": "paceline run train --model resnet152",
    "paceline resu": "paceline results",
    "paceline run fabric": "paceline run fabric-check",
    "paceline run gemm --transpose-b": "paceline run gemm --transpose-b",
    "paceline compare before run-": "paceline compare before run-1",
    "paceline run ./ben": "paceline run ./bench.py",
}
SOME = 3  # that are always asked for
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
PROMPT, SAID = "type> ", "SAID"
CLEAR, TAB, SAY = "\x15", "\t", "\x14"
# The key ^T writes the line into a file, whole or not at all.
BASH = f"""
. {BASH_COMPLETION}
PS1='{PROMPT}'
say() {{ printf %s "$READLINE_LINE" > "${SAID}.part"; mv "${SAID}.part" "${SAID}"; }}
bind -x '"\\C-t": say'
"""
ZSH = f"""
BEFORE
autoload -Uz compinit && compinit -u -D
AFTER
bindkey -e
PS1='{PROMPT}'
say() {{ print -rn -- "$BUFFER" > "${SAID}.part"; mv "${SAID}.part" "${SAID}" }}
zle -N say && bindkey '^T' say
"""


TypeUntil = Callable[[str, Callable[[str], bool]], str]


@pytest.fixture
def wanted(with_long: bool) -> dict[str, str]:
    """The lines; each takes a second or two."""
    return LINES if with_long else dict(list(LINES.items())[:SOME])


@pytest.fixture
def home(sandbox: Sandbox) -> Sandbox:
    """With a run, a tag and a file of benchmarks."""
    sandbox.store.parent.mkdir(parents=True, exist_ok=True)
    with open_store(sandbox.store) as store:
        store.begin(a_run("run-1", tags=["before"]))
    sandbox.write("bench.py", "")
    return sandbox


def variables(home: Sandbox, shell: str) -> dict[str, str]:
    """Of a user of this shell, whose folders are where they usually are."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "SHELL": f"/usr/bin/{shell}", "TERM": "xterm", SAID: str(home.folder / "said")}
    found = home.environment(own | {"PYTHONPYCACHEPREFIX": str(home.folder / "compiled")})
    return {name: value for name, value in found.items() if not name.startswith(("XDG_", "ZDOTDIR", "PYTHONDONT"))}


def installed(home: Sandbox, shell: str) -> str:
    """What `paceline completion --install` says; the shell and what else is needed must be there."""
    package = "bash-completion" if shell == "bash" else shell
    if not (BASH_COMPLETION.exists() if shell == "bash" else shutil.which(shell)):
        pytest.skip(f"NOT TESTED: completion in {shell}, as {package} is missing: apt-get install {package}")
    command = ["paceline", "completion", "--install"]
    done = subprocess.run(command, env=variables(home, shell), capture_output=True, text=True, timeout=GENEROUS)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(home.home)
    return done.stdout


@contextmanager
def terminal(command: list[str], env: Mapping[str, str], cwd: Path) -> Iterator[TypeUntil]:
    """A shell at a terminal: types keys, reads until something holds, and gives what was on the screen."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(command[0], command, dict(env))

    def type_until(keys: str, holds: Callable[[str], bool]) -> str:
        os.write(descriptor, keys.encode())
        screen, end = "", time.monotonic() + GENEROUS
        while not holds(screen):
            assert time.monotonic() < end, screen
            if select.select([descriptor], [], [], 0.05)[0]:
                screen += os.read(descriptor, 65536).decode(errors="replace")
        return screen

    try:
        yield type_until
    finally:
        os.close(descriptor)  # which hangs up
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def typed(home: Sandbox, command: list[str], shell: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """What each line becomes when it is typed at a terminal and completed."""
    env, said = variables(home, shell), home.folder / "said"
    lines = {}
    with terminal(command, env, home.work) as type_until:
        type_until("", lambda screen: PROMPT in screen)
        for line in wanted:
            type_until(CLEAR + line + TAB + SAY, lambda _screen: said.exists())
            lines[line] = said.read_text().strip()
            said.unlink()
    return lines


def test_bash_loads_it_with_the_package_bash_completion(home: Sandbox, wanted: dict[str, str]) -> None:
    assert "bash-completion" in installed(home, "bash")
    rc = home.folder / "bashrc"
    rc.write_text(BASH)
    assert typed(home, ["bash", "--noprofile", "--rcfile", str(rc), "-i"], "bash", wanted) == wanted


@pytest.mark.parametrize("way", ["installed", pytest.param("sourced", marks=pytest.mark.long)])
def test_zsh_loads_it_by_the_line_that_is_printed_or_from_the_command(
    home: Sandbox, wanted: dict[str, str], way: str
) -> None:
    line = installed(home, "zsh").splitlines()[1].partition(": ")[2]
    assert line.startswith("fpath+=(")
    before, after = (line, "") if way == "installed" else ("", "source <(paceline completion zsh)")
    (home.home / ".zshrc").write_text(ZSH.replace("BEFORE", before).replace("AFTER", after))
    assert typed(home, ["zsh", "-d", "-i"], "zsh", wanted) == wanted


def test_fish_finds_it(home: Sandbox, wanted: dict[str, str]) -> None:
    installed(home, "fish")
    found = {}
    for line in wanted:
        command = ["fish", "--command", f"complete --do-complete '{line}'"]
        env = variables(home, "fish")
        done = subprocess.run(command, env=env, cwd=home.work, capture_output=True, text=True, timeout=GENEROUS)
        assert done.returncode == 0, done.stderr
        found[line] = [answer.partition("\t")[0] for answer in done.stdout.splitlines()]
    assert found == {line: [becomes.rpartition(" ")[2]] for line, becomes in wanted.items()}

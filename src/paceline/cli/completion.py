"""Complete benchmarks, models, suites, runs and tags in a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from paceline.core.errors import InputError

FILES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/paceline"),
    "zsh": ("ZDOTDIR", "", ".zfunc/_paceline"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/paceline.fish"),
}
_NOTES = {
    "bash": "It is loaded by the package bash-completion, in the next shell.",
    "zsh": "Add to .zshrc, before compinit: fpath+=({folder})",
    "fish": "It is loaded in the next shell.",
}


@click.command()
@click.argument("shell", required=False, type=click.Choice(tuple(FILES)))
@click.option("--install", is_flag=True, help="Write the script to where the shell looks for it.")
def command(shell: str | None, install: bool) -> None:
    """Print the completion script of SHELL, unset the one of $SHELL, or install it for this user."""
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in FILES:
        message = f"$SHELL is '{shell}': name the shell, one of {', '.join(FILES)}"
        raise InputError("unknown-shell", message, key="SHELL", value=shell)
    made = get_completion_class(shell)
    if made is None:
        raise InputError("unknown-shell", f"there is no completion for {shell}", value=shell)
    # Without the check of the version that click's own source makes, which starts a shell.
    source = made(click.Command("paceline"), {}, "paceline", "_PACELINE_COMPLETE")
    script = source.source_template % source.source_vars()
    # A function that is loaded from its file is "loadautofunc" at its first call alone: the second completed nothing.
    script = script.replace("$zsh_eval_context[-1] == loadautofunc", "$funcstack[1] == _paceline")
    if not install:
        click.echo(script)
        return
    variable, default, name = FILES[shell]
    path = Path(os.environ.get(variable) or Path.home() / default) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script + "\n", encoding="utf-8")
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}; print it with `paceline completion {shell}` instead"
        raise InputError("cannot-write", message, value=str(path)) from None
    click.echo(f"{path}\n{_NOTES[shell].format(folder=path.parent)}")

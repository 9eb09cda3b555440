"""List servers, and install or remove those that are other people's software."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from paceline.core.errors import InputError
from paceline.core.interrupt import catch_interrupts
from paceline.core.quantity import show_duration, show_size

if TYPE_CHECKING:
    from paceline.servers._environment import Requirements
    from paceline.servers._program import Program


@click.group("servers", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List servers and say which can start here; install or remove one."""
    if context.invoked_subcommand is not None:
        return
    from paceline.servers import SERVERS

    servers = SERVERS.registry()
    rows = [
        {"name": name, "summary": server.summary, "wires": list(server.wires), "missing": server.missing()}
        for name, server in sorted(servers.entries.items())
    ]
    if as_json:
        disabled = [{"module": one.module, "reason": one.reason} for one in servers.broken]
        click.echo(json.dumps({"servers": rows, "disabled": disabled}, indent=2))
        return
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        mark = click.style("-" if row["missing"] else "✓", fg="yellow" if row["missing"] else "green")
        click.echo(f"{mark} {row['name']:<{width}}  {row['summary']}")
        if row["missing"]:
            click.secho(f"  {'':<{width}}  {row['missing']}", dim=True)
    for failure in servers.broken:
        click.secho(f"disabled: {failure.module}: {failure.reason}", fg="red")


@command.command("install")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def install(names: tuple[str, ...]) -> None:
    """Make a virtual environment for each server, with pip as you have configured it."""
    from paceline.servers import _environment

    catch_interrupts()  # so that what was started for it ends first
    for name, (server, requirements) in [(name, _installable(name)) for name in names]:

        def report(text: str, name: str = name) -> None:
            click.echo(f"{name}: {text}", err=True)

        if reason := server.device_missing():
            report(f"{reason}; installing it for another machine")
        made = _environment.install(requirements, report)
        took = f"in {show_duration(made.seconds)}" if made.seconds else "already"
        click.echo(f"{name}: installed {took}, {show_size(made.size)} in {made.folder}")


@command.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: tuple[str, ...]) -> None:
    """Remove the virtual environments of servers."""
    from paceline.servers import _environment

    for name in [_installable(name)[1].server for name in names]:
        was_there = _environment.remove(name)
        click.echo(f"{name}: removed" if was_there else f"{name}: was not installed")


def _installable(name: str) -> tuple[type[Program], Requirements]:
    from paceline.servers import SERVERS
    from paceline.servers._program import Program

    server = SERVERS.registry().get(name)
    if not issubclass(server, Program) or server.requirements is None:
        reason = server.missing()
        message = f"'{name}' is not installed by pip" + (f": {reason}" if reason else "")
        raise InputError("not-installable", message, value=name)
    return server, server.requirements

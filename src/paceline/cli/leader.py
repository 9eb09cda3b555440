"""Lead: take jobs over HTTP, and have them measured on this machine or on others."""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli._options import age_of, check_labels, duration_of
from paceline.core.errors import InputError
from paceline.service.engines import ENGINES, EngineOptions

if TYPE_CHECKING:
    from paceline.core.run import RunRecords
    from paceline.service.api.server import Front
    from paceline.service.engines.base import Engine
    from paceline.service.job_store import Policy
    from paceline.store.store import Store


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8765, show_default=True, help="0 takes a free one.")
@click.option(
    "--store", metavar="PATH|URL", help="Where jobs and results are stored: a SQLite file or postgresql://..."
)
@click.option(
    "--engine",
    type=click.Choice(sorted(ENGINES.registry().entries)),
    default="local",
    show_default=True,
    help="Who measures.",
)
@click.option(
    "--ray-host", metavar="IP", help="This machine's address on the private network; starts a Ray cluster there."
)
@click.option("--ray-cluster", metavar="HOST:PORT", help="The Ray cluster to use, if there is one.")
@click.option("--slurm-partition", metavar="NAME[,...]", help="Whose nodes measure; Slurm's default partition.")
@click.option(
    "--slurm-folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="PATH",
    help="A folder that all nodes of Slurm see; by default below $XDG_DATA_HOME.",
)
@click.option("--label", "labels", multiple=True, metavar="NAME", help="What jobs may ask this machine to be.")
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="Certificate with its chain, as PEM.")
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="IP",
    help="A proxy in front, whose X-Forwarded-For and X-Forwarded-Proto are believed; may be given twice.",
)
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Its private key, as PEM.")
@click.option(
    "--patience", metavar="TIME", default="24h", show_default=True, help="A job waits so long for a machine it can use."
)
@click.option(
    "--keep-jobs",
    metavar="TIME",
    default="90d",
    show_default=True,
    help="How long jobs that are over stay; or forever.",
)
@click.option(
    "--keep-logs", metavar="TIME", default="30d", show_default=True, help="How long their logs stay; or forever."
)
@click.option(
    "--idle-check",
    metavar="TIME",
    help="Check a follower that has nothing to do for silent errors, once in this time; unset never does.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A token that may do everything, made if the file does not exist.",
)
def command(
    host: str,
    port: int,
    store: str | None,
    engine: str,
    ray_host: str | None,
    ray_cluster: str | None,
    slurm_partition: str | None,
    slurm_folder: Path | None,
    labels: tuple[str, ...],
    proxies: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    patience: str,
    keep_jobs: str,
    keep_logs: str,
    idle_check: str | None,
    token_file: Path | None,
) -> None:
    """Take jobs from `paceline submit` and have them measured.

    Ended by Ctrl-C, or however else, it goes on where it was when the same command is given again; what is being
    measured goes on meanwhile.
    """
    from paceline.service.api import server
    from paceline.service.api.guard import is_address, is_loopback
    from paceline.service.credentials import Credentials, is_followers, state_of
    from paceline.service.job_store import Policy
    from paceline.store import open_store

    server.require_packages()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if (tls_cert is None) != (tls_key is None):
        missing = "--tls-cert" if tls_cert is None else "--tls-key"
        raise InputError("incomplete-tls", "--tls-cert and --tls-key go together: give both", key=missing)
    tls = server.Tls(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    if tls is not None:
        tls.check()
    options_of = {
        "ray": ("--ray-host and --ray-cluster", ray_host or ray_cluster),
        "slurm": ("--slurm-partition and --slurm-folder", slurm_partition or slurm_folder),
    }
    for name, (flags, is_given) in options_of.items():
        if engine != name and is_given:
            message = f"{flags} are for --engine {name}: give that as well"
            raise InputError(f"{name}-option-without-{name}", message, key="--engine", value=engine, suggestion=name)
    if engine == "slurm" and labels:
        message = "--label is for this machine: nodes of Slurm are labelled by their partitions and features"
        raise InputError("label-with-slurm", message, key="--label", value=labels[0])
    check_labels(labels)
    waiting = duration_of("--patience", patience)
    checking = duration_of("--idle-check", idle_check) if idle_check is not None else None
    if checking is not None and not checking:
        message = f"--idle-check {idle_check} would check without a pause: write a time like 6h, or leave it out"
        raise InputError("no-pause", message, key="--idle-check", value=idle_check)
    keeping = Policy(
        **{
            name: None if given == "forever" else age_of(f"--keep-{name}", given)
            for name, given in (("jobs", keep_jobs), ("logs", keep_logs))
        }
    )
    for proxy in proxies:
        if not is_address(proxy):
            message = f"--proxy {proxy} is not an address: write it like 10.0.0.7"
            raise InputError("not-an-address", message, key="--proxy", value=proxy)
    with open_store(store) as opened:
        if token_file is not None:
            _take_token(opened, token_file)
        now = datetime.now(UTC)
        if not is_loopback(host) and not any(
            state_of(row, now) == "valid" and not is_followers(row) for row in opened.queue.tokens()
        ):
            message = (
                f"--host {host} lets others in, and there is no valid token: make one with "
                "`paceline token create NAME --scope submit`, or stay at 127.0.0.1"
            )
            raise InputError("open-without-token", message, key="--host", value=host)
        with server.only_leader(opened) as folder:
            options = EngineOptions(
                folder,
                labels,
                address=ray_cluster or "",
                host=ray_host or "127.0.0.1",
                partition=slurm_partition or "",
                shared=slurm_folder,
                credentials=Credentials(opened.queue.tokens),
            )
            made = ENGINES.get(engine).make(options)
            if made.invitation:
                click.echo(f"Followers: {made.invitation}")
            front = server.Front(tls, server.session_secret(folder.parent), proxies)
            _lead(opened, made, host, port, front, waiting, keeping, checking)


def _lead(
    store: Store,
    engine: Engine,
    host: str,
    port: int,
    front: Front,
    patience: timedelta,
    keeping: Policy,
    idle_checks: timedelta | None,
) -> None:
    from paceline.service.api import server
    from paceline.service.api.app import create_app
    from paceline.service.api.guard import is_loopback
    from paceline.service.leader import Leader
    from paceline.web.pages import pages_of

    listening = server.bind(host, port)
    leader = Leader(
        store, engine, patience=patience, retention=keeping, elapsed=time.monotonic, idle_checks=idle_checks
    )
    pages = pages_of(leader, store, _page)
    app = create_app(
        leader,
        store,
        is_local=is_loopback(host),
        report=_page,
        pages=pages,
        secret=front.secret,
        proxies=front.proxies,
    )

    def ready() -> None:
        click.echo(f"Leading at {server.address_of(listening, front.tls, host)}")
        click.echo(f"Store:     {store.location.shown}")
        if not is_loopback(host) and front.tls is None and not front.proxies:
            click.echo("paceline: tokens travel unencrypted: use --tls-cert and --tls-key, or a proxy", err=True)

    server.serve(leader, app, listening, front, ready=ready)
    click.echo("Stopped; what is being measured goes on, and the next leader on this store takes it over.")


def _page(records: RunRecords) -> str:
    from paceline.api.sources import known_ceilings
    from paceline.report.run.document import to_html

    return to_html(records, ceilings=known_ceilings(records))


def _take_token(store: Store, path: Path) -> None:
    """Let the token in a file do everything; make one if there is no file."""
    from paceline.service.api import tokens

    name = "token-file"
    try:
        token = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        token, _ = tokens.make(name, tokens.Scope.ADMIN, None)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            message = f"--token-file {path} cannot be written: {error.strerror}"
            raise InputError("cannot-write", message, key="--token-file", value=str(path)) from None
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{token}\n")
        click.echo(f"Token:     {path}")
    except (OSError, UnicodeDecodeError) as error:
        message = f"--token-file {path} cannot be read: {error}"
        raise InputError("unreadable-file", message, key="--token-file", value=str(path)) from None
    row = tokens.row_of(token, name, tokens.Scope.ADMIN, None)
    tokens.check_kind(row, store.queue.tokens())
    with store.queue.writing("keep the token") as writing:
        writing.put_token(row)

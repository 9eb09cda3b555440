"""Make this machine a follower of a leader elsewhere: it measures what the leader gives it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import click

from paceline.cli._options import check_labels
from paceline.core.errors import InputError

PORT = 6379


@click.command(short_help="Make this machine a follower of a leader elsewhere")
@click.option("--leader", required=True, metavar="HOST[:PORT]", help=f"Where the leader's Ray listens; port {PORT}")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Copy of the cluster's secret, the file `ray-token` in the leader's folder",
)
@click.option(
    "--own-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="This machine's own token, of `paceline token create NAME --scope follower`",
)
@click.option("--name", default="", help="What the leader calls this machine; its host name")
@click.option("--label", "labels", multiple=True, metavar="WORD", help="What jobs may ask for; may be given repeatedly")
@click.option("--own-address", default="", metavar="IP", help="Address of this machine on the private network")
def command(
    leader: str, token_file: Path, own_token_file: Path | None, name: str, labels: tuple[str, ...], own_address: str
) -> None:
    """Make this machine a follower of a leader elsewhere, for as long as this command runs.

    \b
    paceline follower --leader 10.0.0.1 --token-file ray-token
    paceline follower --leader 10.0.0.1 --token-file ray-token --own-token-file own-token
    paceline follower --leader 10.0.0.1 --token-file ray-token --label nvlink --own-address 10.0.0.7
    """
    from paceline.service.credentials import read_token
    from paceline.service.engines import ray

    if not token_file.is_file():
        message = f"--token-file {token_file}: there is no such file; copy `ray-token` from the leader's folder"
        raise InputError("missing-file", message, key="--token-file", value=str(token_file))
    if own_token_file is not None:
        read_token(own_token_file)  # refused here, and not later by the leader
    check_labels(labels)
    host, colon, port = leader.rpartition(":")
    if colon and (not host or not port.isdigit() or not 0 < int(port) < 2**16):
        message = f"--leader {leader}: write HOST or HOST:PORT, as in 10.0.0.1:{PORT}"
        raise InputError("not-an-address", message, key="--leader", value=leader)
    address = leader if colon else f"{leader}:{PORT}"
    click.echo(f"Following the leader at {address}; Ctrl-C to stop.")
    own_token = own_token_file.resolve() if own_token_file is not None else None
    sys.exit(ray.join(address, token_file.resolve(), name or socket.gethostname(), labels, own_address, own_token))

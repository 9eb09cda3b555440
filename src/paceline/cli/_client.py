"""The options of the verbs that speak to a leader."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from paceline.api.client import DEFAULT, LEADER, TOKEN, open_client


def leader_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where the leader is, and how to be let in; the command gets its `client`."""

    @click.option("--leader", metavar="URL", help=f"Where the leader is; unset is ${LEADER}, otherwise {DEFAULT}.")
    @click.option(
        "--token-file", type=click.Path(path_type=Path), metavar="FILE", help=f"Holds the token; unset is ${TOKEN}."
    )
    @wraps(command)
    def decorated(*, leader: str | None, token_file: Path | None, **options: Any) -> None:
        command(client=open_client(leader, token_file), **options)

    return decorated

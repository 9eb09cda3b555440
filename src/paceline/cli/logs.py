"""Show what a job wrote."""

from __future__ import annotations

import time
from typing import Any

import click

from paceline.api.client import Client
from paceline.api.jobs import FINAL
from paceline.cli._client import leader_options
from paceline.report.text import clean, one_line

_POLL = 0.5
_PATIENCE_FOLLOWING = 600.0  # a leader may be restarted while somebody watches


@click.command()
@click.argument("job", default="last")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@leader_options
def command(job: str, follow: bool, client: Client) -> None:
    """Show the log of JOB: an id, the beginning of one, or 'last'.

    Lines of a job on several machines begin with the machine that wrote them.
    """
    job_id = client.job(job)
    described = client.get(f"/jobs/{job_id}")
    is_gang = described["needs"]["nodes"] > 1
    if follow:
        client.be_patient(_PATIENCE_FOLLOWING)
    after, attempt, is_announced = "0.0", 0, False
    while True:
        page = client.get(f"/jobs/{job_id}/logs", after=after)
        for line in page["lines"]:
            if attempt and line["attempt"] != attempt:
                click.echo(f"-- attempt {line['attempt']} --")
            attempt = line["attempt"]
            text = with_follower(line["follower"], line["text"]) if is_gang else line["text"]
            click.echo(clean(text), nl=False)
        if after == "0.0" and not page["lines"] and not is_announced:
            is_announced = True
            click.echo(_without_lines(described, follow=follow), err=True)
        is_all = page["next"] == after
        after = page["next"]
        if page["is_over"] or (is_all and not follow):
            return
        if is_all:
            time.sleep(_POLL)


def _without_lines(job: dict[str, Any], *, follow: bool) -> str:
    """Why there is nothing to show."""
    if job["state"] in FINAL:
        return f"Job {job['id']}, {job['state']}, wrote nothing."
    why = f": {one_line(job['waits_for'])}" if job["waits_for"] else ""
    hint = "" if follow else f"; wait for its lines with: paceline logs {job['id']} --follow"
    return f"Job {job['id']} is {job['state']}{why}; it has written nothing yet{hint}"


def with_follower(follower: str, text: str) -> str:
    """Each line with the name of who wrote it."""
    return "".join(f"{follower} | {line}" for line in text.splitlines(keepends=True))

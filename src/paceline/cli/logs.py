"""Show what a job wrote."""

from __future__ import annotations

import time

import click

from paceline.cli._client import Client, leader_options

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
    is_gang = client.get(f"/jobs/{job_id}")["needs"]["nodes"] > 1
    if follow:
        client.be_patient(_PATIENCE_FOLLOWING)
    after, attempt = "0.0", 0
    while True:
        page = client.get(f"/jobs/{job_id}/logs", after=after)
        for line in page["lines"]:
            if attempt and line["attempt"] != attempt:
                click.echo(f"-- attempt {line['attempt']} --")
            attempt = line["attempt"]
            click.echo(with_follower(line["follower"], line["text"]) if is_gang else line["text"], nl=False)
        is_all = page["next"] == after
        after = page["next"]
        if page["is_over"] or (is_all and not follow):
            return
        if is_all:
            time.sleep(_POLL)


def with_follower(follower: str, text: str) -> str:
    """Each line with the name of who wrote it."""
    return "".join(f"{follower} | {line}" for line in text.splitlines(keepends=True))

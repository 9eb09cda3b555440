"""Stop a job, whether it waits or runs."""

from __future__ import annotations

import click

from paceline.api.client import Client
from paceline.cli._client import leader_options


@click.command()
@click.argument("job")
@leader_options
def command(job: str, client: Client) -> None:
    """Stop JOB: an id, the beginning of one, or 'last'. What it has measured is kept."""
    job_id = client.job(job)
    state = client.post(f"/jobs/{job_id}/cancel")["state"]
    if state in ("succeeded", "failed"):
        click.echo(f"Job {job_id} had ended before: {state}")
    elif state == "cancelled":
        click.echo(f"Job {job_id} is cancelled")
    else:
        click.echo(f"Job {job_id} is being stopped")

"""Submit a suite or one benchmark to a leader."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paceline.api.client import Client
from paceline.api.fleet import JobFleet
from paceline.api.jobs import send, watch, words_of
from paceline.cli._client import leader_options
from paceline.cli._flags import CaseCommand, case_flags, read_flags, read_settings
from paceline.cli._fleet import JsonLines, Lines, end
from paceline.cli._options import complete_cases
from paceline.core.errors import InputError
from paceline.report.text import one_line

if TYPE_CHECKING:
    from paceline.core.suite import Suite


class SubmitCommand(CaseCommand):
    """What is not known here may be known to the leader: it is sent as it was typed."""

    def suite(self, what: str | None, args: Sequence[str]) -> Suite | None:
        try:
            return super().suite(what, args)
        except InputError:
            known = {"--help", *(flag for option in self.params for flag in option.opts)}
            if any(arg.startswith("--") and arg.partition("=")[0] not in known for arg in args):
                raise  # its parameters are not known here
            return None


@click.command(cls=SubmitCommand, params=case_flags())
@click.argument("what", metavar="SUITE|BENCHMARK", required=False, shell_complete=complete_cases)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a parameter, as in `paceline run`."
)
@click.option(
    "--only", "filters", multiple=True, metavar="WORDS", help="Of the suite, these cases, as in `paceline run`."
)
@click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True, help="Higher goes first.")
@click.option(
    "--machines",
    metavar="NEEDS",
    default="",
    help="What the machine must have: gpu=h200,gpus=8,memory=80,label=x,nodes=2,whole-node.",
)
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Name the run, alone or with others of its kind.")
@click.option("--each", is_flag=True, help="A job for every follower that is here, whose runs share a tag.")
@click.option("--resume", metavar="FLEET", help="Go on with what an earlier --each has not brought to an end.")
@click.option("--wait", is_flag=True, help="Until it has ended; exit with 1 unless it succeeded.")
@click.option("--json", "as_json", is_flag=True, help="The job as JSON.")
@leader_options
def command(
    what: str | None,
    settings: tuple[str, ...],
    filters: tuple[str, ...],
    priority: int,
    machines: str,
    tags: tuple[str, ...],
    each: bool,
    resume: str | None,
    wait: bool,
    as_json: bool,
    client: Client,
    **flags: Any,
) -> None:
    """Submit a suite (a file, or one that the leader knows by name) or one benchmark.

    Flags named after parameters override them, as in `paceline run`.
    """
    overrides = read_flags(flags) | read_settings(settings)
    if resume is not None and (what is not None or overrides or filters or tags or machines or priority or each):
        message = (
            "--resume goes on with a round as it was: leave out the suite, its parameters, "
            "--only, --priority, --machines, --tag and --each"
        )
        raise InputError("resume-with-other-options", message, key="--resume", value=resume)
    if what is None and resume is None:
        message = "give what to submit: a suite, a benchmark, or --resume with an earlier round over the followers"
        raise InputError("nothing-to-submit", message, key="--resume")
    if each or what is None:
        fleet = JobFleet(client, JsonLines() if as_json else Lines())
        if what is None:
            fleet.resume(str(resume))
        else:
            fleet.submit(what, overrides, only=filters, tags=tags, priority=priority, machines=machines)
        sys.exit(_each(fleet, what, wait=wait, as_json=as_json))
    job = send(client, what, overrides, only=filters, tags=tags, priority=priority, machines=machines)
    job_id = job["id"]
    if not as_json:
        click.echo(f"Job {job_id} is {job['state']}: {job['name']}")
    if wait:
        job = _wait(client, job_id, is_quiet=as_json)
        if job["failure"] and not as_json:
            click.echo(f"What helps: {job['failure']['remedy']}")
    elif not as_json:
        click.echo(f"Follow it with: paceline logs {job_id} --follow")
    if as_json:
        click.echo(json.dumps(job, indent=2))
    if wait and job["state"] != "succeeded":
        sys.exit(1)


def _each(fleet: JobFleet, what: str | None, *, wait: bool, as_json: bool) -> int:
    """A job for every follower; with `wait` what came of each node, and whether all is well."""
    if as_json:
        click.echo(json.dumps({"event": "fleet_started", "fleet": fleet.id, "jobs": fleet.jobs}))
    else:
        followers = "1 follower" if len(fleet.jobs) == 1 else f"{len(fleet.jobs)} followers"
        click.echo(f"{one_line(what or 'The rest')} on {followers}, {fleet.id}")
    if not wait:
        return 0
    nodes = fleet.wait()
    code = end(fleet.id, nodes, as_json=as_json)
    if not as_json and any(node.state != "finished" for node in nodes):
        click.echo(f"Rest:   paceline submit --resume {fleet.id} --wait")
    return code


def _wait(client: Client, job_id: str, *, is_quiet: bool) -> Any:
    """The job once it has ended; interrupting this does not end the job."""
    last = ""
    job: Any = None
    try:
        for job in watch(client, job_id):
            words = one_line(" ".join(words_of(job)))
            if words != last and not is_quiet:
                click.echo(words)
            last = words
    except KeyboardInterrupt:
        click.echo(f"The job goes on; end it with: paceline cancel {job_id}", err=True)
        raise
    return job

"""Submit a suite or one benchmark to a leader."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import _names
from paceline.cli._case_command import CaseCommand
from paceline.cli._client import Client, leader_options
from paceline.cli._flags import case_flags, read_flags, read_settings
from paceline.core.errors import InputError, unknown
from paceline.report.text import one_line

if TYPE_CHECKING:
    from paceline.core.suite import Suite

_POLL = 0.5  # seconds between two looks at a job
_PATIENCE_WAITING = 600.0  # a leader may be restarted while somebody waits
FINAL = ("succeeded", "failed", "cancelled")
_NUMBERS = {"gpus": "gpus", "nodes": "nodes", "memory": "memory_gib"}
_NEEDS = ("gpu", *_NUMBERS, "label", "whole-node")


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
@click.argument("what", metavar="SUITE|BENCHMARK", shell_complete=_names.cases)
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
@click.option("--wait", is_flag=True, help="Until it has ended; exit with 1 unless it succeeded.")
@click.option("--json", "as_json", is_flag=True, help="The job as JSON.")
@leader_options
def command(
    what: str,
    settings: tuple[str, ...],
    filters: tuple[str, ...],
    priority: int,
    machines: str,
    tags: tuple[str, ...],
    wait: bool,
    as_json: bool,
    client: Client,
    **flags: Any,
) -> None:
    """Submit a suite (a file, or one that the leader knows by name) or one benchmark.

    Flags named after parameters override them, as in `paceline run`.
    """
    suite: dict[str, Any] | str = what  # a name is left to the leader, which has suites of its own
    if "/" in what or what.endswith((".yaml", ".yml")):
        from paceline.runner.suite_file import load_suite

        suite = load_suite(what).model_dump(include={"name", "description", "cases"})
    job_id = secrets.token_hex(8)
    body = {
        "id": job_id,
        "suite": suite,
        "overrides": read_flags(flags) | read_settings(settings),
        "only": list(filters),
        "needs": read_needs(machines),
        "priority": priority,
        "tags": list(tags),
    }
    job = client.post("/jobs", body)
    if not as_json:
        click.echo(f"Job {job_id} is {job['state']}: {job['name']}")
    if wait:
        client.be_patient(_PATIENCE_WAITING)
        job = _wait(client, job_id, is_quiet=as_json)
        if job["failure"] and not as_json:
            click.echo(f"What helps: {job['failure']['remedy']}")
    elif not as_json:
        click.echo(f"Follow it with: paceline logs {job_id} --follow")
    if as_json:
        click.echo(json.dumps(job, indent=2))
    if wait and job["state"] != "succeeded":
        sys.exit(1)


def read_needs(text: str) -> dict[str, Any]:
    """`gpu=h200,gpus=8,label=x` as the API takes it."""
    needs: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key == "whole-node" and not equals:
            needs["whole_node"] = True
        elif key in _NUMBERS and value.isdecimal():
            needs[_NUMBERS[key]] = int(value)
        elif key == "gpu" and value:
            needs["gpu"] = value
        elif key == "label" and value:
            needs.setdefault("labels", []).append(value)
        elif key in _NEEDS:
            message = "write it like gpu=h200,gpus=8,memory=80,label=x,nodes=2,whole-node"
            raise InputError("invalid-need", message, where=f"--machines {part}", key="--machines", value=part)
        else:
            raise unknown("need", key, _NEEDS, key="--machines").within(f"--machines {part}")
    return needs


def _wait(client: Client, job_id: str, *, is_quiet: bool) -> Any:
    """The job once it has ended; interrupting this does not end the job."""
    last: list[str] = []
    try:
        while True:
            job = client.get(f"/jobs/{job_id}")
            progress = job["progress"]
            words = [job["state"]]
            if job["followers"]:
                words.append(f"on {', '.join(job['followers'])}")
            if job["state"] == "running" and progress["cases"]:
                words.append(f"({progress['cases_done']} of {progress['cases']}: {progress['title'] or '...'})")
            if job["waits_for"]:
                words.append(f"({job['waits_for']})")
            if job["failure"]:
                words.append(f"({job['failure']['kind']}: {job['failure']['message']})")
            if job["state"] in FINAL and job["run_id"]:
                words.append(f"- run {job['run_id']}")
            if words != last and not is_quiet:
                click.echo(one_line(" ".join(words)))
            last = words
            if job["state"] in FINAL:
                return job
            time.sleep(_POLL)
    except KeyboardInterrupt:
        click.echo(f"The job goes on; end it with: paceline cancel {job_id}", err=True)
        raise

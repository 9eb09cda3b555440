"""`paceline.submit`: measures where a leader finds room, and brings the result back."""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.client import Client, new_client
from paceline.core.errors import InputError, PacelineError, unknown
from paceline.report.text import one_line

if TYPE_CHECKING:
    from paceline.api.result import Result

POLL = 0.5  # seconds between two looks at a job
PATIENCE_WAITING = 600.0  # a leader may be restarted while somebody waits
FINAL = ("succeeded", "failed", "cancelled")
_NUMBERS = {"gpus": "gpus", "nodes": "nodes", "memory": "memory_gib"}
_NEEDS = ("gpu", *_NUMBERS, "label", "follower", "whole-node")


class Job:
    """A run that was submitted to a leader."""

    def __init__(self, client: Client, fields: Mapping[str, Any]) -> None:
        self._client = client
        self.id = str(fields["id"])
        self.name = str(fields["name"])

    def describe(self) -> dict[str, Any]:
        """What the leader knows of it now."""
        fields: dict[str, Any] = self._client.get(f"/jobs/{self.id}")
        return fields

    @property
    def status(self) -> str:
        """queued, running, succeeded, failed, cancelled, ..., as the leader says at this moment."""
        return str(self.describe()["state"])

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> Job:
        """Until it has ended; an interrupt ends the waiting and not the job. TimeoutError after so many seconds."""
        begun, last = time.monotonic(), ""
        for fields in watch(self._client, self.id):
            words = one_line(" ".join(words_of(fields)))
            if progress and words != last:
                sys.stdout.write(words + "\n")
                sys.stdout.flush()
            last = words
            if timeout is not None and time.monotonic() - begun > timeout and fields["state"] not in FINAL:
                raise TimeoutError(f"job {self.id} is {fields['state']} after {timeout:g} s, and goes on")
        return self

    def result(self) -> Result:
        """Wait until it has ended, and fetch what was measured; PacelineError where nothing was."""
        from paceline.api.result import Result
        from paceline.core.run import RunRecords

        fields = self.wait(progress=False).describe()
        if not fields["run_id"]:
            why = fields["failure"] or {"message": "nothing was measured", "remedy": f"see paceline logs {self.id}"}
            raise PacelineError(f"job {self.id} has {fields['state']}: {why['message']}; {why['remedy']}")
        return Result(RunRecords.model_validate(self._client.get(f"/runs/{fields['run_id']}", samples="true")))

    def cancel(self) -> None:
        """End it, wherever it is."""
        self._client.post(f"/jobs/{self.id}/cancel")

    def __repr__(self) -> str:
        return f"job {self.id}: {self.name}, at {self._client.url}"


def submit(
    what: str | Path,
    /,
    *,
    leader: str | None = None,
    token: str | None = None,
    tags: str | Sequence[str] = (),
    priority: int = 0,
    machines: str = "",
    **parameters: Any,
) -> Job:
    """Submit a suite (a file, or one that the leader knows by name) or a benchmark to a leader.

    Its address is `leader`, otherwise $PACELINE_LEADER; the token is `token`, otherwise $PACELINE_TOKEN. Parameters are
    those of `paceline.run`, but no objects: a leader takes names of models, and runs no code that comes by the network.
    """
    _refuse_objects(what, parameters)
    from paceline.api.run import plain

    overrides = {key: plain(value, key) for key, value in parameters.items()}
    client = new_client(leader, token)
    tags = (tags,) if isinstance(tags, str) else tags
    return Job(client, send(client, str(what), overrides, tags=tags, priority=priority, machines=machines))


def send(
    client: Client,
    what: str,
    overrides: Mapping[str, Any],
    *,
    only: Sequence[str] = (),
    tags: Sequence[str] = (),
    priority: int = 0,
    machines: str = "",
    follower: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Submit a job, to the whole of one follower where that is given; what the leader says of it."""
    suite: dict[str, Any] | str = what  # a name is left to the leader, which has suites of its own
    if "/" in what or what.endswith((".yaml", ".yml")):
        from paceline.runner.suite_file import load_suite

        suite = load_suite(what).model_dump(include={"name", "description", "cases"})
    body = {"suite": suite, "overrides": dict(overrides), "only": list(only), "needs": read_needs(machines),
            "priority": priority, "tags": list(tags)}  # fmt: skip
    return resend(client, body, follower)


def resend(client: Client, job: Mapping[str, Any], follower: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Submit the same as that of another job, to the whole of one follower where that is given."""
    needs = dict(job["needs"])
    if follower is not None:
        alike = Counter(zip(follower["gpus"], follower["gpu_memory_gib"], strict=True))  # a node comes with all others
        needs |= {"follower": follower["id"], "whole_node": True, "gpus": max(alike.values(), default=0)}
    same = {name: job[name] for name in ("suite", "overrides", "only", "priority", "tags")}
    body = {"id": secrets.token_hex(8), **same, "needs": needs}
    sent: dict[str, Any] = client.post("/jobs", body)
    return sent | {"id": body["id"]}


def watch(client: Client, job_id: str) -> Iterator[dict[str, Any]]:
    """The job, again and again until it has ended; a leader that is restarted meanwhile is waited for."""
    client.be_patient(PATIENCE_WAITING)
    while True:
        job = client.get(f"/jobs/{job_id}")
        yield job
        if job["state"] in FINAL:
            return
        time.sleep(POLL)


def words_of(job: Mapping[str, Any]) -> list[str]:
    """Where a job stands."""
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
    return words


def read_needs(text: str) -> dict[str, Any]:
    """`gpu=h200,gpus=8,label=x` as the API takes it."""
    needs: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key == "whole-node" and not equals:
            needs["whole_node"] = True
        elif key in _NUMBERS and value.isdecimal():
            needs[_NUMBERS[key]] = int(value)
        elif key in ("gpu", "follower") and value:
            needs[key] = value
        elif key == "label" and value:
            needs.setdefault("labels", []).append(value)
        elif key in _NEEDS:
            message = "write it like gpu=h200,gpus=8,memory=80,label=x,nodes=2,whole-node"
            raise InputError("invalid-need", message, where=f"--machines {part}", key="--machines", value=part)
        else:
            raise unknown("need", key, _NEEDS, key="--machines").within(f"--machines {part}")
    return needs


def _refuse_objects(what: object, parameters: Mapping[str, Any]) -> None:
    from paceline.models.sources import is_own

    def refused(name: str, shown: str) -> InputError:
        message = (
            f"{name} = {shown} cannot be submitted: a leader runs no code and reads no file that comes by the network; "
            "name a model of the zoo, or measure here with paceline.run"
        )
        return InputError("not-from-network", message, key=name, value=shown)

    if not isinstance(what, str | Path) or str(what).endswith(".py"):
        raise refused("what", getattr(what, "__name__", None) or str(what))
    for name in ("model", "inputs", "loss"):
        values = parameters.get(name)
        for value in values if isinstance(values, list | tuple) and name == "model" else [values]:
            if value is None:
                continue
            if not isinstance(value, str):
                raise refused(name, f"an object of type {type(value).__name__}")
            if name == "model" and is_own(value):
                raise refused(name, f"'{value}'")

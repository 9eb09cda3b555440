"""A suite on every follower of a leader at once: a job for each, whose runs share a tag."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.api.client import Client
from paceline.api.fleet import FleetListener, NodeRun, State, new_fleet_id
from paceline.api.jobs import FINAL, PATIENCE_WAITING, POLL, read_needs, resend, send
from paceline.core.errors import InputError
from paceline.core.run import RunRecords

AWAY_SECONDS = 10.0  # a follower may take so long to come back before its job is no longer waited for
_MEASURED = ("cases", "timeout", "out-of-memory")  # failures of jobs whose cases were measured
MISSED = timedelta(days=1)  # a machine that was here since then, and is not, is one of the fleet that is missing


class JobFleet:
    """One round over the followers of a leader."""

    def __init__(self, client: Client, listener: FleetListener) -> None:
        self.id = new_fleet_id()
        self.nodes: list[NodeRun] = []
        self.jobs: dict[str, str] = {}  # by follower
        self._client, self._listener = client, listener

    def submit(
        self, what: str, overrides: Mapping[str, Any], *, tags: Sequence[str], machines: str, **more: Any
    ) -> None:
        """A job for each follower that is here and has what `machines` asks for; those that are missing are named."""
        more |= {"tags": [self.id, *tags], "machines": machines}
        for view in self._followers(read_needs(machines)):
            if self._is_here(view):
                self._add(view, send(self._client, what, overrides, follower=view, **more))
        if not self.jobs:
            message = "no follower that could run it is here; 'paceline leader' says how machines become followers"
            raise InputError("no-follower", message, key="--each")

    def resume(self, fleet: str) -> None:
        """Go on with an earlier round: a job for each follower that has none by now, or whose last came to nothing."""
        self.id, latest = fleet, self._latest_jobs(fleet)
        if not latest:
            message = f"the leader has no jobs of '{fleet}'; 'paceline jobs' shows their tags"
            raise InputError("unknown-fleet", message, key="--resume", value=fleet)
        newest = next(iter(latest.values()))
        of_any = newest["needs"] | {"follower": "", "whole_node": False, "gpus": 0}  # these are one follower's own
        for view in self._followers(of_any):
            job = latest.get(view["id"])
            if job is not None and not _came_to_nothing(job):
                self._add(view, job)
            elif self._is_here(view):
                whole = self._client.get(f"/jobs/{(job or newest)['id']}")
                self._add(view, resend(self._client, whole, view))

    def _followers(self, needs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The leader's followers that have what is needed."""
        from paceline.service.engines.base import FollowerState
        from paceline.service.jobs import MachineNeeds
        from paceline.service.placement import could_run

        required, known = MachineNeeds.model_validate(needs), set(FollowerState.model_fields)
        views: list[dict[str, Any]] = self._client.get("/followers")["followers"]
        states = [FollowerState.model_validate({name: view[name] for name in view.keys() & known}) for view in views]
        return [view for view, state in zip(views, states, strict=True) if could_run(state, required)]

    def _is_here(self, view: Mapping[str, Any]) -> bool:
        """Whether a follower can be given a job; one that cannot is named, unless it is gone for long."""
        if view["present"] and not view["refused"]:
            return True
        seen_at = datetime.fromisoformat(view["seen_at"])
        if view["refused"] or seen_at > datetime.now(UTC) - MISSED:
            why = view["refused"] or f"it was seen last at {seen_at:%Y-%m-%d %H:%M} UTC"
            self.nodes.append(NodeRun(view["id"], "refused" if view["refused"] else "unreachable", why))
        return False

    def _add(self, view: Mapping[str, Any], job: Mapping[str, Any]) -> None:
        self.nodes.append(NodeRun(view["id"]))
        self.jobs[view["id"]] = job["id"]

    def _latest_jobs(self, fleet: str) -> dict[str, dict[str, Any]]:
        """The last job of each follower that has this tag, as it is listed."""
        latest: dict[str, dict[str, Any]] = {}
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            page = self._client.get("/jobs", **({"cursor": page["next"]} if page["next"] else {}))
            for job in (job for job in page["jobs"] if fleet in job["tags"]):
                latest.setdefault(job["needs"]["follower"], job)
        return latest

    def wait(self) -> Sequence[NodeRun]:
        """Until every job has ended, or waits for a follower that has gone; such a job goes on when that returns."""
        self._client.be_patient(PATIENCE_WAITING)
        for missing in [node for node in self.nodes if node.is_over]:
            self._listener.changed(missing)
        seen_at = dict.fromkeys(self.jobs, time.monotonic())
        while not all(node.is_over for node in self.nodes):
            now = time.monotonic()
            here = {view["id"] for view in self._client.get("/followers")["followers"] if view["present"]}
            seen_at |= dict.fromkeys(here, now)
            for node in [node for node in self.nodes if not node.is_over]:
                job = self._client.get(f"/jobs/{self.jobs[node.host]}")
                is_away = job["state"] == "queued" and now - seen_at[node.host] > AWAY_SECONDS
                self._look(node, job, is_away=is_away)
            time.sleep(POLL)
        return self.nodes

    def _look(self, node: NodeRun, job: Mapping[str, Any], *, is_away: bool) -> None:
        state: State = "measuring" if job["state"] == "running" else node.state
        node.cases, node.run_id = job["progress"]["cases"] or node.cases, job["run_id"] or ""
        if is_away:
            state, node.cause = "lost", f"{job['waits_for'] or 'it has gone'}; job {job['id']} waits for it"
        elif job["state"] in FINAL:
            node.result = self._result(node.run_id)
            node.cases = len(node.result.run.cases) if node.result is not None else node.cases
            state, node.cause = "finished", ""
            if job["state"] == "cancelled":
                state, node.cause = "interrupted", f"job {job['id']} was cancelled"
            elif (failure := job["failure"]) is not None and failure["kind"] not in _MEASURED:
                state, node.cause = "lost" if failure["kind"] == "follower-lost" else "refused", failure["message"]
        if state != node.state:
            node.state, node.seconds = state, time.monotonic() - node.began
            self._listener.changed(node)

    def _result(self, run_id: str) -> RunRecords | None:
        try:
            return RunRecords.model_validate(self._client.get(f"/runs/{run_id}", samples="true")) if run_id else None
        except InputError:  # its attempt has not even begun
            return None


def _came_to_nothing(job: Mapping[str, Any]) -> bool:
    """Whether a job is over, and another one could do better."""
    failure = job["failure"]
    return job["state"] == "cancelled" or (failure is not None and failure["kind"] not in _MEASURED)

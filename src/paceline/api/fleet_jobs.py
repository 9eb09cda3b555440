"""A suite on every follower of a leader at once: a job for each, whose runs share a tag."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.api.client import Client
from paceline.api.fleet import FleetListener, NodeRun, State, new_fleet_id
from paceline.api.jobs import FINAL, PATIENCE_WAITING, POLL, read_needs, send
from paceline.core.errors import InputError
from paceline.core.run import RunRecords

AWAY_SECONDS = 10.0  # a follower may take so long to come back before its job is no longer waited for
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
        from paceline.service.engines.base import FollowerState
        from paceline.service.jobs import MachineNeeds
        from paceline.service.placement import could_run

        needs, oldest = MachineNeeds.model_validate(read_needs(machines)), datetime.now(UTC) - MISSED
        known = set(FollowerState.model_fields)
        for view in self._client.get("/followers")["followers"]:
            state = FollowerState.model_validate({name: view[name] for name in view.keys() & known})
            if not could_run(state, needs):
                continue
            if view["present"] and not state.refused:
                self.nodes.append(NodeRun(state.id))
                job = send(
                    self._client, what, overrides, tags=[self.id, *tags], machines=machines, follower=view, **more
                )
                self.jobs[state.id] = job["id"]
            elif state.refused or state.seen_at > oldest:
                why = state.refused or f"it was seen last at {state.seen_at:%Y-%m-%d %H:%M} UTC"
                self.nodes.append(NodeRun(state.id, "refused" if state.refused else "unreachable", why))
        if not self.jobs:
            message = "no follower that could run it is here; 'paceline leader' says how machines become followers"
            raise InputError("no-follower", message, key="--each")

    def wait(self) -> Sequence[NodeRun]:
        """Until every job has ended, or waits for a follower that has gone; such a job goes on when that returns."""
        self._client.be_patient(PATIENCE_WAITING)
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
            failure = job["failure"]
            is_through = failure is None or failure["kind"] in ("cases", "timeout", "out-of-memory")
            state = "interrupted" if job["state"] == "cancelled" else "finished" if is_through else "refused"
            node.cause = "" if state == "finished" else f"job {job['id']} was cancelled"
            node.cause = failure["message"] if state == "refused" else node.cause
        if state != node.state:
            node.state, node.seconds = state, time.monotonic() - node.began
            self._listener.changed(node)

    def _result(self, run_id: str) -> RunRecords | None:
        return RunRecords.model_validate(self._client.get(f"/runs/{run_id}", samples="true")) if run_id else None

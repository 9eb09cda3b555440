"""The leader itself in figures: its queue, its leases, its store and its front, as OpenMetrics text."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from paceline.report.export.openmetrics import PREFIX, Family, exposition, labels_of
from paceline.service.api.connections import Gate
from paceline.service.jobs import JobState
from paceline.service.leader import Leader
from paceline.store.store import Store

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def leader_metrics(leader: Leader, store: Store, gate: Gate | None) -> str:
    """All of them, as they are now."""
    begun = time.perf_counter()
    counts = {state.value: 0 for state in JobState} | store.queue.counts()
    read_seconds = time.perf_counter() - begun
    leases, (writes, write_seconds) = leader.leases, leader.store_writes
    families = {
        "jobs": Family("", "Jobs in each state.", {labels_of({"state": one}): n for one, n in counts.items()}),
        "followers": _single("", "Followers that are here.", len(leader.followers())),
        "followers_refused": _single("", "Followers that are refused.", len(leader.refused())),
        "leases": _single("", "Jobs that followers have.", len(leases)),
        "age_seconds": _single("seconds", "Time since the leader last knew of its followers.", leader.age),
        "ready": _single("", "1 while jobs are taken, 0 while they are not.", leader.is_ready),
        "store_read_seconds": _single("seconds", "Time that counting the jobs took just now.", read_seconds),
        "store_writes": _single("", "Changes of jobs that were stored.", writes, "counter"),
        "store_write_seconds": _single("seconds", "Time that storing them took.", write_seconds, "counter"),
    }
    if leases:
        left = (min(leases) - datetime.now(UTC)).total_seconds()
        families["lease_left_seconds"] = _single("seconds", "Time until the first lease runs out.", left)
    quarantined = store.queue.quarantine_count()
    families["quarantined_reports"] = _single("", "Items of reports that could not be stored.", quarantined)
    if gate is not None:
        families["connections"] = _single("", "Connections that are open.", len(gate))
        families["connections_refused"] = _single(
            "", "Connections for which another had to go.", gate.refused, "counter"
        )
    return exposition({f"{PREFIX}_leader_{name}": family for name, family in families.items()})


def _single(unit: str, about: str, value: float, kind: str = "gauge") -> Family:
    return Family(unit, about, {"": float(value)}, kind)

"""What happened to a job and when, as the pages show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from paceline.report.text import one_line
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import FailureKind, Job, JobState, MachineNeeds
from paceline.service.placement import gpu_indices
from paceline.store.queue import EventRow

STATES = {
    JobState.QUEUED: "waits",
    JobState.PLACED: "starts",
    JobState.RUNNING: "runs",
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}


CAUSES = {
    FailureKind.CASES: "Some cases failed",
    FailureKind.TIMEOUT: "Out of time",
    FailureKind.MEMORY: "Out of memory",
    FailureKind.REFUSED: "Refused",
    FailureKind.LOST: "Its machine was lost",
    FailureKind.BROKEN: "A machine of its gang was lost",
    FailureKind.UNPLACEABLE: "No such machine",
    FailureKind.INTERNAL: "A defect of Paceline",
}


class HistoryLine(BaseModel):
    """One line of a job's history."""

    at: datetime
    kind: str
    text: str
    is_bad: bool = False


def span(seconds: float) -> str:
    """A time as one says it in passing: `8 s`, `3 min`, `2 h 5 min`, `4 d`."""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return "under 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest and hours < 10 else f"{hours} h"
    return f"{round(hours / 24)} d"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 job`, `12,000 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in a row; of very many the first few."""
    names = [one_line(name) for name in names]
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def needs_words(needs: MachineNeeds) -> str:
    """What the machine of a job must have."""
    parts = []
    if needs.gpus or needs.gpu:
        name = f"{needs.gpu} " if needs.gpu else ""
        parts.append(f"{max(1, needs.gpus)} {name}GPU{'s' if needs.gpus > 1 else ''}")
    else:
        parts.append("CPU")
    if needs.memory_gib:
        parts.append(f"{needs.memory_gib} GiB each")
    if needs.nodes > 1:
        parts.append(f"on each of {needs.nodes} machines")
    if needs.whole_node:
        parts.append("whole machine")
    return one_line(", ".join([*parts, *needs.labels]))


def lead_of(state: FollowerState) -> str:
    """What a machine computes with: its GPUs, otherwise its processor, otherwise its name."""
    gpus = [f"{count} × {name}" if count > 1 else name for name, count in Counter(state.gpus).items()]
    return one_line(", ".join(gpus) or _processor(state) or state.id)


def rest_of(state: FollowerState) -> str:
    """What else it has."""
    if not state.cpus:  # it was never believed
        return ""
    cores = f"{state.cpus:g} {'core' if state.cpus == 1 else 'cores'}"
    return one_line(
        ", ".join(filter(None, [_processor(state) if state.gpus else "", cores, f"{state.memory_gib:.0f} GiB"]))
    )


def _processor(state: FollowerState) -> str:
    cpu = state.machine.get("cpu")
    return str(cpu.get("model") or "") if isinstance(cpu, dict) else ""


def history(events: Iterable[EventRow], job: Job) -> list[HistoryLine]:
    """What happened to a job, the first thing first."""
    lines: list[HistoryLine] = []
    attempt, followers, is_stopping = 0, "", False
    for event in events:
        document, is_bad = event.document, False
        match event.kind:
            case "submitted":
                text = f"Submitted{_by(document)}"
            case "placed":
                attempt += 1
                devices = document.get("devices") or [() for _ in document["followers"]]
                names = []
                for follower, indices in zip(document["followers"], devices, strict=False):
                    gpus = gpu_indices(tuple(indices))
                    names.append(f"{follower} (GPU {', '.join(map(str, gpus))})" if gpus else follower)
                followers = listed(names)
                text = f"Placed on {followers}" if attempt == 1 else f"Attempt {attempt}: placed on {followers}"
            case "began":
                text = "Began to measure"
            case "lost" | "ended" if is_stopping:
                text = "Stopped"
            case "lost":
                is_bad = True
                is_last = job.state.is_final and attempt == job.attempt
                after = "that was the last attempt" if is_last else "it waits again"
                text = f"Lost: {document.get('reason', '')}; {after}"
            case "cancelled":
                is_stopping = True
                text = f"Stop asked{_by(document)}" if followers and attempt else f"Cancelled{_by(document)}"
            case "ended":
                failure = document.get("failure")
                is_bad = bool(failure)
                text = f"Failed: {failure['message']}" if failure else "Ended well"
            case "refused":
                is_bad = True
                text = f"Refused: {document.get('failure', {}).get('message', '')}"
            case _:
                text = event.kind
        if event.kind in ("lost", "ended"):
            followers = ""
        lines.append(HistoryLine(at=event.at, kind=event.kind, text=one_line(text), is_bad=is_bad))
    return lines


def _by(document: dict[str, Any]) -> str:
    return f" by {document['by']}" if document.get("by") else ""

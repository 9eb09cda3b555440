"""Reads what records have in common out of the facts that benchmarks give their usual names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError

from paceline.core.record import Record
from paceline.core.subject import Description, Economy, Precision, StepTrace, Subject

TRACE = "trace"


def usual_description(record: Record, primary: str) -> Description:
    """What any benchmark's record says, by the usual names of facts and parameters."""
    facts = record.facts
    return Description(
        primary=primary,
        subject=_subject(record),
        economy=Economy(
            energy_source=_text(facts.get("energy_source")) or "",
            price_basis=_text(facts.get("price_basis")) or "",
            carbon=_number(record.case.parameters.get("carbon")),
        ),
        trace=_trace(facts),
        timing=_joined(facts.get("timing")),
    )


def _subject(record: Record) -> Subject:
    facts, parameters = record.facts, record.case.parameters
    precision = facts.get("precision") or parameters.get("precision")
    batch = facts.get("global_batch_size") or facts.get("batch_size") or parameters.get("batch_size")
    compiled = facts.get("compiled")
    return Subject(
        model=_text(parameters.get("model")) or _text(facts.get("model")),
        scale=_text(parameters.get("scale")),
        precision=precision if precision in get_args(Precision) else None,
        batch=_whole(batch),
        layout=_text(facts.get("layout")),
        device=_text(facts.get("device")),
        engine=_text(facts.get("engine")) or _text(facts.get("backend")) or _text(facts.get("framework")),
        threads=_whole(facts.get("threads")),
        compiled=compiled if isinstance(compiled, bool) else None,
        seed=_whole(parameters.get("seed")),
    )


def _trace(facts: Mapping[str, Any]) -> StepTrace | None:
    kept = facts.get(TRACE)
    if not isinstance(kept, Mapping) or not kept.keys() & {"spent", "missing", "file"}:
        return None
    words = dict(kept)
    if "cut_short" in facts:
        words["missing"] = f"{words.get('missing', '')}: {facts['cut_short']}"
    try:
        return StepTrace.model_validate(words)
    except ValidationError:
        rest = {key: value for key, value in kept.items() if key in ("file", "no_file")}
        return StepTrace(missing="another version of Paceline took it; the file may still be there", **rest)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _joined(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else _text(value) or ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

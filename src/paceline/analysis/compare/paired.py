"""Two sides that were measured in turns within one run, A B B A ...: compared turn by turn, so that drift cancels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.analysis.compare.matching import Match, Matched, Pool, Side, differences
from paceline.analysis.compare.significance import ratio_of_pairs
from paceline.analysis.compare.verdicts import (
    Comparison,
    Draft,
    Pairing,
    Wanted,
    figures,
    judged,
    part_of,
    with_rows,
)
from paceline.core.case import Case
from paceline.core.errors import InputError, unknown
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords

MARKS = (" [A]", " [B]")  # at the end of a title


def side_of(case: Case) -> int | None:
    """0 for A, 1 for B, None for what belongs to neither."""
    return next((place for place, mark in enumerate(MARKS) if case.title.endswith(mark)), None)


def is_in_turns(records: RunRecords) -> bool:
    """Whether every case of the run belongs to a side."""
    cases = records.run.cases
    return bool(cases) and all(side_of(case) is not None for case in cases)


def compare_turns(
    records: RunRecords,
    *,
    metrics: Sequence[str] = (),
    also: Sequence[str] = (),
    every: bool = False,
) -> Comparison:
    """The paired ratio B / A of every case, over the turns in which both succeeded."""
    turns: dict[tuple[str, str], list[tuple[Record, Record]]] = {}
    unpaired: list[str] = []
    for one, other in _turns(records):
        if one is not None and other is not None and one.outcome is other.outcome is Outcome.OK:
            turns.setdefault((one.case.key, other.case.key), []).append((one, other))
        else:
            failed = next((r for r in (one, other) if r is not None and r.outcome is not Outcome.OK), None)
            label = failed.case.title if failed else "a turn"
            unpaired.append(f"{label}, round {failed.case.repeat}: {failed.outcome.value}" if failed else "not run")
    if not turns:
        message = f"run '{records.run.id}' has no round in which both sides succeeded: see 'paceline report'"
        raise InputError("no-complete-round", message, value=records.run.id)
    pairs = [_match(told) for told in turns.values()]
    wanted = Wanted(tuple(metrics), tuple(also), every)
    drafts = [draft for pair, told in zip(pairs, turns.values(), strict=True) for draft in _drafts(pair, told, wanted)]
    for name in (*metrics, *also):
        if not any(draft.measured.metric.name == name for draft in drafts):
            raise unknown("metric", name, {m.metric.name for record in records.records for m in record.measurements})
    found = [
        ratio_of_pairs([(one.measurement.value, other.measurement.value) for one, other in zip(a, b, strict=True)])
        for _, _, a, b in drafts
    ]
    sides = [
        Side(f"{name}{_settings(pairs, place)}", (RunRecords(run=records.run, records=_of_side(records, place)),))
        for place, name in enumerate("AB")
    ]
    pairing = Pairing(
        reference=sides[0],
        new=sides[1],
        matched=Matched(tuple(pairs), (), ()),
        broken=(),
        uncompared=tuple(dict.fromkeys(unpaired)),
        environment=(),
    )
    return Comparison((with_rows(pairing, judged(drafts, found)),), is_paired=True)


def _turns(records: RunRecords) -> Iterator[tuple[Record | None, Record | None]]:
    """A and B of every turn, whichever came first; they stand next to each other in the run."""
    found = {record.case.index: record for record in records.records}
    ordered = sorted(records.run.cases, key=lambda case: case.index)
    for first, second in zip(ordered[::2], ordered[1::2], strict=False):
        pair = (found.get(first.index), found.get(second.index))
        yield pair if side_of(first) == 0 else (pair[1], pair[0])


def _match(told: Sequence[tuple[Record, Record]]) -> Match:
    reference, new = (Pool(side[0].case, tuple(side)) for side in zip(*told, strict=True))
    names = [pool.case.title.removesuffix(mark) for pool, mark in zip((reference, new), MARKS, strict=True)]
    shared = [word for word in names[0].split() if word in names[1].split()]
    label = " ".join(shared) or reference.case.benchmark
    if not label.startswith(reference.case.benchmark):
        label = f"{reference.case.benchmark} {label}"
    return Match(label, reference, new, differences(reference.case, new.case), is_alike=False)


def _settings(pairs: Sequence[Match], place: int) -> str:
    """What this side sets otherwise, where all cases agree on it."""
    told = [{f"{one.name}={(one.reference, one.new)[place]}" for one in pair.differences} for pair in pairs]
    shared = sorted(set.intersection(*told)) if told else []
    return f" ({', '.join(shared)})" if shared else ""


def _of_side(records: RunRecords, place: int) -> list[Record]:
    return [record for record in records.records if side_of(record.case) == place]


def _drafts(pair: Match, told: Sequence[tuple[Record, Record]], wanted: Wanted) -> Iterator[Draft]:
    both = [(figures(one), figures(other)) for one, other in told]
    for key in wanted.keys(told[0], *both[0]):
        good = [(part_of(one, key), part_of(other, key)) for one, other in both if key in one and key in other]
        yield Draft(pair, both[0][0][key], [one for one, _ in good], [other for _, other in good])

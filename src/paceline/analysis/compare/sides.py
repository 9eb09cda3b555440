"""Compares sides that were measured apart, each with the first: by the samples of their runs and by earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, zip_longest

from paceline.analysis.compare.drafts import (
    Draft,
    Key,
    MetricSelection,
    figures_of,
    judged_rows,
    key_of,
    means_of,
    repeat_samples,
)
from paceline.analysis.compare.matching import Match, Side, environment_differences, match
from paceline.analysis.compare.significance import RepeatSamples, ratios
from paceline.analysis.compare.verdicts import Broken, Comparison, Pairing
from paceline.analysis.figures import shortened
from paceline.core.device import is_accelerator
from paceline.core.errors import InputError
from paceline.core.run import Run, RunRecords, machine_key, sessions_of
from paceline.core.uncertainty import ENOUGH

# Earlier runs of the machines of these runs, but not these themselves, with the metrics named.
Earlier = Callable[[Sequence[Run], Sequence[str]], Sequence[RunRecords]]


def compare(
    sides: Sequence[Side],
    *,
    metrics: Sequence[str] = (),
    also: Sequence[str] = (),
    every: bool = False,
    earlier: Earlier | None = None,
) -> Comparison:
    """Compare every side with the first: by each case's headline, or by the metrics named; `also` by others.

    `earlier` is asked how far runs of a machine scatter where a side has few.
    """
    if len(sides) < 2:
        raise InputError("too-few-sides", "a comparison needs two sides: name a reference and at least one other")
    selection = MetricSelection(tuple(metrics), tuple(also), every)
    pairings = [_pairing(sides[0], side, selection) for side in sides[1:]]
    drafts = [draft for _, drafts in pairings for draft in drafts]
    selection.check(drafts, [record for side in sides for record in side.records])
    drafts = _with_histories(drafts, sides, earlier)
    histories = list(zip_longest(*(draft.past for draft in drafts), fillvalue=()))  # of all cases, group by group
    rows = judged_rows(drafts, ratios([one.before for one in drafts], [one.after for one in drafts], histories))
    made = iter(zip(drafts, rows, strict=True))
    compared = []
    for pairing, ours in pairings:
        mine = list(islice(made, len(ours)))
        compared.append(replace(pairing, rows=tuple(row for _, row in mine), means=tuple(means_of(mine))))
    return Comparison(tuple(compared))


def _with_histories(drafts: Sequence[Draft], sides: Sequence[Side], earlier: Earlier | None) -> list[Draft]:
    """The drafts with the session of each part, and with earlier parts of the same case and machine."""
    runs = [one.run for side in sides for one in side.runs]
    past: Sequence[RunRecords] = ()
    if earlier is not None and drafts and any(len(side.runs) < ENOUGH for side in sides):
        past = earlier(runs, sorted({draft.measured.metric.name for draft in drafts}))
    sessions = sessions_of([*runs, *(one.run for one in past)])
    machines = {run.id: machine_key(run.environment) for run in runs}
    stored: dict[tuple[str, str, Key], dict[tuple[str | None, ...], list[RepeatSamples]]] = {}
    for one in past:
        machine, software = machine_key(one.run.environment), _software(one.run)
        for record in one.records if machine else ():
            for key, measured in figures_of(record).items():
                part = RepeatSamples(measured, (), one.run.id, sessions[one.run.id])
                of_case = stored.setdefault((machine, record.case.key, key), {})
                of_case.setdefault(software, []).append(part)

    def completed(draft: Draft) -> Draft:
        sides = ((draft.pair.reference, draft.before), (draft.pair.new, draft.after))
        known: dict[tuple[str, str, Key], dict[tuple[str | None, ...], list[RepeatSamples]]] = {}
        for pool, parts in sides if stored else ():
            case, metric = pool.case.key, key_of(draft.measured)
            places = [(machines.get(part.run, ""), case, metric) for part in parts]
            known |= {place: stored[place] for place in places if place in stored}
        before, after = (
            [RepeatSamples(one, samples, run, sessions.get(run, run)) for one, samples, run, _ in parts]
            for _, parts in sides
        )
        past_parts = [parts for of_case in known.values() for parts in of_case.values()]
        return draft._replace(before=before, after=after, past=past_parts)

    return [completed(draft) for draft in drafts]


def _software(run: Run) -> tuple[str | None, ...]:
    """What a new version of moves figures: runs of different ones do not show how far runs scatter."""
    of = run.environment
    return run.version, of.driver.version if of.driver else None, of.software.packages.get("torch")


def _pairing(reference: Side, new: Side, selection: MetricSelection) -> tuple[Pairing, list[Draft]]:
    matched = match(reference, new)
    if not matched.matches:
        message = (
            f"'{reference.name}' and '{new.name}' have no case in common: "
            f"the one has {shortened(matched.only_reference)}, the other {shortened(matched.only_new)}"
        )
        raise InputError("no-case-in-common", message, value=new.name)
    drafts: list[Draft] = []
    broken: list[Broken] = []
    uncompared: list[str] = []
    for pair in matched.matches:
        bad = [side for side in ((pair.reference, reference), (pair.new, new)) if not side[0].good]
        if bad:
            for pool, side in bad if len(bad) == 1 else ():  # where neither side has it, nothing changed
                last = pool.records[-1]
                reason = f"{last.outcome.value}: {last.cause.message}" if last.cause else last.outcome.value
                broken.append(Broken(pair.label, side.name, side is new, reason))
            continue
        made, why = _drafts(pair, selection)
        drafts += made
        uncompared += [f"{pair.label}: {why}"] if why else []
    targets = [pool.case.target for pair in matched.matches for pool in (pair.reference, pair.new)]
    pairing = Pairing(
        reference=reference,
        new=new,
        matched=matched,
        broken=tuple(broken),
        uncompared=tuple(uncompared),
        environment=environment_differences(reference, new, on_gpus=any(map(is_accelerator, targets))),
    )
    return pairing, drafts


def _drafts(pair: Match, selection: MetricSelection) -> tuple[list[Draft], str]:
    before = [(record.run_id, figures_of(record)) for record in pair.reference.good]
    after = [(record.run_id, figures_of(record)) for record in pair.new.good]
    first = (pair.reference.good[0], pair.new.good[0])
    made: list[Draft] = []
    for key in selection.keys(first, before[0][1], after[0][1]):
        measured, other = before[0][1][key], after[0][1][key]
        if measured.metric.unit != other.metric.unit:
            return made, f"'{key[0]}' is in {measured.metric.unit} and in {other.metric.unit}"
        parts = [[repeat_samples(one, key, run) for run, one in side if key in one] for side in (before, after)]
        made.append(Draft(pair, measured, parts[0], parts[1]))
    return made, "" if made or selection.names else "no metric that both sides have"

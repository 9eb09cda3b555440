"""What served language models say: tokens in total and for each user under every load, and which loads none beats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.analysis.serving import BURST, pareto
from paceline.analysis.summary import TAILS, CaseRow, headline_of
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.core.record import Measurement

TOTAL, PER_USER = "token_throughput", "tokens_per_user"
FIRST, BETWEEN = "first_token", "between_tokens"  # the beginnings of the names of their percentiles
JOULES, USD = "energy_per_token", "cost_per_million_tokens"


def load_name(amount: float, *, is_users: bool) -> str:
    """A load in words: `8 users`, `12.5/s`."""
    return f"{amount:.0f} {'user' if amount == 1 else 'users'}" if is_users else f"{show_count(amount)}/s"


@dataclass(frozen=True)
class TokenLoad:
    """One load of a language model."""

    row: CaseRow
    is_users: bool  # whether it is so many users; otherwise so many requests/s
    amount: float
    on_front: bool = False  # no other load of the same kind gives more in total and to each user

    @property
    def name(self) -> str:
        return load_name(self.amount, is_users=self.is_users)

    def value(self, name: str) -> float | None:
        """A figure, where it was measured."""
        figure = self.row.figure(name)
        return figure.value if figure is not None and math.isfinite(figure.value) else None

    @property
    def per_device(self) -> float | None:
        """Tokens/s of one device, or of the server where it is not known how many it has."""
        load, total = self.row.record.load, self.value(TOTAL)
        return None if total is None else total / ((load.devices if load is not None else None) or 1)


TokenCurve = tuple[TokenLoad, ...]  # one server with one model under loads of the same kind, the lightest first


def makes_tokens(row: CaseRow) -> bool:
    """Whether it is a language model whose tokens were counted."""
    return row.record.load is not None and row.figure(TOTAL) is not None


def each_load(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """The same rows, with a row for each load of a sweep instead of one for all of them."""
    return [one for row in rows for one in _of_sweep(row)]


def _of_sweep(row: CaseRow) -> list[CaseRow]:
    load = row.record.load
    if load is None or not load.sweep or not row.ok:
        return [row]
    verdicts = {one.at: one.slo for one in load.loads}
    rows = []
    for sweep in row.sweeps:
        for point in sweep.points if sweep.axes == (load.sweep,) else ():
            amount = float(point.at[load.sweep])
            slo = verdicts.get(amount, "")
            is_met = True if slo == "held" else False if slo.startswith("missed") else None
            own = load.model_copy(
                update={
                    load.sweep: int(amount) if load.sweep == "users" else amount,
                    "slo_met": is_met,
                    "slo_missed_because": slo.removeprefix("missed: ") if is_met is False else "",
                    "slo_undecided": slo if is_met is None else "",
                }
            )
            measured = [replace(figure, at={}) for figure in point.figures]
            record = row.record.model_copy(update={"measurements": measured, "load": own})
            rows.append(CaseRow(record, f"{row.label} {load.sweep}={show_count(amount)}", headline_of(record)))
    return rows or [row]


def token_curves(rows: Sequence[CaseRow]) -> list[TokenCurve]:
    """Language models under their loads, by what else was the same, with what no other load beats."""
    served = [row for row in each_load(rows) if row.ok and makes_tokens(row)]
    settings = group_by(served, lambda row: row.record.load.setting if row.record.load else "").values()
    curves = ([load for row in members if (load := load_of(row)) is not None] for members in settings)
    return [tuple(sorted(_with_front(loads), key=lambda load: load.amount)) for loads in curves if loads]


def load_of(row: CaseRow) -> TokenLoad | None:
    """How much load it was: users who wait for their answers, or requests/s; a burst is neither."""
    load = row.record.load
    if load is None or load.loop == BURST:
        return None
    if load.loop == "closed":
        return TokenLoad(row, True, float(load.users or 1))
    offered = row.figure("offered_rate")
    rate = load.rate or (offered.value if offered is not None else None)
    return TokenLoad(row, False, rate) if rate is not None else None


def _with_front(loads: Sequence[TokenLoad]) -> list[TokenLoad]:
    pairs = [(load.value(PER_USER), load.per_device) for load in loads]
    known = [place for place, pair in enumerate(pairs) if None not in pair]
    front = pareto([[-value for value in pairs[place] if value is not None] for place in known])
    best = {place for place, is_best in zip(known, front, strict=True) if is_best}
    return [replace(load, on_front=place in best) for place, load in enumerate(loads)]


def tail_of(rows: Sequence[CaseRow], kind: str = FIRST) -> str:
    """The highest percentile that most of the loads have; they may all be too short for any."""
    for tail in TAILS:
        if 2 * sum(row.figure(f"{kind}_{tail}") is not None for row in rows) > len(rows):
            return tail
    return TAILS[-1]


def best_load(loads: Sequence[TokenLoad], name: str) -> tuple[TokenLoad, Measurement] | None:
    """The load that is best in something, and its figure."""
    found = [(load, figure) for load in loads if (figure := load.row.figure(name)) is not None]
    sign = -1.0 if found and found[0][1].metric.better is Better.LOWER else 1.0
    return max(found, key=lambda pair: sign * pair[1].value, default=None)

"""Power limits: work for a joule against work in an hour, and the limit that saves most and is fast enough."""

from __future__ import annotations

from paceline.analysis.cost import SLOWER, LimitPoint, LimitSweep, limit_sweeps
from paceline.analysis.summary import RunSummary
from paceline.report.document import Section, Table
from paceline.report.run.sections import ReportSection, SectionAnswer, section_of
from paceline.report.text import one_line, share, show_value

UNSET = "none"
MOST_DIGITS = 1e9  # of work in an hour, beyond which figures have an exponent


def _build(summary: RunSummary) -> Section | None:
    return section_of("energy", "Energy at each limit", [_part(sweep) for sweep in limit_sweeps(summary.rows)])


def _part(sweep: LimitSweep) -> SectionAnswer:
    lines = [[one.limit or UNSET, *_figures(sweep, one), "yes" if one.meets_slo else "no"] for one in sweep.points]
    per_joule, joules = f"{sweep.unit}/J", f"J/{sweep.unit.removesuffix('s')}"
    headers = ["Limit", f"{sweep.unit}/h", "of the fastest", per_joule, joules, "Meets the SLO"]
    brief = tuple(f"{line[0]}: {line[1]} {sweep.unit}/h, {line[3] or 'no'} {per_joule}" for line in lines)
    return SectionAnswer(
        sentence=_sentence(sweep),
        table=Table.of_lines(headers, lines, 1),
        lines=brief,
        notes=(f"SLO: at most {share(SLOWER)} slower than the fastest limit, and what the case itself states.",),
        source=f"Energy: {one_line(sweep.source)}." if sweep.best else "",
    )


def _figures(sweep: LimitSweep, one: LimitPoint) -> list[str]:
    energy = ["", ""] if one.joules is None else [f"{one.per_joule:.4g}", show_value(one.joules, "J")]
    hourly = one.rate * 3600
    return [f"{hourly:,.0f}" if hourly < MOST_DIGITS else f"{hourly:.4g}", share(one.keeps), *energy]


def _at(one: LimitPoint) -> str:
    return f"at {one.limit}" if one.limit else "without a limit"


def _sentence(sweep: LimitSweep) -> str:
    best, fastest, work = sweep.best, sweep.fastest, one_line(sweep.work)
    if best is None or fastest is None:
        unread = "no counter of energy could be read at a limit that meets the SLO (see 'paceline doctor')"
        reason = unread if any(one.meets_slo for one in sweep.points) else "no limit meets the SLO"
        return f"{work}: {reason}, so no limit can be called the best."
    if best is fastest:
        which = "" if best.keeps == 1.0 else " of the limits that meet the SLO and whose energy is known"
        return f"{work} takes the least energy where it is fastest{which}: {_at(best)}."
    if sweep.saved is None:
        shown = f"no limit that meets the SLO is shown to take less energy than {_at(fastest)}"
        return f"{work}: {shown}; repeat (--repeat 5)."
    return (
        f"{work} takes the least energy {_at(best)}: {share(sweep.saved)} less for the same work than "
        f"{_at(fastest)}, at {share(best.rate / fastest.rate)} of its speed."
    )


SECTION = ReportSection("energy", 45, _build)

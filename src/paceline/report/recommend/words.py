"""A recommendation in sentences: what to take, why, what would change that, and what others lack."""

from __future__ import annotations

from collections.abc import Callable

from paceline.analysis.recommend.choice import COSTS, Flip, Miss, Option, OptionStanding, Recommendation, Rival
from paceline.analysis.recommend.evidence import ERRORS, PERCENTILES, TOKEN_BOUNDS, Question
from paceline.analysis.summary import Reading
from paceline.core.quantity import show_count, show_interval, with_interval
from paceline.core.stats import CONFIDENCE, Interval
from paceline.report.text import listed, percent, show_usd, show_value

CONFIDENTLY = f"with {100 * CONFIDENCE:.0f} % confidence"


def headline(advice: Recommendation) -> str:
    """The answer in a sentence."""
    best, slo, rejected = advice.best, slo_text(advice.question), advice.ranking.rejected
    if best is None and not rejected:
        return "There is nothing to recommend: no case gave a figure to rest on."
    if best is None:
        certain = f" {CONFIDENTLY}" if advice.question.strict else ""
        lead = f"No configuration meets {slo}{certain}" if slo else "None qualifies"
        nearest = rejected[0]
        return f"{lead}; the nearest is {nearest.label}{at_load(nearest)}: {lacks(nearest, advice)}."
    several = f"{best.replicas} replicas of " if best.replicas and best.replicas > 1 else ""
    figures = _figures(best, advice)
    if best.worst is not None:
        perhaps = "perhaps do" if several else "perhaps does"
        verb = perhaps if best.standing is OptionStanding.UNCERTAIN else "cannot be ruled out"
        return f"Nothing meets {slo} {CONFIDENTLY}; {several}{best.label} {verb}: {figures}; {best.worst.undecided}."
    tied = ""
    if advice.changes.tied:
        tied = f"; it cannot be distinguished from {listed(advice.changes.tied)}"
        # What speaks for the other where only one is equal, and clearly answers sooner.
        rival, name = advice.changes.rival, advice.question.percentile
        mine = best.point.readings.get(name)
        theirs = rival.option.point.readings.get(name) if rival is not None and len(advice.changes.tied) == 1 else None
        if mine is not None and theirs is not None and theirs.value < mine.value and mine.overlaps(theirs) is False:
            tied += f", whose {name} is clearly lower ({show_value(theirs.value, 's')})"
    meets = f"; meets {slo} {CONFIDENTLY}" if slo else ""
    return f"Take {several}{best.label}: {figures}{meets}{tied}."


def slo_text(question: Question) -> str:
    """What must hold, as it was asked."""
    parts = [_bound(bound.metric, bound.limit) for bound in question.bounds if bound.is_explicit]
    parts += [f"at most {question.budget}"] if question.budget else []
    return " and ".join(parts)


def why(advice: Recommendation) -> list[str]:
    """The figures that decided."""
    best = advice.best
    if best is None:
        return []
    considered = len(advice.ranking.options) + len(advice.ranking.rejected)
    rate = f"{'meets it at' if advice.sure else 'has'} the highest rate"
    superlative = {
        "goodput": rate if advice.is_served else "is the fastest",
        "cost": "costs least",
        "energy": "takes the least energy",
        "latency": "answers soonest",
    }[advice.question.by]
    lines = []
    if slo_text(advice.question):
        perhaps = f", {len(advice.uncertain)} more perhaps" if advice.uncertain else ""
        lines.append(
            f"{len(advice.sure)} of {considered} configurations meet the SLO {CONFIDENTLY}{perhaps}; "
            f"of the {best.standing.name.lower()} ones, this one {superlative}."
        )
    elif considered > 1:
        lines.append(f"Of {considered} configurations this one {superlative}.")
    readings = best.point.readings
    lines += [
        _margin(bound.metric, bound.limit, readings[bound.metric])
        for bound in advice.question.bounds
        if bound.is_explicit and bound.metric in readings
    ]
    if best.replicas is not None and advice.question.rate is not None:
        lines.append(_fleet(best, advice.question.rate, advice.unit))
    if best.is_heaviest and advice.is_served:
        lines.append(
            f"It was not asked for more than {show_count(best.point.load or 0.0)}/s and may do more: "
            "`paceline run serve` with an slo and no load searches the largest rate that meets it."
        )
    return lines


def what_if(advice: Recommendation) -> list[str]:
    """What would change the choice."""
    changes, best = advice.changes, advice.best
    lines = []
    is_same = changes.rival and changes.unsure and changes.rival.option.point is changes.unsure.point
    if changes.rival is not None and best is not None and not is_same:
        lines += _rival(best, changes.rival, advice)
    if changes.unsure is not None and best is not None:
        other = changes.unsure
        name = "The same" if other.key == best.key else other.label
        score = score_text(other.score, advice)
        lines.append(
            f"{name}{at_load(other)} would be better ({score}) if it met the SLO {CONFIDENTLY}: {lacks(other, advice)}."
        )
    for flip in changes.tighter:
        choice = f" {_to(flip)}" if flip.label else ", nothing that was measured meets the SLO"
        lines.append(f"With {_name(flip.metric)} below {_value(flip.metric, flip.limit)}{choice}.")
    for flip in changes.looser:
        if best is None:
            word = "might" if flip.standing.is_open else "would"
            lines.append(f"With {_bound(flip.metric, flip.limit)} {flip.label} {word} qualify.")
        else:
            within = ", though within their uncertainty" if flip.is_tied else ""
            lines.append(f"With {_bound(flip.metric, flip.limit)} {_to(flip)}{within}.")
    return lines


def _figures(option: Option, advice: Recommendation) -> str:
    """What an option offers, the figure that ranks it first."""
    point, question = option.point, advice.question
    latency = point.readings.get(question.percentile) if advice.is_served else None
    offers = {
        "goodput": f"{with_warning(point.throughput, show_count)} {advice.unit}",
        "latency": f"{question.percentile} {show_latency(latency)}" if latency else "",
        "cost": _cost(option, question),
        "energy": f"{show_value(point.energy.reading.value, 'J')} per {one_of(advice)}" if point.energy else "",
    }
    parts = [offers.pop(question.by), *(offers[name] for name in ("goodput", "latency") if name in offers)]
    if question.by != "cost" and question.rate is not None and option.per_hour is not None:
        parts.append(_cost(option, question))
    return ", ".join(part for part in parts if part)


def _cost(option: Option, question: Question) -> str:
    if question.rate is not None and option.per_hour is not None:
        return f"{show_usd(option.per_hour.value)} USD/h together"
    return f"{with_warning(option.per_thousand, show_usd)} USD per 1,000" if option.per_thousand else ""


def _margin(metric: str, limit: float, reading: Reading) -> str:
    if reading.is_limit:
        return f"{_name(metric)}: a search found the largest rate that meets {_bound(metric, reading.value)}."
    between = ""
    if reading.low is not None and reading.high is not None:
        between = f", between {_value(metric, reading.low)} and {_value(metric, reading.high)} with 95 % confidence"
    return f"{_name(metric)} is {_value(metric, reading.value)}{between}; {_value(metric, limit)} is allowed."


def _fleet(best: Option, rate: float, unit: str) -> str:
    count = best.replicas or 1
    each = f"{count} {'replica answers' if count == 1 else 'replicas answer'} {show_count(rate)} {unit}"
    more = ""
    if best.most_replicas is not None and best.most_replicas > count:
        more = f"; {best.most_replicas} if its throughput is at the low end of its interval"
    cost = ""
    if best.per_hour is not None and best.point.price is not None:
        one = show_usd(best.point.price.usd)
        cost = f", for {show_usd(best.per_hour.value)} USD/h at {one} USD/h each"
    return f"{each}, each its part and no more than was measured{cost}{more}."


def _rival(best: Option, rival: Rival, advice: Recommendation) -> list[str]:
    other, question = rival.option, advice.question
    if other.standing is not best.standing:
        return [f"Next is {other.label}, of which it is open whether it meets the SLO: {lacks(other, advice)}."]
    lead = f"Next is {other.label} with {score_text(other.score, advice)}"
    if rival.relation == "tied":
        lines = [f"{lead}: their intervals overlap, so this cannot distinguish the two."]
        name = question.percentile
        mine, theirs = best.point.readings.get(name), other.point.readings.get(name)
        if question.by != "latency" and mine and theirs and not mine.is_limit and not theirs.is_limit:
            better = other if theirs.value < mine.value else best
            is_clear = mine.overlaps(theirs) is False
            opinion = f"speaks for {better.label}" if is_clear else "is within their uncertainty as well"
            values = f"{show_value(mine.value, 's')} here and {show_value(theirs.value, 's')} there"
            lines.append(f"{name} is {values}, which {opinion}.")
        return lines
    is_unknown = rival.relation == "unknown"
    unsure = ". Whether that is beyond the noise is not known: they have no interval" if is_unknown else ""
    needs = []
    if rival.price is not None and other.point.price is not None:
        change = 1.0 - rival.price / other.point.price.usd
        needs.append(f"its price fell by {percent(change)}, to {show_usd(rival.price)} USD/h")
    if rival.throughput is not None:
        gain = rival.throughput / other.point.throughput.value - 1.0
        needs.append(f"it did {percent(gain)} more, {show_count(rival.throughput)} {advice.unit}")
    if question.by in ("energy", "latency") and other.score is not None and other.score.value > 0:
        needs.append(f"it were {percent(1.0 - rival.score / other.score.value)} lower")
    return [f"{lead}: it would win if {', or if '.join(needs)}{unsure}."] if needs else [f"{lead}{unsure}."]


def _to(flip: Flip) -> str:
    only = ", which only perhaps meets it" if flip.standing.is_open else ""
    return f"the choice is {flip.label}{only}"


def lacks(option: Option, advice: Recommendation) -> str:
    """Why an option is not recommended."""
    if option.worst is not None:
        return missed(option.worst)
    if advice.question.by == "cost":
        return option.point.no_price
    energy = advice.question.by == "energy"
    return "its energy was not counted" if energy else f"its {advice.question.percentile} is not known"


def missed(miss: Miss) -> str:
    """A bound that is broken, or of which that is open, with the figures and what would decide it."""
    allowed, reading = _value(miss.metric, miss.limit), miss.reading
    decide = f"; {miss.undecided}" if miss.undecided else ""
    if reading is None:
        return miss.why if miss.metric in COSTS else f"{_name(miss.metric)} is not known: {miss.why or miss.undecided}"
    if reading.is_limit:
        searched = _bound(miss.metric, reading.value)
        return f"its search was for {searched}{decide or f' and says nothing of {allowed}'}"
    measured = f"{_name(miss.metric)} is {_value(miss.metric, reading.value)}"
    if miss.standing is OptionStanding.BROKEN:
        beyond = f", {percent(miss.excess - 1)} above" if 1 < miss.excess < 100 else ", above"
        return f"{measured}{beyond} {allowed}"
    if miss.lighter is not None:
        return f"{measured}, but a lighter load of {show_count(miss.lighter)}/s broke {allowed}{decide}"
    is_within = miss.standing is OptionStanding.UNCERTAIN
    end = reading.high if is_within else reading.low
    if end is None:
        return f"{measured}, but how {'high' if is_within else 'low'} it may be is not known{decide}"
    return f"{measured}, but may be as {'high' if is_within else 'low'} as {_value(miss.metric, end)}{decide}"


def score_name(advice: Recommendation) -> str:
    """What the options are ranked by."""
    cost = "USD per hour" if advice.question.rate is not None else f"USD per 1,000 {advice.work_unit}"
    rate = f"{'Goodput' if advice.is_served else 'Throughput'}, {advice.unit}"
    names = {"goodput": rate, "cost": cost, "energy": f"J per {one_of(advice)}", "latency": advice.question.percentile}
    return names[advice.question.by]


def score_text(reading: Reading | None, advice: Recommendation) -> str:
    """What an option is ranked by, in its unit."""
    if reading is None:
        return ""
    question = advice.question
    if question.by == "goodput":
        return f"{with_warning(reading, show_count)} {advice.unit}"
    if question.by == "energy":
        return f"{show_value(reading.value, 'J')} per {one_of(advice)}"
    if question.by == "latency":
        return f"{question.percentile} {show_latency(reading)}"
    return f"{with_warning(reading, show_usd)} {'USD/h' if question.rate is not None else 'USD per 1,000'}"


def with_warning(reading: Reading, shown: Callable[[float], str]) -> str:
    """A value and its interval."""
    if reading.low == reading.high:
        return shown(reading.value)
    if reading.low is None or reading.high is None:
        return shown(reading.value)
    interval = Interval(low=reading.low, high=reading.high, confidence=CONFIDENCE)
    return with_interval(shown(reading.value), show_interval(reading.value, interval, shown))


def show_latency(reading: Reading | None) -> str:
    """A latency with its interval, or the bound that it met."""
    if reading is None:
        return ""
    if reading.is_limit:
        return f"≤ {show_value(reading.value, 's')}"
    return with_warning(reading, lambda value: show_value(value, "s"))


def at_load(option: Option) -> str:
    """Under which load, where there was a chosen one."""
    load = option.point.load
    return f" at {show_count(load)}/s" if load is not None and not option.point.is_capacity else ""


def _value(metric: str, value: float | None) -> str:
    if value is None:
        return "an unknown value"
    if metric == ERRORS:
        return percent(value)
    return f"{show_usd(value)} {metric}" if metric in COSTS else show_value(value, "s")


def _bound(metric: str, limit: float) -> str:
    return f"{_name(metric)} ≤ {_value(metric, limit)}"


def _name(metric: str) -> str:
    if metric in PERCENTILES:
        return metric
    if metric in TOKEN_BOUNDS:
        return metric.replace("_", " ")
    return "the error rate" if metric == ERRORS else "the cost"


def one_of(advice: Recommendation) -> str:
    """A single piece of what is counted."""
    return advice.work_unit.removesuffix("s") or "sample"

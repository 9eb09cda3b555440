"""What a comparison comes to: matched cases, for every metric a ratio and its verdict, and means over cases."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Any

from pydantic import BaseModel

from paceline.analysis.compare.significance import Ratio
from paceline.analysis.summary import show_parameter, unique_labels, warning_marks
from paceline.core.case import Case
from paceline.core.errors import InputError, unknown
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import At, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import Interval
from paceline.core.uncertainty import units_needed

_HOW = frozenset(MeasuringParameters.model_fields)
# What is done; where these differ, there is nothing to compare.
_WHAT = frozenset(
    {"model", "scale", "operation", "direction", "mode", "function", "load", "requests", "slo"}
    | {"size", "sizes", "shape", "shapes", "layers", "case"}
)
_Identity = Callable[[Case], Hashable]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: several runs count as one."""

    name: str
    runs: tuple[RunRecords, ...]

    @property
    def records(self) -> Iterable[Record]:
        return (record for run in self.runs for record in run.records)


@dataclass(frozen=True)
class Pool:
    """All that a side has of one case: its repetitions, in all its runs."""

    case: Case
    records: tuple[Record, ...]

    @cached_property
    def good(self) -> tuple[Record, ...]:
        """Those that succeeded."""
        return tuple(record for record in self.records if record.outcome is Outcome.OK)


@dataclass(frozen=True)
class Difference:
    """A parameter, or a part of the environment, that the two sides do not share."""

    name: str
    reference: str
    new: str


@dataclass(frozen=True)
class Match:
    """The same work on both sides."""

    label: str
    reference: Pool
    new: Pool
    differences: tuple[Difference, ...] = ()  # in parameters and target
    is_alike: bool = True  # the same in everything; otherwise only the parameters that both sides know were looked at


@dataclass(frozen=True)
class Matched:
    """What two sides have in common, and what only one has."""

    matches: tuple[Match, ...]
    only_reference: tuple[str, ...]  # labels
    only_new: tuple[str, ...]

    @property
    def differences(self) -> dict[Difference, int]:
        """In what matched cases differ, and how many do."""
        return dict(Counter(difference for match in self.matches for difference in match.differences))


def match(reference: Side, new: Side) -> Matched:
    """Pair the cases: by key; then by all shared parameters; then by those in which cases of a side differ."""
    keys: dict[int, str] = {}
    left, right = _pools(reference, keys), _pools(new, keys)
    pairs: list[tuple[Pool, Pool]] = [(left[key], right[key]) for key in left if key in right]
    same = {id(pool) for pool, _ in pairs}
    rest = ([left[key] for key in left if key not in right], [right[key] for key in right if key not in left])
    for benchmark in dict.fromkeys(pool.case.benchmark for pool in rest[0]):
        mine, theirs = ([pool for pool in pools if pool.case.benchmark == benchmark] for pools in rest)
        for varying in (False, True):
            key_of = _identity([pool.case for pool in mine], [pool.case for pool in theirs], varying=varying)
            one, other = _unique(mine, key_of), _unique(theirs, key_of)
            pairs += [(one[key], other[key]) for key in one if key in other]
            taken = {id(pool) for pair in pairs for pool in pair}
            mine, theirs = ([pool for pool in pools if id(pool) not in taken] for pools in (mine, theirs))
    pairs.sort(key=lambda pair: pair[0].case.index)
    labels = _labels(one for one, _ in pairs)
    taken = {id(pool) for pair in pairs for pool in pair}
    return Matched(
        matches=tuple(
            Match(label, one, other, is_alike=True)
            if id(one) in same
            else Match(label, one, other, parameters_apart(one.case, other.case), is_alike=False)
            for label, (one, other) in zip(labels, pairs, strict=True)
        ),
        only_reference=_labels(pool for pool in left.values() if id(pool) not in taken),
        only_new=_labels(pool for pool in right.values() if id(pool) not in taken),
    )


def _pools(side: Side, keys: dict[int, str]) -> dict[str, Pool]:
    """The records by case; `keys` are those of cases so far, which records and sides may share."""
    records_by_key = group_by(
        side.records, lambda one: keys.get(id(one.case)) or keys.setdefault(id(one.case), one.case.key)
    )
    return {key: Pool(records[0].case, tuple(records)) for key, records in records_by_key.items()}


def _unique(pools: Sequence[Pool], key_of: _Identity) -> dict[Hashable, Pool]:
    """Those whose key nothing else on their side has."""
    groups = group_by(pools, lambda pool: key_of(pool.case))
    return {key: same[0] for key, same in groups.items() if len(same) == 1}


def _identity(mine: Sequence[Case], theirs: Sequence[Case], *, varying: bool) -> _Identity:
    """What makes two cases the same work: the parameters that every case has, but for how long and exactly to measure.

    Another target, a parameter that only one side knows, or another budget make no difference. With `varying`, what is
    the same throughout each side may differ between them, too: it is what the comparison is about.
    """
    every = [set(case.parameters) for case in (*mine, *theirs)]
    names = sorted(set.intersection(*every) - _HOW) if every else []
    by_ranks = True
    if varying:
        sides = (mine, theirs)
        by_ranks = any(len({case.ranks for case in side}) > 1 for side in sides)
        names = [
            name
            for name in names
            if name in _WHAT or any(len({show_parameter(case.parameters[name]) for case in side}) > 1 for side in sides)
        ]
    return lambda case: (case.ranks if by_ranks else 0, *(show_parameter(case.parameters[name]) for name in names))


def parameters_apart(one: Case, other: Case) -> tuple[Difference, ...]:
    """In what two cases differ; what only one of them knows is passed over."""
    pairs = [Difference("target", one.target, other.target), Difference("ranks", str(one.ranks), str(other.ranks))]
    for name, value in one.parameters.items():
        if name in other.parameters:
            pairs += _parts_apart(name, value, other.parameters[name])
    return tuple(pair for pair in pairs if pair.reference != pair.new)


def _parts_apart(name: str, one: Any, other: Any) -> list[Difference]:
    """A parameter of both, or each part of it where it has parts: `server.url`."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return [Difference(name, show_parameter(one), show_parameter(other))]
    parts = dict.fromkeys([*one, *other])
    return [pair for part in parts for pair in _parts_apart(f"{name}.{part}", one.get(part), other.get(part))]


def _labels(pools: Iterable[Pool]) -> tuple[str, ...]:
    """Names as of first repetitions, so that a pool is not named after one of many."""
    cases = [pool.case for pool in pools]
    return tuple(unique_labels([case if case.repeat == 1 else case.model_copy(update={"repeat": 1}) for case in cases]))


UNKNOWN = "unknown"
COMMIT = "git commit"
_SEVERAL = ", or "  # between what the runs of a side say
_PACKAGES = (
    *("torch", "torchvision", "torchao", "triton", "pytorch-triton", "transformers", "flash-attn", "xformers"),
    *("vllm", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "mkl"),
)
_VARIABLE = "variable "
_HARMLESS = ("CUDA_DEVICE_ORDER",)

# Not compared where no GPU was measured.
_OF_GPUS = ("GPUs", "driver", "CUDA of torch", "power limit", "highest SM clock", "highest memory clock", "ECC", "MIG")


def environment_differences(reference: Side, new: Side, *, on_gpus: bool) -> tuple[Difference, ...]:
    """What differs and matters; of GPUs only where some were measured.

    What one side does not know at all is not a difference: a published table has no environment.
    """
    different = []
    before, after = [_facts(run.run) for run in reference.runs], [_facts(run.run) for run in new.runs]
    for name in dict.fromkeys(chain(*before, *after)):
        if name in _OF_GPUS and not on_gpus:
            continue
        one, other = _joined(name, before), _joined(name, after)
        is_mixed = any(_SEVERAL in side for side in (one, other))
        # Sides of a commit each are what is compared; a side of several is not one thing.
        is_different = is_mixed or (one != other and name != COMMIT)
        if UNKNOWN not in (one, other) and is_different:
            different.append(Difference(name, one, other))
    return tuple(different)


def _joined(name: str, runs: list[dict[str, str]]) -> str:
    """What the runs of a side say; several answers are all shown."""
    absent = "unset" if name.startswith(_VARIABLE) else UNKNOWN
    answers = {run.get(name, absent) for run in runs if run}
    return _SEVERAL.join(sorted(answers)) or UNKNOWN


def _facts(run: Run) -> dict[str, str]:
    of = run.environment
    if not of.is_known:
        return {}
    names = Counter(gpu.name or UNKNOWN for gpu in of.gpus)
    gpus = ", ".join(f"{count} x {name}" for name, count in sorted(names.items())) or "none"
    commit = of.git.commit[:10] + (" with changes" if of.git.dirty else "") if of.git and of.git.commit else UNKNOWN
    facts = {
        "GPUs": gpus if "gpus" in of.model_fields_set else UNKNOWN,
        "driver": _shown(of.driver and of.driver.version),
        "CUDA of torch": _shown(of.software.torch_cuda),
        "power limit": _of_gpus([gpu.power_limit_watts for gpu in of.gpus], " W"),
        "highest SM clock": _of_gpus([gpu.sm_clock_max_mhz for gpu in of.gpus], " MHz"),
        "highest memory clock": _of_gpus([gpu.memory_clock_max_mhz for gpu in of.gpus], " MHz"),
        "ECC": _of_gpus([gpu.ecc.enabled for gpu in of.gpus]),
        "MIG": _of_gpus([gpu.mig for gpu in of.gpus]),
        "CPU": _shown(of.cpu.model),
        "CPU cores": _shown(of.cpu.usable),
        "CPU governor": _shown(of.cpu.governor),
        "CPU boost": _shown(of.cpu.boost),
        "CPU quota": _limit(of.cpu, "quota", " cores"),
        "memory limit": _limit(of.memory, "limit", " GiB", scale=1024.0**3),
        **of.inventory.facts,
        "architecture": _shown(of.architecture),
        "container": _shown(of.container),
        "virtualization": _shown(of.virtualization),
        # Without the last number, which repairs and does not speed up.
        "Python": ".".join((of.software.python or UNKNOWN).split(".")[:2]),
        COMMIT: commit,
        "Paceline": run.version or UNKNOWN,
    }
    if of.software.packages:
        facts |= {name: of.software.packages.get(name, "absent") for name in _PACKAGES}
    return facts | {f"{_VARIABLE}{name}": value for name, value in of.variables.items() if name not in _HARMLESS}


def _shown(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _limit(part: BaseModel, name: str, unit: str, scale: float = 1.0) -> str:
    """A limit of the control group; where it says None, there is none."""
    value = getattr(part, name)
    if name not in part.model_fields_set:
        return UNKNOWN
    return "none" if value is None else f"{value / scale:.4g}{unit}"


def _of_gpus(values: list[Any], unit: str = "") -> str:
    shown = {_shown(value) for value in values if value is not None}
    return ", ".join(f"{value}{unit}" for value in sorted(shown)) or UNKNOWN


RESOLVED = 0.05  # a difference that a comparison is to show or to rule out


class ComparisonVerdict(StrEnum):
    """What a ratio comes to."""

    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"  # of a metric without a direction
    SAME = "no significant change"  # and any that would matter is ruled out
    UNDECIDED = "undecided"
    NONE = "no ratio"  # a value is zero, negative or not a number


@dataclass(frozen=True)
class ComparisonRow:
    """One metric of one case on both sides."""

    label: str
    category: str
    metric: Metric
    scope: str  # empty for the case as a whole
    at: At
    ratio: Ratio
    parts: tuple[int, int]  # repetitions on each side
    samples: tuple[int, int]
    warnings: tuple[tuple[str, ...], tuple[str, ...]]  # kinds, of each side
    is_significant: bool  # among all ratios that were judged with it
    published: tuple[bool, bool] = (False, False)  # of each side: whether others published it

    @cached_property
    def verdict(self) -> ComparisonVerdict:
        """What the ratio comes to."""
        if self.ratio.value is None:
            return ComparisonVerdict.NONE
        if self.ratio.interval is None:
            return ComparisonVerdict.UNDECIDED
        if not self.is_significant:
            is_excluded = self.ruled_out is not None and self.ruled_out <= RESOLVED
            return ComparisonVerdict.SAME if is_excluded else ComparisonVerdict.UNDECIDED
        if self.gain is None:
            return ComparisonVerdict.CHANGED
        return ComparisonVerdict.BETTER if self.gain > 1 else ComparisonVerdict.WORSE

    @cached_property
    def ruled_out(self) -> float | None:
        """The smallest difference, as a part of a value, such that any larger one is ruled out."""
        interval = self.ratio.interval
        return max(interval.high, 1.0 / interval.low) - 1.0 if interval and interval.low > 0 else None

    @cached_property
    def units_needed(self) -> int | None:
        """How many runs, or sessions, of each side would show a difference of 5 %; None where that is unknown."""
        if self.ratio.interval is None:
            return None
        return units_needed(self.ratio.scatter, math.log1p(RESOLVED))

    @property
    def is_change(self) -> bool:
        """Whether it is called a change."""
        return self.verdict in (ComparisonVerdict.BETTER, ComparisonVerdict.WORSE, ComparisonVerdict.CHANGED)

    @cached_property
    def gain(self) -> float | None:
        """The ratio turned so that more than 1 is better; None where neither direction is, or there is no ratio."""
        if not self.ratio.value or self.metric.better is Better.NEITHER:
            return None
        return self.ratio.value if self.metric.better is Better.HIGHER else 1.0 / self.ratio.value


@dataclass(frozen=True)
class Mean:
    """The geometric mean of the gains of some cases; above 1 is better."""

    category: str  # empty for all that were compared
    count: int
    value: float
    interval: Interval | None  # None where one of them has none

    @property
    def is_change(self) -> bool:
        """Whether 1 lies outside the interval."""
        return self.interval is not None and not self.interval.low <= 1.0 <= self.interval.high


@dataclass(frozen=True)
class Broken:
    """A case that succeeded on one side only."""

    label: str
    side: str  # where it did not
    is_new: bool
    reason: str


@dataclass(frozen=True)
class Pairing:
    """One side against the reference."""

    reference: Side
    new: Side
    matched: Matched
    uncompared: tuple[str, ...]  # why some matched cases have no row
    broken: tuple[Broken, ...] = ()
    environment: tuple[Difference, ...] = ()
    rows: tuple[ComparisonRow, ...] = ()
    means: tuple[Mean, ...] = ()  # of all, then of each category where there are several

    def count(self, verdict: ComparisonVerdict) -> int:
        return sum(row.verdict is verdict for row in self.rows)


@dataclass(frozen=True)
class Comparison:
    """Every other side against the first."""

    pairings: tuple[Pairing, ...]
    is_paired: bool = False  # measured in alternation, and compared round by round

    @property
    def rows(self) -> Iterator[ComparisonRow]:
        return (row for pairing in self.pairings for row in pairing.rows)

    @property
    def warnings(self) -> dict[str, str]:
        """The kinds of warnings and the letter that marks each."""
        return warning_marks(kind for row in self.rows for side in row.warnings for kind in side)


_EXPRESSION = re.compile(r"\s*(?P<metric>\*|[A-Za-z_][\w.-]*)\s*(?P<sign>[<>])\s*(?P<bound>[0-9.eE+-]+)\s*")


@dataclass(frozen=True)
class Limit:
    """A bound on the ratio new / reference of one metric, or of every one that is compared."""

    metric: str
    sign: str  # < or >
    bound: float

    @classmethod
    def parse(cls, text: str, *, strict: bool = False) -> Limit:
        """Read one; what would fail without any change is refused unless significance is not asked for."""
        parts = _EXPRESSION.fullmatch(text)
        if parts is None:
            raise _refused("not-a-limit", text, "write it as METRIC<RATIO or METRIC>RATIO, like 'throughput<0.97'")
        try:
            bound = float(parts["bound"])
        except ValueError:
            raise _refused("not-a-number", text, f"'{parts['bound']}' is not a number; write one like 0.97") from None
        if not 0 < bound < math.inf:
            raise _refused("out-of-range", text, f"a ratio is above 0, so that {bound:g} is not a bound for it")
        if not strict and (bound > 1 if parts["sign"] == "<" else bound < 1):
            message = (
                "it would fail without any change, which is never significant: "
                f"write a bound {'below' if parts['sign'] == '<' else 'above'} 1, or add --strict"
            )
            raise _refused("fails-without-change", text, message)
        return cls(parts["metric"], parts["sign"], bound)

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.bound:g}"

    def covers(self, metric: str) -> bool:
        return self.metric in ("*", metric)

    def is_crossed(self, ratio: float) -> bool:
        """Whether this ratio lies beyond the bound."""
        return ratio < self.bound if self.sign == "<" else ratio > self.bound

    def is_open(self, row: ComparisonRow) -> bool:
        """Whether it cannot be decided on which side of the bound this ratio lies."""
        ratio, interval = row.ratio, row.ratio.interval
        if ratio.value is None:
            return ratio.reference != ratio.new
        if row.is_change and self.is_crossed(ratio.value):
            return False
        return interval is None or self.is_crossed(interval.low) or self.is_crossed(interval.high)


def _refused(code: str, text: str, message: str) -> InputError:
    return InputError(code, message, where=f"--fail-on '{text}'", key="--fail-on", value=text)


@dataclass(frozen=True)
class Violation:
    """A ratio beyond a limit, or a case that no longer succeeds."""

    limit: Limit
    pairing: Pairing
    label: str
    row: ComparisonRow | None
    reason: str


@dataclass(frozen=True)
class Undecided:
    """A ratio of which it is open on which side of a limit it lies."""

    limit: Limit
    pairing: Pairing
    row: ComparisonRow


def violations(comparison: Comparison, limits: Iterable[Limit], *, strict: bool = False) -> list[Violation]:
    """What crosses a limit: the ratio lies beyond it and is a significant change; strictly, without the second.

    A case that succeeded in the reference and not on the new side crosses every limit that is about it.
    """
    crossed = []
    for limit in limits:
        rows = [row for row in comparison.rows if limit.covers(row.metric.name)]
        gone = [broken for pairing in comparison.pairings for broken in pairing.broken if broken.is_new]
        if not rows and not gone:
            names = {row.metric.name for row in comparison.rows}
            raise unknown("metric in --fail-on", limit.metric, names, key="--fail-on")
        for pairing in comparison.pairings:
            for row in pairing.rows:
                value = row.ratio.value
                is_meant = limit.covers(row.metric.name) and (strict or row.is_change)
                if is_meant and value is not None and limit.is_crossed(value):
                    crossed.append(Violation(limit, pairing, row.label, row, ""))
            crossed += [Violation(limit, pairing, one.label, None, one.reason) for one in pairing.broken if one.is_new]
    return crossed


def undecided(comparison: Comparison, limits: Iterable[Limit]) -> list[Undecided]:
    """What neither crosses a limit nor is shown not to: its interval reaches beyond the limit, or there is none."""
    return [
        Undecided(limit, pairing, row)
        for limit in limits
        for pairing in comparison.pairings
        for row in pairing.rows
        if limit.covers(row.metric.name) and limit.is_open(row)
    ]

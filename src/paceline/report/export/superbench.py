"""The results under SuperBench's names (`results-summary.jsonl`), for tools and baselines that were made for it.

Records say themselves which names and units SuperBench has for them (`aliases`); the keys of others are Paceline's own:
`BENCHMARK[:note]/METRIC[_point][:rank]` in the metric's unit. A note tells cases apart that would share a key
(`batch_size=32`), and marks what SuperBench does not measure under this name: a model that is not full size
(`scale=tiny`), a GPU's benchmark on a CPU (`target=cpu`). The same work on several devices has the number of the device
as its rank. Results that came from SuperBench go back under the keys and
in the units that they had. As there, one `return_code` covers all cases of one benchmark or model; the first that is
not 0 stands.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from paceline.analysis.diagnose.superbench import RETURN_CODE
from paceline.analysis.diagnose.table import is_original
from paceline.core.device import split_target
from paceline.core.record import CauseKind, Measurement, Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.subject import SUPERBENCH, Alias, key_word
from paceline.report.export import Export

Values = dict[str, float]
_RANK = re.compile(r"rank (\d+)")
_OUTER = ("ranks", "target", "repeat")  # of the case, not of its benchmark


def render(records: RunRecords) -> str:
    """One line for the node that measured."""
    line: dict[str, Any] = {"node": records.run.environment.host_name}
    return json.dumps(line | results(records.records), allow_nan=False) + "\n"


def results(records: Sequence[Record]) -> Values:
    """Every key with its number; no two cases share one, but for the return code of their model."""
    ordered = sorted(records, key=lambda record: record.case.index)
    measured_here = [record for record in ordered if not is_original(record)]
    values: Values = {}
    for record in ordered:
        if is_original(record):
            values |= _original_values(record)
    ranks = _device_ranks(measured_here)
    for record, note, rank in zip(measured_here, notes(measured_here), ranks, strict=True):
        alias = alias_of(record)
        name, slash, rest = f"{alias.group}/".partition("/")
        mark = f"{',' if ':' in name else ':'}{note}" if note else ""
        group = f"{name}{mark}{slash}{rest}"
        code = f"{group}return_code{rank}"
        values[code] = values.get(code) or return_code(record)
        figures = alias.values if record.outcome is Outcome.OK else {}
        named = {f"{group}{alias.prefix}{key}{rank}": value for key, value in figures.items() if math.isfinite(value)}
        values |= named
    return values


def _device_ranks(records: Sequence[Record]) -> list[str]:
    """Of the same work on several devices, each record's `:N`; empty for others."""
    places = [(record.case.work_key, split_target(record.case.target)[1]) for record in records]
    devices: dict[object, set[str]] = {}
    for work, index in places:
        devices.setdefault(work, set()).add(index)
    return [f":{index}" if index.isdecimal() and len(devices[work]) > 1 else "" for work, index in places]


def alias_of(record: Record) -> Alias:
    """SuperBench's names for a record; Paceline's own where it has none."""
    if SUPERBENCH in record.aliases:
        return _as_configured(record.aliases[SUPERBENCH], record.case.superbench)
    values: Values = {}
    for measurement in record.measurements:
        values.setdefault(_own_name(measurement), measurement.value)
    return Alias.model_construct(group=key_word(record.case.benchmark), values=values)


def _as_configured(alias: Alias, name: str) -> Alias:
    """The alias under the name that its benchmark has in a config, whose float32 takes TF32 where a GPU has it."""
    if not name:
        return alias
    _, slash, model = alias.group.partition("/")
    prefix = f"fp32_{alias.prefix.removeprefix('tf32_')}" if alias.prefix.startswith("tf32_") else alias.prefix
    return alias.model_copy(update={"group": f"{name}{slash}{model}", "prefix": prefix})


def _original_values(record: Record) -> Values:
    """What was read from SuperBench's results, whatever its names mean here."""
    group = record.aliases[SUPERBENCH].group
    values: Values = {}
    for measured in record.measurements:
        name, rank = measured.metric.name, _RANK.fullmatch(measured.scope)
        key = (f"{group}/" if group else "") + name + (f":{rank.group(1)}" if rank else "")
        value = measured.value
        values[key] = int(value) if name == RETURN_CODE and value.is_integer() else value
    return values


def return_code(record: Record) -> int:
    """SuperBench's number for how a case ended."""
    kind = record.cause.kind if record.cause else None
    if record.outcome is Outcome.OK:
        return 0
    if record.outcome is Outcome.TIMEOUT:
        return 124
    if kind is CauseKind.MISSING_DEPENDENCY:
        return 31
    if record.outcome is Outcome.UNSUPPORTED:
        return 10 if alias_of(record).is_model else 34
    return 3 if kind is CauseKind.CORRUPTION else 4  # 4: raised, crashed, interrupted or out of memory


def notes(records: Sequence[Record]) -> list[str]:
    """What tells each record from those that would have the same keys; empty where nothing must."""
    aliases = [(record, alias_of(record), rank) for record, rank in zip(records, _device_ranks(records), strict=True)]
    keyed = [(record, (alias.group, alias.prefix, alias.part, alias.note, rank)) for record, alias, rank in aliases]
    texts = []
    for record, key in keyed:
        traits, mark = _traits(record), key[3]
        differing = _differing([_traits(other) for other, its_key in keyed if its_key == key])
        parts = [f"{name}={key_word(traits.get(name))}" for name in differing if f"{name}=" not in mark]
        texts.append((record, key, ",".join([mark, *parts] if mark else parts)))
    counts = Counter((key, text) for _, key, text in texts)
    return [
        ",".join(part for part in (text, f"index={record.case.index}") if part) if counts[key, text] > 1 else text
        for record, key, text in texts
    ]


def _differing(twins: Sequence[dict[str, Any]]) -> list[str]:
    """What tells the twins apart: every parameter that differs; ranks, target and repetition only if need be."""
    values = [{key: json.dumps(value, default=str) for key, value in twin.items()} for twin in twins]
    chosen: list[str] = []
    keys = dict.fromkeys(key for twin in twins for key in twin if key not in _OUTER)
    for key in (*keys, *_OUTER):
        apart = len({tuple(twin.get(k) for k in chosen) for twin in values}) == len(values)
        if len({twin.get(key) for twin in values}) > 1 and not (key in _OUTER and apart):
            chosen.append(key)
    return chosen


def _traits(record: Record) -> dict[str, Any]:
    case = record.case
    return {**case.parameters, "ranks": case.ranks, "target": case.target.replace("*", "all"), "repeat": case.repeat}


def _own_name(measurement: Measurement) -> str:
    rank = _RANK.fullmatch(measurement.scope)
    scope = f":{rank.group(1)}" if rank else f"_{key_word(measurement.scope)}" if measurement.scope else ""
    point = "".join(f"_{key_word(f'{axis}-{value}')}" for axis, value in measurement.at.items())
    return key_word(measurement.metric.name) + point + scope


EXPORT = Export("superbench", "SuperBench's results-summary.jsonl", render, file="results-summary.jsonl", order=70)

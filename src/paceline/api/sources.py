"""Reads the results that a user names: a run, a tag, a file, or published figures."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from paceline.analysis.compare.verdicts import Side
from paceline.analysis.roofline import MEASURE, KnownCeilings
from paceline.core.environment import Reached
from paceline.core.errors import InputError, PacelineError
from paceline.core.profile import Ceiling
from paceline.core.run import Run, RunRecords
from paceline.core.subject import BYTES, DEVICE_MEMORY
from paceline.devices import accelerators
from paceline.machine.profile import identity_of, load_profile

if TYPE_CHECKING:
    from datetime import datetime

    from paceline.analysis.compare.sides import Earlier
    from paceline.analysis.diagnose.early import DefectRules
    from paceline.analysis.diagnose.table import NodeResults, NodeTable
    from paceline.analysis.select import NodeCheck

MOST_CHECKS = 20_000  # runs, the latest, that are looked at to learn from


def known_ceilings(records: RunRecords) -> KnownCeilings:
    """The ceilings of the run's own machine; a profile of another machine says nothing of it."""
    try:
        profile = load_profile(identity_of(records.run.environment))
    except (ValidationError, PacelineError):  # several hosts, or an invalid profile, which `paceline machine` reports
        profile = None
    datasheets = []
    names = {name for record in records.records if (name := record.subject.device)}
    for name, kind in itertools.product(sorted(names), accelerators()):
        sheet = kind.datasheet(name)
        if sheet is None:
            continue
        at = {"device": kind.name, "device_name": name}
        for precision in BYTES:
            if rate := sheet.rate(precision):
                unit = "OP/s" if precision == "int8" else "FLOP/s"
                datasheets.append(Ceiling(**at, kind="compute", name=precision, value=rate, unit=unit))
        datasheets.append(Ceiling(**at, kind="memory", name=DEVICE_MEMORY, value=sheet.memory_bandwidth, unit="B/s"))
    return KnownCeilings(
        measured=profile.ceilings if profile else (),
        source=f"{MEASURE}, {profile.measured_at:%Y-%m-%d}, run {profile.run_id}" if profile else "",
        datasheet=tuple(datasheets),
    )


def read_table(
    texts: Sequence[str], store: str | None, *, superbench: bool = False, more: Sequence[RunRecords] = ()
) -> tuple[NodeTable, bool]:
    """The table, and whether its metrics have SuperBench's names, as rules or a baseline may ask for; `more` are runs
    at hand.
    """
    from paceline.analysis.diagnose.superbench import nodes_results, read_nodes
    from paceline.analysis.diagnose.table import assemble, results_of, run_names
    from paceline.report.export import jsonl
    from paceline.report.export.superbench import results

    def is_theirs(text: str) -> bool:
        """Whether it is a file or folder of SuperBench's results; what is ours says so in its first line."""
        path = Path(text)
        if not _looks_like_a_file(text):
            return False  # the name of a run or a tag, even where a folder has the same
        if not path.is_file():
            return path.is_dir()
        with path.open(encoding="utf-8", errors="replace") as lines:
            return not jsonl.is_ours(lines.readline())

    theirs = [text for text in texts if is_theirs(text)]
    ours = [text for text in texts if text not in theirs]
    parts: list[NodeResults] = [part for text in theirs for part in read_nodes(Path(text))]
    named = [*(run for source in read_sources(ours, store) for run in source.runs), *more]
    runs = list({run.run.id: run for run in named}.values())  # one that has two of the names is one node all the same
    if not parts and not superbench:
        parts = results_of(runs)
    else:  # runs of ours as SuperBench would have written them
        for run, name in zip(runs, run_names(runs), strict=True):
            nodes = nodes_results(run.run.environment.host_name, results(run.records))
            nodes.run, nodes.environment = name, run.run.environment
            parts.append(nodes)
    if not parts:
        message = f"there are no results in {', '.join(texts)}; name a run, a tag, or a file of results"
        raise InputError("no-results", message, value=", ".join(texts))
    return assemble(parts), bool(theirs) or superbench


@dataclass(frozen=True)
class StoredChecks:
    """What a store knows of the nodes that ran a suite."""

    checks: list[NodeCheck]
    lost: list[tuple[str, datetime]]  # nodes whose followers were lost, and when
    last_seen: dict[str, datetime]  # by node, when its newest run of any suite began
    reached: dict[str, Reached]  # by node, how it was reached the last time that it was from elsewhere


def read_checks(suite: str, named: str, rules: Path | None, baseline: Path | None, store: str | None) -> StoredChecks:
    """What the stored runs of a suite say of each node; the user `named` the suite by its name, or by a file."""
    from paceline.analysis.select import judge_round, rounds_of
    from paceline.store import open_reader

    defects = read_defect_rules(rules, baseline)
    checks: list[NodeCheck] = []
    with open_reader(store) as opened:
        runs = opened.run_list(MOST_CHECKS)
        records: dict[str, RunRecords] = {}
        for one in rounds_of(runs, suite):  # one at a time, as all records of a fleet may not fit into memory
            ids = [run.id for run in (*one.runs, *one.others)]
            records = {run_id: records[run_id] for run_id in ids if run_id in records}
            records |= opened.glances([run_id for run_id in ids if run_id not in records], planned=True)
            members, others = ([records[run.id] for run in some] for some in (one.runs, one.others))
            checks += judge_round(members, defects, others)
        hosts = {run.id: run.environment.host_name for run in runs}
        last_seen = {run.environment.host_name: run.started_at for run in runs}  # the oldest come first
        lost = [(hosts[run_id], at) for run_id, at in opened.lost_runs() if run_id in hosts]
    if not checks:
        message = (
            f"no run of '{suite}' is in the store: check every node once with `paceline run {shlex.quote(named)} "
            "--each --hosts FILE`, or name another suite with --suite"
        )
        raise InputError("nothing-to-learn-from", message, key="--suite", value=suite)
    return StoredChecks(checks, lost, last_seen, _ways_to(runs))


def _ways_to(runs: Sequence[Run]) -> dict[str, Reached]:
    """How each node was reached last, the oldest run first; a name that led to several nodes leads to the last."""
    ways = [(run.environment.host_name, run.environment.reached) for run in runs if run.environment.reached is not None]
    leads_to = {way.host: node for node, way in ways}
    return {node: way for node, way in ways if leads_to[way.host] == node}


def read_defect_rules(rules: Path | None, baseline: Path | None) -> DefectRules:
    """What counts as a defect in results of ours."""
    from paceline.analysis.baseline import read_baseline
    from paceline.analysis.diagnose.early import DefectRules
    from paceline.analysis.diagnose.rules import default_rules, read_rules

    ruleset = read_rules(rules) if rules else default_rules()
    reference = read_baseline(baseline) if baseline else None
    if ruleset.is_theirs or (reference is not None and reference.names == "superbench"):
        message = "rules and baselines with SuperBench's names of metrics go with `paceline diagnose` alone: write ours"
        raise InputError("rules-with-other-names", message, key="--rules", value=str(rules or baseline))
    return DefectRules(ruleset, reference)


PUBLISHED = "published:"  # before the name of figures that others published


def read_sources(texts: Sequence[str], store: str | None) -> list[Side]:
    """The runs behind each word, of a tag all that carry it, the oldest first; the store is opened only if needed."""
    from paceline.analysis.published import published_records
    from paceline.store import open_reader

    with ExitStack() as opening:
        stored = cache(lambda: opening.enter_context(open_reader(store)))

        def read(text: str) -> Side:
            if text.startswith(PUBLISHED):
                return Side(text, (published_records(text.removeprefix(PUBLISHED)),))
            if _looks_like_a_file(text):
                return _file(Path(text))
            ids = stored().find_runs(text)
            name = ids[0] if text == "last" and len(ids) == 1 else text
            return Side(name, tuple(stored().load(run_id) for run_id in ids))

        return [read(text) for text in texts]


def pin_sources(texts: Sequence[str], store: str | None) -> int:
    """Pin the stored runs behind these words, so that nobody prunes what a baseline stands for; how many that is."""
    from paceline.store import open_existing
    from paceline.store.retention import change_run

    words = [text for text in texts if not text.startswith(PUBLISHED) and not _looks_like_a_file(text)]
    if not words:
        return 0
    with open_existing(store) as opened:
        pinned = {row.id for row in opened.runs(limit=None) if row.pinned}
        new = {run_id for text in words for run_id in opened.find_runs(text)} - pinned
        for run_id in new:
            change_run(opened, run_id, pinned=True)
    return len(new)


def earlier_runs(texts: Sequence[str], store: str | None) -> Earlier | None:
    """Where to ask for other runs of the same machines; files and published figures have no store."""
    from paceline.store import open_reader

    def read(runs: Sequence[Run], metrics: Sequence[str]) -> Sequence[RunRecords]:
        with open_reader(store) as opened:
            return opened.earlier(runs, metrics)

    is_stored = any(not text.startswith(PUBLISHED) and not _looks_like_a_file(text) for text in texts)
    return read if is_stored else None


def _looks_like_a_file(text: str) -> bool:
    return "/" in text or text.endswith((".jsonl", ".json", ".json.gz"))


def _file(path: Path) -> Side:
    from paceline.analysis.diagnose.superbench import read_results
    from paceline.report.export import jsonl, pyperf

    if pyperf.is_theirs(path):
        return Side(str(path), (pyperf.read(path),))
    try:
        with path.open(encoding="utf-8") as lines:
            first = lines.readline()
            if not jsonl.is_ours(first):
                return Side(str(path), tuple(read_results(path)))  # of another system
            lines.seek(0)
            return Side(str(path), tuple(jsonl.parse(lines, str(path))))
    except OSError as error:
        message = f"cannot read '{path}': {error.strerror}; name a run, a tag, or a file of results"
        raise InputError("unreadable-file", message, value=str(path)) from None
    except UnicodeDecodeError:
        message = f"'{path}' is not a text file: name a file of `paceline report --jsonl`"
        raise InputError("not-text", message, value=str(path)) from None

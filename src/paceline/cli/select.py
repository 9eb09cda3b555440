"""Say which benchmarks to run on which nodes now."""

from __future__ import annotations

import math
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli._options import Answer, age_of, duration_of, format_options, save
from paceline.core.errors import InputError, unknown

if TYPE_CHECKING:
    from paceline.analysis.select import NodeCheck, SelectionPlan
    from paceline.core.environment import Reached
    from paceline.core.suite import Suite

FORMATS = {
    "json": "One JSON object, for programs.",
    "md": "Markdown.",
    "html": "A self-contained page.",
    "yaml": "Suites that `paceline run` takes, one for each set of benchmarks, and the hosts of each.",
}


@click.command("select")
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@click.option("--budget", required=True, metavar="TIME", help="For each node, on average, such as 10m.")
@click.option("--suite", "suite_name", default="node-check", show_default=True, help="Whose benchmarks to choose from.")
@click.option(
    "--seen-within", default="90d", show_default=True, metavar="TIME", help="Leave out nodes whose last run is older."
)
@click.option("--group", metavar="TAG", help="Only nodes that have a run with this tag.")
@click.option("--rules", type=click.Path(path_type=Path), help="What counts as a defect, as in `paceline diagnose`.")
@click.option("--baseline", type=click.Path(path_type=Path), help="What to compare with; unset is the other nodes.")
@click.option("--store", metavar="URL", help="Where results are stored.")
@format_options(FORMATS, {".json": "json", ".md": "md", ".html": "html", ".yaml": "yaml", ".yml": "yaml"})
def command(
    nodes: tuple[str, ...],
    budget: str,
    suite_name: str,
    seen_within: str,
    group: str | None,
    rules: Path | None,
    baseline: Path | None,
    store: str | None,
    answer: Answer,
) -> None:
    """Choose benchmarks for nodes, by name or pattern (gpu-0*), so that a limited time finds the most defects.

    What earlier runs of the suite found on each node, when, and how long it took is read from the store.
    """
    from paceline.analysis.select import choose, history_of, learn
    from paceline.api.cases import find_suite
    from paceline.api.sources import read_checks
    from paceline.report import select as report
    from paceline.store.location import locate

    minutes = duration_of("--budget", budget).total_seconds() / 60
    if not minutes:
        message = f"--budget {budget} leaves no time for any benchmark: give the time for each node, such as 10m"
        raise InputError("no-budget", message, key="--budget", value=budget)
    longest, now = age_of("--seen-within", seen_within), datetime.now(UTC)
    suite = find_suite(suite_name)
    stored = read_checks(suite.name, suite_name, rules, baseline, store)
    checks = stored.checks
    model = learn(history_of(checks, stored.lost, _candidates(suite, checks), now))
    in_group = {check.node for check in checks if group is None or group in check.tags}
    if not in_group:
        raise unknown("tag", str(group), {tag for check in checks for tag in check.tags}, key="--group")
    for pattern in nodes:
        if not any(fnmatchcase(node, pattern) for node in in_group):
            raise unknown("node", pattern, in_group)
    asked = [node for node in in_group if not nodes or any(fnmatchcase(node, pattern) for pattern in nodes)]
    gone = {node: stored.last_seen[node] for node in sorted(asked) if now - stored.last_seen[node] > longest}
    chosen = [node for node in asked if node not in gone]
    if not chosen:
        newest = max(gone.values())
        message = (
            f"no node has a run of the last {seen_within}: the newest is of {newest:%Y-%m-%d}; check the nodes once "
            f"with `paceline run {shlex.quote(suite_name)} --each --hosts FILE`, or give a longer --seen-within"
        )
        raise InputError("no-node-left", message, key="--seen-within", value=seen_within)
    plan = choose(model.of_nodes(chosen), minutes * len(chosen))
    _refuse_too_little(plan, budget)
    around = report.Circumstances(
        unjudged=sum(not check.judged for check in checks),
        has_baseline=baseline is not None,
        gone=gone,
        seen_within=seen_within,
    )
    if answer.kind == "yaml":
        shown = locate(store).shown if store is not None else None  # a URL without its password
        judging = [("--rules", rules), ("--baseline", baseline), ("--store", shown)]
        sizes = _write_suites(plan, suite, answer.output or "selection.yaml", judging, stored.reached)
        for line in _what_few_nodes_mean(sizes, report.uncompared(plan, around)) if baseline is None else ():
            click.echo(f"paceline: {line}", err=True)
    else:
        data = {"json": lambda: report.to_json(plan, suite.name, around)}
        answer.give(report.document(plan, suite.name, around), "paceline-selection", data)


def _refuse_too_little(plan: SelectionPlan, budget: str) -> None:
    """Refuse a budget that is too small for a single benchmark on a single node, and say which is not."""
    from paceline.core.quantity import show_duration

    history, nodes = plan.model.history, len(plan.orders)
    costs = {
        name: float(history.minutes[at]) for at, name in enumerate(history.benchmarks) if history.possible[:, at].any()
    }
    shortest = min(costs, key=costs.__getitem__, default=None)
    if shortest is None or costs[shortest] <= plan.budget:
        return
    seconds = math.ceil(60 * costs[shortest] / nodes)
    seconds += seconds / 60 * nodes < costs[shortest]  # what was rounded must suffice as it is read again
    each = "one node" if nodes == 1 else f"each of {nodes} nodes"
    message = (
        f"--budget {budget} for {each} is too short for any benchmark: the shortest, {shortest}, takes "
        f"{show_duration(60 * costs[shortest])} on one node. Give --budget {seconds}s or more"
    )
    raise InputError("budget-too-small", message, key="--budget", value=budget, suggestion=f"{seconds}s")


def _what_few_nodes_mean(sizes: Sequence[int], uncompared: Sequence[str]) -> Iterator[str]:
    """What is not judged where nodes are compared with each other, and how to have it judged.

    `sizes` are the hosts of each command: what ends a check early compares these alone.
    """
    from paceline.analysis.diagnose.early import FEWEST
    from paceline.analysis.summary import shortened

    alone = sum(nodes for nodes in sizes if nodes < FEWEST)
    if alone:
        are = "host is" if alone == 1 else "hosts are"
        yield (
            f"{alone} {are} in commands for fewer than {FEWEST}, whose checks end early only at a case that fails; run "
            "all commands on one day: what ran on one day is judged together"
        )
    if uncompared:
        run = "runs" if len(uncompared) == 1 else "run"
        yield (
            f"{shortened(uncompared, 8)} {run} on fewer than {FEWEST} hosts in all, where only a case that fails is a "
            "defect and nothing is proof of health; --baseline (see 'paceline baseline') judges each host alone"
        )


def _candidates(suite: Suite, checks: Sequence[NodeCheck]) -> dict[str, float]:
    """The benchmarks of a suite, with the minutes that each is guessed to take where no node has run it."""
    from paceline.api.cases import expand_here
    from paceline.service.scheduler.duration_predictor import History

    names = dict.fromkeys(str(entry.get("benchmark")) for entry in suite.cases)
    measured = {name for check in checks for name in check.seconds}
    guesses = {name: 0.0 for name in names if name in measured}
    for case in expand_here(suite, {}) if len(guesses) < len(names) else ():
        guesses[case.benchmark] = guesses.get(case.benchmark, 0.0) + History().predict(case, "").seconds / 60
    return {name: guesses[name] for name in names if name in guesses}


def _write_suites(
    plan: SelectionPlan,
    suite: Suite,
    target: str,
    options: Sequence[tuple[str, Path | str | None]],
    ways: Mapping[str, Reached],
) -> list[int]:
    """A suite for each set of benchmarks, and the hosts that it is for; the commands that run them are printed.

    How many hosts each of these has.
    """
    import yaml

    from paceline.analysis.select import SELECTED
    from paceline.analysis.summary import shortened
    from paceline.report.text import one_line

    history = plan.model.history
    hosts: dict[tuple[frozenset[int], _Entry], list[str]] = {}
    orders: dict[frozenset[int], dict[str, int]] = {}  # that of the first node with this set
    unknown_ways = []
    for node, order in zip(history.nodes, plan.orders, strict=True):
        if order:
            name, entry = _way_in(node, ways.get(node))
            unknown_ways += [node] if name is None else []
            hosts.setdefault((frozenset(order), entry), []).append(name or node)
            rank = {history.benchmarks[benchmark]: place for place, benchmark in enumerate(order)}
            orders.setdefault(frozenset(order), rank)
    path = Path(target)
    for number, ((chosen, entry), of_set) in enumerate(hosts.items(), start=1):
        stem = path.stem if len(hosts) == 1 else f"{path.stem}-{number}"
        rank = orders[chosen]
        entries = [entry for entry in suite.cases if entry.get("benchmark") in rank]
        entries.sort(key=lambda entry: rank[str(entry.get("benchmark"))])
        document = {"name": f"{suite.name}{SELECTED}{number}", "cases": entries}
        written = save(
            yaml.safe_dump(document, sort_keys=False, allow_unicode=True), str(path.with_name(f"{stem}.yaml"))
        )
        listed = save("".join(f"{host}\n" for host in of_set), str(path.with_name(f"{stem}.hosts")))
        words = ["run", written, "--each", "--hosts", listed, "--until-defect"]
        words += [word for flag, value in (*entry, *options) if value is not None for word in (flag, value)]
        click.echo(f"paceline {shlex.join(map(str, words))}")
    if not hosts:
        click.echo("Nothing is expected to find a defect, so that there is nothing to run.", err=True)
    if unknown_ways:
        message = (
            f"paceline: how to reach {one_line(shortened(unknown_ways, 8))} is not in the store, as no run there was "
            "started from another machine: these stand in the lists of hosts by their own names"
        )
        click.echo(message, err=True)
    return [len(of_set) for of_set in hosts.values()]


_Entry = tuple[tuple[str, str], ...]  # options of `run` that say how hosts are entered


def _way_in(node: str, way: Reached | None) -> tuple[str | None, _Entry]:
    """The name by which a node is reached, None where that is not known, and the options that go with it."""
    from paceline.remote.hosts import LOCAL

    if way is None or (way.host == LOCAL and node != socket.gethostname()):  # it was called so on itself alone
        return None, ()
    home = str(Path.home())  # which records do not name
    given = [("--remote-shell", way.shell), ("--remote-python", way.python)]
    return way.host, tuple((flag, re.sub(r"(?:(?<=\s)|^)~(?=/)", home, text)) for flag, text in given if text)

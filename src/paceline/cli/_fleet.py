"""`paceline run --each`: what a user sees of a run over many hosts, and what it came to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paceline.api.fleet import (
    Fleet,
    FleetListener,
    NodeRun,
    Plan,
    nodes_without_gpus,
    outvoted_nodes,
    progress_of,
    slow_nodes,
)
from paceline.cli._running import JUDGING, given, write_summary
from paceline.core.errors import InputError
from paceline.core.interrupt import catch_interrupts
from paceline.core.quantity import show_duration
from paceline.core.record import Outcome, Record
from paceline.report.text import clean, one_line

if TYPE_CHECKING:
    from paceline.analysis.diagnose.early import DefectRules
    from paceline.store.store import Store

INTERRUPTED = 130


class Lines(FleetListener):
    """A line for whatever becomes of a node."""

    def changed(self, node: NodeRun) -> None:
        words = {"measuring": f"measures {node.cases} cases, run {node.run_id}", "finished": f"finished{_counts(node)}"}
        words["accused"] = f"ended early{_counts(node)}"
        self._say(node, words.get(node.state) or f"{node.state}: {_first(node.cause)}")

    def accused(self, node: NodeRun) -> None:
        self._say(node, f"is accused: {node.accused}")

    def late(self, node: NodeRun, usual: float) -> None:
        self._say(node, f"is late: {progress_of(node)}; half of the nodes took {show_duration(usual)} at most")

    def trouble(self, node: NodeRun, message: str) -> None:
        self._say(node, message)

    def _say(self, node: NodeRun, words: str) -> None:
        click.echo(clean(f"{node.host}: {words}"))


class JsonLines(FleetListener):
    """One JSON object for each event."""

    def changed(self, node: NodeRun) -> None:
        cause = {"cause": node.cause} if node.cause else {}
        self._say("node", node, state=node.state, run=node.run_id, cases=node.cases, **cause)

    def case_ended(self, node: NodeRun, record: Record) -> None:
        without_samples = record.model_dump(mode="json", exclude={"measurements": {"__all__": {"samples"}}})
        self._say("case_ended", node, record=without_samples)

    def accused(self, node: NodeRun) -> None:
        self._say("accused", node, why=node.accused)

    def late(self, node: NodeRun, usual: float) -> None:
        self._say("late", node, done=len(node.latest), cases=node.cases, usual_seconds=usual)

    def trouble(self, node: NodeRun, message: str) -> None:
        self._say("trouble", node, message=message)

    def _say(self, event: str, node: NodeRun, **words: Any) -> None:
        click.echo(json.dumps({"event": event, "node": node.host, **words}))


def run(
    plan: Plan, store: str | None, *, as_json: bool, retry_failed: bool = False, until: DefectRules | None = None
) -> int:
    """Measure what is missing of the plan on all of its hosts; returns the exit code."""
    from paceline.store import open_existing, open_store

    catch_interrupts()
    with open_existing(store) if plan.runs else open_store(store) as opened:
        _refuse_store_without_runs(plan, opened)
        if as_json:
            click.echo(json.dumps({"event": "fleet_started", "fleet": plan.id, "suite": plan.suite.name}))
        else:
            click.echo(f"{one_line(plan.suite.name)} on {len(plan.hosts)} hosts, {plan.id}")
        fleet = Fleet(plan, opened, JsonLines() if as_json else Lines(), retry_failed=retry_failed, until=until)
        try:
            nodes = fleet.go()
        except KeyboardInterrupt:
            again = f"{plan.id}{given(opened, *JUDGING)}"
            click.echo(f"\npaceline: interrupted; go on with: paceline run --resume {again}", err=True)
            return INTERRUPTED
        there = f"{plan.id}{given(opened)}"
    results = [node.result for node in nodes if node.result is not None]
    summary = write_summary(plan.id, results)
    code = end(plan.id, nodes, as_json=as_json)
    if not as_json:
        click.echo(f"\nNodes:  paceline diagnose {there}")
        if summary is not None:
            click.echo(f"Results under SuperBench's names: {summary}")
        if any(node.state != "finished" for node in nodes):
            click.echo(f"Rest:   paceline run --resume {there}")
    if until is not None and (nothing := until.nothing_compared(results)):
        click.echo(f"paceline: {nothing}", err=True)
    return code


def _refuse_store_without_runs(plan: Plan, store: Store) -> None:
    """A store that has none of the fleet's runs is another one than they went to."""
    if not plan.runs or any(map(store.has, plan.runs.values())):
        return
    message = (
        f"the store {store.location.shown} has none of the {len(plan.runs)} runs of {plan.id}: name the one that they "
        "went to with --store; if they were deleted, measure anew with --each --hosts"
    )
    raise InputError("no-run-of-fleet", message, key="--store", value=store.location.shown)


def end(fleet: str, nodes: Sequence[NodeRun], *, as_json: bool) -> int:
    """Say what became of every node; returns the exit code."""
    slow, (outvoted, undecided) = slow_nodes(nodes), outvoted_nodes(nodes)
    without = nodes_without_gpus(nodes)
    ok = all(node.ok for node in nodes) and not outvoted
    if as_json:
        states = {node.host: node.state for node in nodes}
        words = {"event": "fleet_ended", "fleet": fleet, "ok": ok, "nodes": states, "slow": slow}
        click.echo(json.dumps(words | {"outvoted": outvoted, "undecided": undecided, "without_gpus": without}))
    else:
        wrong = [f"{host} does not compute what the others do: {why}" for host, why in outvoted.items()]
        warnings = [f"{host} lacks GPUs: {why}" for host, why in without.items()]
        warnings += [f"{host} is slow: {why}" for host, why in slow.items()]
        _show(fleet, nodes, wrong, [*warnings, *undecided])
    return 0 if ok else 1


def _show(fleet: str, nodes: Sequence[NodeRun], outvoted: Sequence[str], warnings: Sequence[str]) -> None:
    from paceline.report.document import Block, Document, Section, Table, Tone
    from paceline.report.document import Lines as Texts
    from paceline.report.render import terminal

    bad = [node for node in nodes if not node.ok]
    lines = [
        [node.host, node.state, node.run_id, _counts(node).lstrip(": "), show_duration(node.seconds)] for node in nodes
    ]
    causes = [f"{node.host} is {node.state}: {_first(node.cause)}" for node in bad if node.cause]
    causes += [f"{node.host}: {node.accused or _first_failure(node)}" for node in bad if not node.cause]
    causes += outvoted
    lead = f"{len(nodes) - len(bad)} of {len(nodes)} nodes measured everything."
    sections = (
        Section(items=(Table.of_lines(("Node", "State", "Run", "Cases", "Time"), lines, named=4, is_wide=True),)),
        Section(items=(Texts(tuple(causes), Tone.BAD), Texts(tuple(warnings), Tone.WARNING))),
    )
    click.echo()
    terminal.show(Document(fleet, (Block(lead, "", sections),)))


def _counts(node: NodeRun) -> str:
    done = node.latest
    ok = sum(record.outcome is Outcome.OK for record in done)
    failed = sum(not record.is_success for record in done)
    counts = {"ok": ok, "failed": failed, "unsupported": len(done) - ok - failed, "missing": node.cases - len(done)}
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "ok")
    return f": {words}" if node.cases else ""


def _first_failure(node: NodeRun) -> str:
    failed = next((record for record in node.latest if not record.is_success), None)
    if failed is None:
        first = next((record.cause.message for record in node.latest if record.cause), "there is no record")
        return f"nothing that it was asked for could be measured: {_first(first)}"
    why = failed.cause.message if failed.cause else failed.outcome.value
    return f"{failed.case.benchmark} {failed.case.title} on {failed.case.target}: {_first(why)}"


def _first(text: str) -> str:
    """A cause in one line: with what a host printed, where it printed something."""
    return one_line(" ".join(text.split()))

"""What was seen of nodes while they measured, in the rules of a diagnosis; and what is built into them."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.baseline import make_baseline
from paceline.analysis.diagnose.judge import diagnose
from paceline.analysis.diagnose.rules import rules_from_text
from paceline.analysis.diagnose.table import NodeTable, assemble, results_of
from paceline.core.environment import Environment, Inventory, Nic
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.report.diagnose import as_json, document
from paceline.report.document import Lines
from support.records import case, record, run_of, throughput

RULES = """
rules:
  hot: {check: value, when: x > 85, metrics: [".*temperature_max"]}
  errors: {check: value, when: x > 0, metrics: ["watch/.*/ecc_uncorrected_new"]}
  stolen: {check: value, when: x > 0.05, metrics: ["watch/cpu/steal_mean"]}
"""


def watched(temperature: float, errors: float, steal: float, seconds: float = 10.0) -> dict[str, Any]:
    series = [
        ("cuda:0", "temperature", "max", temperature),
        ("cuda:0", "ecc_uncorrected", "new", errors),
        ("cpu", "steal", "mean", steal),
    ]
    return {
        "times": [0.0, seconds],
        "series": [dict(zip(("of", "name", "figure", "value"), one, strict=True)) | {"values": []} for one in series],
    }


def node(name: str, firmware: str, *seen: dict[str, Any]) -> RunRecords:
    measured = [Measurement.of_value(throughput("images/s"), 10.0)]
    records = [
        record(case(index, "train", f"model {index}"), measured, conditions={"watched": [one]})
        for index, one in enumerate(seen)
    ]
    nics = [Nic(name="mlx5_0", driver="mlx5_core", firmware=firmware)] * 2
    return run_of(records, environment=Environment(host=name, kernel="6.1", inventory=Inventory(nics=nics)))


@pytest.fixture
def table() -> NodeTable:
    good = [watched(70, 0, 0.0), watched(75, 0, 0.02, 30.0)]
    runs = [node(f"good-{number}", "28.39", *good) for number in range(3)]
    runs.append(node("hot", "28.39", watched(70, 0, 0.0), watched(95, 0, 0.0)))
    runs.append(node("broken", "28.38", watched(70, 1, 0.0), watched(70, 2, 0.0)))
    runs.append(node("stolen", "28.39", watched(70, 0, 0.5, 1.0), watched(70, 0, 0.06, 9.0)))
    return assemble(results_of(runs))


def test_rules_take_one_figure_for_each_series(table: NodeTable) -> None:
    found = diagnose(table, rules_from_text(RULES, "rules.yaml"))
    accused = {one.node: [(item.rule, item.metric, item.value) for item in one.accusations] for one in found.defective}
    assert accused == {
        "hot": [("hot", "watch/cuda:0/temperature_max", 95.0)],
        "broken": [("errors", "watch/cuda:0/ecc_uncorrected_new", 3.0)],
        "stolen": [("stolen", "watch/cpu/steal_mean", pytest.approx(0.104))],
    }


def test_what_was_seen_leads_nothing_and_is_in_no_baseline(table: NodeTable) -> None:
    seen = [column for column in table.columns if column.name.startswith("watch/")]
    assert len(seen) == 3 and not any(column.leads for column in seen)
    assert not [name for name in make_baseline(table).metrics if name.startswith("watch/")]


def test_nodes_with_another_firmware_are_named(table: NodeTable) -> None:
    found = diagnose(table, rules_from_text(RULES, "rules.yaml"))
    sections = {section.key: section for section in document(found).blocks[0].sections}
    (sentence,) = [text for item in sections["environment"].items if isinstance(item, Lines) for text in item.texts]
    assert sentence == (
        "1 of 6 nodes differ in NICs (2 x mlx5_core firmware 28.38; most have 2 x mlx5_core firmware 28.39): broken."
    )
    assert '"2 x mlx5_core firmware 28.38": [\n        "broken"\n      ]' in as_json(found)

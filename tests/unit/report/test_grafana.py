"""The dashboard for Grafana: it is whole, and asks for nothing that the exports do not print."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from paceline.cli.show import command as show
from paceline.core.run import RunRecords
from paceline.report.export import openmetrics
from paceline.report.export.openmetrics import queries
from support.leading import served_in
from support.micro_records import micro_run
from support.records import literal_run, sample_run
from support.serving_records import rates_run

WIDTH = 24  # of a row, in Grafana's units
CHOSEN = {"$benchmark": ".*", "$case": ".*", "$__rate_interval": "5m"}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    printed = CliRunner().invoke(show, ["grafana-dashboard"])
    assert printed.exit_code == 0, printed.exception
    document: dict[str, Any] = json.loads(printed.output)
    return document


def filled(query: str, metric: str) -> str:
    """A query with values instead of the dashboard's variables."""
    for variable, value in ({"${metric}": metric} | CHOSEN).items():
        query = query.replace(variable, value)
    assert "$" not in query.replace('$"', "")
    return query


def printed_names(text: str) -> set[str]:
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def test_it_has_what_grafana_requires(dashboard: dict[str, Any]) -> None:
    assert {"uid", "title", "schemaVersion", "templating", "annotations", "time", "panels"} <= set(dashboard)
    assert len(dashboard["uid"]) <= 40
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= WIDTH
        assert not cells & taken, f"'{panel['title']}' lies on another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C"][: len(panel["targets"])]
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"]))) - {"__rate_interval"}
    assert used == set(variables) == {"datasource", "metric", "benchmark", "case"}
    assert variables["metric"]["current"]["value"] == "throughput"


def test_every_name_in_its_queries_is_one_that_is_printed(dashboard: dict[str, Any], tmp_path: Path) -> None:
    with served_in(tmp_path) as served:
        served.leader.step()
        served.submit("one")
        of_leader = printed_names(served.ask("GET", "metrics").body.decode())
    of_results = printed_names(openmetrics.render(sample_run()))
    variables = [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    named = {name for query in [*queries(dashboard), *variables] for name in re.findall(r"\bpaceline_[a-z_]+\b", query)}
    named -= {"paceline_"}
    assert named <= of_leader | of_results
    # All that a leader says of itself is shown.
    assert {name for name in of_leader if name not in named} == set()


@pytest.mark.parametrize(
    "run", [literal_run(), sample_run(), micro_run(), rates_run()], ids=["two", "many", "micro", "serving"]
)
def test_a_metric_that_is_chosen_is_found_with_its_interval_and_no_other(
    dashboard: dict[str, Any], run: RunRecords
) -> None:
    printed = printed_names(openmetrics.render(run))
    (variable,) = (one for one in dashboard["templating"]["list"] if one["name"] == "metric")
    metrics = {one.metric for record in run.records for one in record.measurements}
    stems = {openmetrics.stem_of(metric) for metric in metrics} & set(variable["query"].split(","))
    assert stems
    for stem in stems:
        for end in ("", "_low", "_high"):
            names = {
                openmetrics.sample_name(f"{metric.name}{end}", openmetrics.unit_word(metric.unit))
                for metric in metrics
                if openmetrics.stem_of(metric) == stem
            }
            (pattern,) = {
                match.group(1)
                for query in queries(dashboard)
                if (match := re.search(rf'__name__=~"(\w+\$\{{metric\}}{end}\([^"]*)"', query))
            }
            wanted = re.compile(filled(pattern, stem))
            assert {name for name in printed if wanted.fullmatch(name)} == names & printed


def test_promtool_takes_every_query(dashboard: dict[str, Any], tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("NOT TESTED with promtool, which is missing: apt-get install prometheus")
    rules = [
        {"record": f"query:{number}", "expr": filled(query, "throughput")}
        for number, query in enumerate(queries(dashboard))
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout + checked.stderr
    rules[0]["expr"] += "("
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, check=False).returncode


def test_the_older_format_of_prometheus_is_taken_too() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("NOT TESTED with promtool, which is missing: apt-get install prometheus")
    text = openmetrics.render(sample_run())
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert "parsing error" not in checked.stdout + checked.stderr

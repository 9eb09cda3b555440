"""A dashboard for Grafana: what `report --openmetrics` and a leader's `/metrics` have told Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paceline.core.metric import Metric
from paceline.report.export.openmetrics import PREFIX, stem_of, unit_word

Panel = dict[str, Any]
SCHEMA_VERSION = 39  # of Grafana 11; a newer one migrates it
WIDTH = 24  # of a row, in Grafana's units
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = 'benchmark=~"$benchmark",case=~"$case"'
_LEADER = f"{PREFIX}_leader"


def dashboard(metrics: Iterable[Metric]) -> dict[str, Any]:
    """A dashboard on which one of these metrics is chosen; two rows, for results and for a leader."""
    known = list(metrics)
    panels = _placed([*_results(_units(known)), *_leader()])
    stems = sorted({stem_of(metric) for metric in known})
    return {
        "uid": PREFIX,
        "title": "Paceline",
        "description": "Results of `paceline report --openmetrics`, and the leader's own metrics.",
        "tags": [PREFIX],
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-7d", "to": "now"},
        "refresh": "1m",
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": _variables(stems)},
        "panels": panels,
    }


def queries(document: Mapping[str, Any]) -> list[str]:
    """Every query of a dashboard."""
    targets = (target for panel in document["panels"] for target in panel.get("targets", ()))
    return [target["expr"] for target in targets]


def _units(metrics: Iterable[Metric]) -> str:
    """What may follow the name of a metric: its unit; those of rates depend on what is measured."""
    words = {unit_word(metric.unit) for metric in metrics}
    fixed = sorted(word for word in words if word and not word.endswith("_per_second"))
    return f"(_({'|'.join([*fixed, 'value', '[a-z0-9]+_per_second'])}))?"


def _results(units: str) -> list[Panel]:
    def of_metric(end: str = "") -> str:
        return f'{{__name__=~"{PREFIX}_${{metric}}{end}{units}",scope="",{_CHOSEN}}}'

    run = f"{PREFIX}_run_info"
    started = (
        f"1000 * {PREFIX}_run_started_timestamp_seconds * on (run) group_left (suite, host, version, commit, tags)"
    )
    value = _chart("${metric}", [(of_metric(), "{{case}} {{target}} {{at}}")], 16, "One line for each case.")
    interval = _chart(
        "${metric}: ends of the interval",
        [
            (of_metric("_low"), "{{case}} {{target}} {{at}} low"),
            (of_metric("_high"), "{{case}} {{target}} {{at}} high"),
        ],
        8,
        "Between which values the true one lies.",
    )
    return [
        {"type": "row", "title": "Results", "collapsed": False, "panels": []},
        _figure("Runs", f"count({run}) or vector(0)", 4),
        _figure("Cases", f"count({PREFIX}_case_success) or vector(0)", 4),
        _figure("Cases that did not succeed", f"count({PREFIX}_case_success == 0) or vector(0)", 4, bad_from=1),
        _table("Latest values", of_metric(), 12),
        value,
        interval,
        _table("Runs and when they started", f"{started} {run}", 12, date=True),
        _table("Cases that did not succeed", f"{PREFIX}_case_success{{{_CHOSEN}}} == 0", 12),
    ]


def _leader() -> list[Panel]:
    writes, seconds = f"{_LEADER}_store_writes_total", f"{_LEADER}_store_write_seconds_total"
    per_second = f"rate({writes}[$__rate_interval])"
    people = [(f"{_LEADER}_followers", "followers"), (f"{_LEADER}_followers_refused", "refused")]
    people += [(f"{_LEADER}_leases", "jobs that followers have")]
    connections = [(f"{_LEADER}_connections", "open")]
    connections += [(f"rate({_LEADER}_connections_refused_total[$__rate_interval])", "closed for others, per second")]
    return [
        {"type": "row", "title": "Leader", "collapsed": False, "panels": []},
        _figure("Takes jobs", f"min({_LEADER}_ready)", 4),
        _figure("Since it heard of its followers", f"max({_LEADER}_age_seconds)", 4, unit="s"),
        _figure("Reports in quarantine", f"sum({_LEADER}_quarantined_reports)", 4, bad_from=1),
        _figure("First lease runs out in", f"min({_LEADER}_lease_left_seconds)", 4, unit="s"),
        _figure("Counting jobs takes", f"max({_LEADER}_store_read_seconds)", 4, unit="s"),
        _figure("Queued", f'sum({_LEADER}_jobs{{state="queued"}})', 4),
        _chart("Jobs by state", [(f"sum by (state) ({_LEADER}_jobs)", "{{state}}")], 12),
        _chart("Followers", people, 12),
        _chart("Changes of jobs stored, per second", [(per_second, "{{instance}}")], 8),
        _chart(
            "Time to store a change",
            [(f"rate({seconds}[$__rate_interval]) / {per_second}", "{{instance}}")],
            8,
            unit="s",
        ),
        _chart("Connections", connections, 8),
    ]


def _figure(title: str, query: str, width: int, *, unit: str = "short", bad_from: int | None = None) -> Panel:
    steps: list[dict[str, Any]] = [{"color": "text" if bad_from is None else "green", "value": None}]
    steps += [{"color": "red", "value": bad_from}] if bad_from is not None else []
    defaults = {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}}
    return _panel("stat", title, [(query, "")], (width, 4), defaults, {"reduceOptions": {"calcs": ["lastNotNull"]}})


def _chart(
    title: str, lines: Iterable[tuple[str, str]], width: int, description: str = "", *, unit: str = "short"
) -> Panel:
    defaults = {"unit": unit, "custom": {"showPoints": "auto", "spanNulls": True}}
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return _panel("timeseries", title, lines, (width, 9), defaults, options, description)


def _table(title: str, query: str, width: int, *, date: bool = False) -> Panel:
    panel = _panel("table", title, [(query, "")], (width, 8), {"unit": "dateTimeAsIso"} if date else {}, {})
    panel["targets"][0] |= {"instant": True, "range": False, "format": "table"}
    panel["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True}}}]
    return panel


def _panel(
    kind: str,
    title: str,
    lines: Iterable[tuple[str, str]],
    size: tuple[int, int],
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
    description: str = "",
) -> Panel:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend or "__auto"}
        for number, (query, legend) in enumerate(lines)
    ]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": _SOURCE,
        "gridPos": {"w": size[0], "h": size[1]},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }


def _placed(panels: list[Panel]) -> list[Panel]:
    """The panels with their places: from left to right, and a new line where no room is left."""
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        size = panel.get("gridPos", {"w": WIDTH, "h": 1})
        if x + size["w"] > WIDTH:
            x, y = 0, y + height
        panel |= {"id": number, "gridPos": {"x": x, "y": y, **size}}
        x, height = x + size["w"], size["h"]
    return panels


def _variables(stems: list[str]) -> list[dict[str, Any]]:
    first = "throughput" if "throughput" in stems else stems[0]
    options = [{"text": stem, "value": stem, "selected": stem == first} for stem in stems]
    chosen = {"text": first, "value": first, "selected": True}
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "metric",
            "label": "Metric",
            "type": "custom",
            "query": ",".join(stems),
            "options": options,
            "current": chosen,
        },
        _labels("benchmark", f"{PREFIX}_case_success"),
        _labels("case", f'{PREFIX}_case_success{{benchmark=~"$benchmark"}}'),
    ]


def _labels(name: str, series: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({series}, {name})",
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }

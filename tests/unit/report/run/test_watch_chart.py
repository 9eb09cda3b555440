"""The machine while a case ran, on the page of a run."""

from __future__ import annotations

from paceline.core.watch import Watched, WatchSeries
from paceline.report.charts import Chart
from paceline.report.document import Table
from paceline.report.run.case import watched_items


def seen(host: str = "") -> Watched:
    series = [
        WatchSeries(of="cuda:0", name="temperature", unit="°C", figure="max", value=71, values=[50, 60, 71]),
        WatchSeries(of="cpu", name="steal", figure="mean", value=0.034, values=[None, 0.0, 0.068]),
        WatchSeries(of="eth0", name="errors", figure="new", value=0, values=[0]),
        WatchSeries(of="eth0", name="sent", unit="B/s", figure="mean", value=2e6, values=[None, 2e6, 2e6]),
    ]
    return Watched(times=[0.0, 1.0, 2.0], series=series, cpu_seconds=0.002, host=host)


def test_what_moved_is_drawn_and_everything_is_listed() -> None:
    chart, table = watched_items([seen()])
    assert isinstance(chart, Chart) and isinstance(table, Table)
    assert chart.svg.count("<title>") == 2, "one line for each series that moved"
    assert "cuda:0 temperature" in chart.svg and "71 °C at most" in chart.svg
    assert "M210.0 28.0L490.0 16.6L770.0 4.0" in chart.svg, "from the lowest to the highest value, over all of the time"
    assert "M490.0" in chart.svg, "a line begins where something is known"
    assert "3 looks in 2 s, start-up included; watching took 2 ms of a core." in chart.notes
    assert ("cpu", "steal", "3.4 %", "on average") in table.lines
    assert ("eth0", "errors", "0", "new") in table.lines
    assert ("eth0", "sent", "2 MB/s", "on average") in table.lines


def test_each_host_of_a_case_has_its_own() -> None:
    titles = [getattr(item, "title", "") for item in watched_items([seen(host="10.0.0.1"), seen(host="10.0.0.2")])]
    assert titles[0] == "The machine meanwhile on 10.0.0.1"
    assert titles[2] == "The machine meanwhile on 10.0.0.2"


def test_nothing_seen_is_nothing_shown() -> None:
    assert list(watched_items([])) == []
    assert list(watched_items([Watched()])) == []

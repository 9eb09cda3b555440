"""What is written for other tools, opened by these: pyperf, LibreOffice, Prometheus, Grafana's model of dashboards."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.core.network import free_port
from paceline.report.export import openmetrics, pyperf, xlsx
from paceline.report.export.openmetrics import queries
from support.cli import Sandbox
from support.leading import served_in
from support.other_tools import ToolEnvironment, tool_environment
from support.records import sample_run

pytestmark = pytest.mark.long
GENEROUS = 120.0  # seconds; only what hangs takes so long


@pytest.fixture(scope="module")
def tool() -> ToolEnvironment:
    return tool_environment("pyperf", "pyperf>=2.6")


READ = """
import json, sys, pyperf
suite = pyperf.BenchmarkSuite.load(sys.argv[1])
print(json.dumps([
    {"name": one.get_name(), "unit": one.get_unit(), "values": one.get_values(), "metadata": one.get_metadata(),
     "runs": [run.get_metadata() for run in one.get_runs()]}
    for one in suite.get_benchmarks()
]))
"""


def test_pyperf_reads_what_is_written_for_it(tool: ToolEnvironment, tmp_path: Path) -> None:
    run = sample_run()
    file = tmp_path / "run.json"
    file.write_text(pyperf.render(run))
    read = tool.run("-c", READ, str(file))
    assert read.returncode == 0, read.stderr
    found = {one["name"]: one for one in json.loads(read.stdout)}
    record = run.records[0]
    times, rate = record.measurement("step_time"), record.measurement("throughput")
    memory = record.measurement("peak_device_memory")
    assert times is not None and times.interval is not None and rate is not None and memory is not None
    leading = found["train gpt2-small bf16"]
    assert (leading["unit"], leading["values"]) == ("second", list(times.samples))
    about = leading["runs"][0]
    assert (about["paceline_low"], about["paceline_high"]) == (times.interval.low, times.interval.high)
    assert (about["paceline_throughput"], about["paceline_throughput_unit"]) == (rate.value, "sequences/s")
    assert found["train gpt2-small bf16 peak_device_memory"]["values"] == [memory.value]
    assert found["train gpt2-small bf16 peak_device_memory"]["unit"] == "byte"
    for words in (["stats"], ["check"], ["compare_to", str(file)]):
        done = tool.run("-m", "pyperf", *words, str(file))
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_pyperf_measured_is_imported_reported_and_written_back(
    tool: ToolEnvironment, tmp_path: Path, sandbox: Sandbox
) -> None:
    measured = tmp_path / "bench.json.gz"
    options = ("--name", "a sum", "--processes", "3", "--values", "4", "--warmups", "1", "--loops", "100")
    timed = tool.run("-m", "pyperf", "timeit", *options, "-o", str(measured), "sum(range(1000))")
    assert timed.returncode == 0, timed.stderr
    read = tool.run("-c", READ, str(measured))
    (theirs,) = json.loads(read.stdout)

    imported = sandbox.run("results", "--import", str(measured))
    assert imported.returncode == 0, imported.stderr
    run = sandbox.load()
    assert [record.case.title for record in run.records] == ["a sum"] * 3
    assert [record.case.repeat for record in run.records] == [1, 2, 3]
    samples = [sample for record in run.records for sample in record.measurements[0].samples]
    assert samples == theirs["values"]
    metric = run.records[0].measurements[0].metric
    assert (metric.name, metric.unit, metric.better) == ("time", "s", "lower")
    assert run.run.environment.host_name == theirs["metadata"]["hostname"]
    assert run.records[0].facts["loops"] == theirs["metadata"]["loops"]

    assert "a sum" in sandbox.run("report", "last").stdout
    back = tmp_path / "back.json"
    assert sandbox.run("report", "last", "--pyperf", "-o", str(back)).returncode == 0
    (again,) = json.loads(tool.run("-c", READ, str(back)).stdout)
    assert again["values"] == theirs["values"]
    assert len(again["runs"]) == 3

    twice = sandbox.run("results", "--import", str(measured))
    assert twice.returncode == 2
    assert "was imported already" in twice.stderr


def test_libreoffice_opens_the_workbook(tmp_path: Path) -> None:
    office = shutil.which("soffice")
    if office is None:
        pytest.skip("NOT TESTED with LibreOffice, which is missing: apt-get install libreoffice-calc")
    pytest.importorskip("openpyxl", reason="install it with: pip install '.[exports]'")
    run = sample_run()
    book = tmp_path / "run.xlsx"
    book.write_bytes(xlsx.render(run))
    every_sheet = "csv:Text - txt - csv (StarCalc):44,34,76,1,,0,false,true,false,false,false,-1"
    home = f"-env:UserInstallation={(tmp_path / 'office').as_uri()}"
    done = subprocess.run(
        [office, home, "--headless", "--convert-to", every_sheet, "--outdir", str(tmp_path), str(book)],
        capture_output=True, text=True, check=False, timeout=GENEROUS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with (tmp_path / "run-Cases.csv").open(encoding="utf-8") as file:
        cases = {row["Case"]: row for row in csv.DictReader(file)}
    assert len(cases) == len(run.records)
    rate = run.records[0].measurement("throughput")
    assert rate is not None and rate.interval is not None
    row = cases["train gpt2-small bf16"]
    # LibreOffice writes fifteen digits; the workbook has all of them.
    assert float(row["Value"]) == pytest.approx(rate.value, rel=1e-14)
    assert float(row["Low"]) == pytest.approx(rate.interval.low, rel=1e-14)
    assert row["Unit"] == "sequences/s"
    with (tmp_path / "run-Measurements.csv").open(encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 1 + sum(max(1, len(one.measurements)) for one in run.records)


KEPT = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
print(JSONEncoder().encode(Dashboard.from_json(json.load(sys.stdin))))
"""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from paceline.cli.show import FILES

    return FILES["grafana-dashboard"].make()


def test_grafanas_own_model_of_dashboards_knows_every_field(dashboard: dict[str, Any], tmp_path: Path) -> None:
    sdk = tool_environment("grafana", "grafana-foundation-sdk")

    def kept(document: dict[str, Any]) -> Any:
        file = tmp_path / "dashboard.json"
        file.write_text(json.dumps(document))
        read = sdk.run("-c", KEPT.replace("sys.stdin", f"open({str(file)!r})"))
        assert read.returncode == 0, read.stderr
        return json.loads(read.stdout)

    assert list(_lost(dashboard, kept(dashboard))) == []
    wrong = dashboard | {"panells": [], "panels": [dashboard["panels"][1] | {"grid": 1}]}
    assert list(_lost(wrong, kept(wrong))) == [".panels[0].grid", ".panells"]


def _lost(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Where a model did not keep what it was given."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours:
            yield from _lost(ours[key], theirs[key], f"{path}.{key}") if key in theirs else [f"{path}.{key}"]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _lost(one, other, f"{path}[{number}]")
    elif ours != theirs:
        yield path


def test_prometheus_answers_every_query_of_the_dashboard(dashboard: dict[str, Any], tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("NOT TESTED with Prometheus, which is missing: apt-get install prometheus")
    results = openmetrics.render(sample_run())
    with served_in(tmp_path) as served, serving(results) as port:
        served.leader.step()
        served.submit("one")
        with scraped(program, tmp_path, (port, "/"), (served.port, "/api/v1/metrics")) as ask:
            answers = {query: ask(_filled(query)) for query in queries(dashboard)}
            deadline = time.monotonic() + GENEROUS  # rates need two scrapes
            while (empty := [query for query, answer in answers.items() if not answer]) and time.monotonic() < deadline:
                time.sleep(0.5)
                answers |= {query: ask(_filled(query)) for query in empty}
    assert empty == []
    (value,) = (answer for query, answer in answers.items() if "metric}(" in query)
    rate = sample_run().records[0].measurement("throughput")
    assert rate is not None
    shown = {one["metric"]["case"]: float(one["value"][1]) for one in value}
    assert shown["train gpt2-small bf16"] == rate.value


def _filled(query: str) -> str:
    chosen = {"${metric}": "throughput", "$__rate_interval": "1m", "$benchmark": ".*", "$case": ".*"}
    for variable, value in chosen.items():
        query = query.replace(variable, value)
    return query


@contextmanager
def serving(text: str) -> Iterator[int]:
    """A text at any path of a port, as an exporter has it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


@contextmanager
def scraped(program: str, folder: Path, *targets: tuple[int, str]) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Prometheus, which scrapes these ports and paths; answers queries as of now."""
    port = free_port()
    jobs = [
        {"job_name": f"job-{number}", "metrics_path": path, "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        for number, (target, path) in enumerate(targets)
    ]
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    log = folder / "prometheus.log"
    with log.open("w") as written:
        process = subprocess.Popen(
            [program, *options, f"--web.listen-address=127.0.0.1:{port}"], stdout=written, stderr=written, cwd=folder
        )

        def ask(query: str) -> list[dict[str, Any]]:
            address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            with urllib.request.urlopen(address, timeout=30) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result

        try:
            deadline = time.monotonic() + GENEROUS
            while True:
                try:
                    if len(ask("up == 1")) == len(targets):
                        break
                except OSError:
                    pass
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield ask
        finally:
            process.terminate()
            process.wait(GENEROUS)

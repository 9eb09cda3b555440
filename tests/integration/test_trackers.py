"""Runs sent to MLflow and to Weights & Biases by their own clients, and read back from what these kept."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.core.network import free_port
from paceline.core.record import Record
from paceline.core.run import RunRecords
from paceline.report.export import jsonl
from paceline.report.export.tracking import tracked_cases
from paceline.store import open_store
from support.other_tools import ToolEnvironment, of_product, tool_environment
from support.records import sample_run

pytestmark = pytest.mark.long
GENEROUS = 180.0  # seconds; only what hangs takes so long


@pytest.fixture
def run() -> RunRecords:
    made = sample_run()
    made.run.tags = ["nightly"]
    return made


@pytest.fixture
def store(run: RunRecords, tmp_path: Path) -> Path:
    path = tmp_path / "results.db"
    with open_store(str(path)) as opened:
        opened.import_run(run)
    return path


def figures_of(record: Record) -> dict[str, float]:
    """The figures of a case as a whole, by name, as they were measured."""
    figures: dict[str, float] = {}
    for one in record.measurements:
        if not one.scope:
            figures[one.metric.name] = one.value
            if one.interval is not None:
                figures |= {f"{one.metric.name}_low": one.interval.low, f"{one.metric.name}_high": one.interval.high}
    return figures


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tracking server on loopback."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    environment = tool_environment("mlflow", "mlflow>=2.10")
    options = [f"--port={port}", "--host=127.0.0.1", "--workers=1", "--backend-store-uri=sqlite:///runs.db"]
    command = [str(environment.python), "-m", "mlflow", "server", *options, "--artifacts-destination=./artifacts"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=environment.variables({"MLFLOW_DISABLE_TELEMETRY": "true"})
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(f"{address}/health", process, folder / "log")
            yield address
        finally:
            process.terminate()
            process.wait(GENEROUS)


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + GENEROUS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


class Mlflow:
    """What a tracking server says over its REST interface."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.address}/api/2.0/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        found = self.ask(f"mlflow/experiments/get-by-name?experiment_name={experiment}")["experiment"]
        body = {"experiment_ids": [found["experiment_id"]], "max_results": 1000}
        runs: list[dict[str, Any]] = self.ask("mlflow/runs/search", body)["runs"]
        return runs

    def artifact(self, run: dict[str, Any], name: str) -> bytes:
        place = run["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
        with urllib.request.urlopen(
            f"{self.address}/api/2.0/mlflow-artifacts/artifacts/{place}/{name}", timeout=60
        ) as answer:
            content: bytes = answer.read()
        return content


def pairs(run: dict[str, Any], kind: str) -> dict[str, Any]:
    return {one["key"]: one["value"] for one in run["data"].get(kind, [])}


def send_to_mlflow(store: Path, where: str) -> subprocess.CompletedProcess[str]:
    """By the client alone, as `pip install '.[mlflow]'` installs it."""
    client = tool_environment("mlflow-client", *of_product("mlflow"))
    variables = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    return client.run("-m", "paceline", "report", "last", "--store", str(store), "--mlflow", where, env=variables)


def test_a_run_goes_to_mlflow_with_a_child_for_each_case_and_comes_back_exactly(
    run: RunRecords, store: Path, server: str
) -> None:
    done = send_to_mlflow(store, server)
    assert done.returncode == 0, done.stderr
    mlflow = Mlflow(server)
    runs = mlflow.runs("paceline/node-check")
    (parent,) = (one for one in runs if "mlflow.parentRunId" not in pairs(one, "tags"))
    assert done.stdout.strip().startswith(f"{server}/#/experiments/")
    assert done.stdout.strip().endswith(parent["info"]["run_id"])
    tags = pairs(parent, "tags")
    assert (tags["paceline.run"], tags["paceline.tags"], tags["paceline.host"]) == (run.run.id, "nightly", "node-07")
    assert pairs(parent, "metrics") == {"cases": 9, "cases_failed": 2}
    assert parent["info"]["status"] == "FAILED"

    children = {pairs(one, "tags")["paceline.case"]: one for one in runs if one is not parent}
    assert len(children) == len(run.records)
    for case in tracked_cases(run):
        child, record = children[case.label], case.record
        tags, metrics = pairs(child, "tags"), pairs(child, "metrics")
        assert child["info"]["run_name"] == case.label
        assert tags["mlflow.parentRunId"] == parent["info"]["run_id"]
        assert child["info"]["status"] == ("FINISHED" if record.is_success else "FAILED")
        assert child["info"]["start_time"] == round(record.started_at.timestamp() * 1000)
        for name, value in figures_of(record).items():
            assert metrics[name] == value
        for measurement in record.measurements:
            unit, metric = measurement.metric.unit, measurement.metric.name
            assert tags.get(f"paceline.unit.{metric}", "") == unit
        assert pairs(child, "params") == {name: str(value) for name, value in record.case.parameters.items()}
    assert pairs(children["train gpt2-small bf16 x2"], "metrics")["step_time rank 1"] > 0
    assert "2.0 GiB more" in pairs(children["train mixtral-8x7b bf16"], "tags")["paceline.cause"]
    assert "throttled" in pairs(children["train resnet50 bf16"], "tags")["paceline.warnings"]

    assert mlflow.artifact(parent, "report.html").startswith(b"<!doctype html>")
    (again,) = jsonl.parse(mlflow.artifact(parent, "records.jsonl").decode().splitlines(), "mlflow")
    assert again.records == run.records

    repeated = send_to_mlflow(store, server)
    assert repeated.returncode == 2
    assert f"has run '{run.run.id}' already" in repeated.stderr
    assert len(mlflow.runs("paceline/node-check")) == len(runs)


def test_what_was_not_sent_whole_is_sent_anew(run: RunRecords, server: str, tmp_path: Path) -> None:
    run.run = run.run.model_copy(update={"name": "cut short"})
    store = tmp_path / "cut.db"
    with open_store(str(store)) as opened:
        opened.import_run(run)
    assert send_to_mlflow(store, server).returncode == 0
    mlflow = Mlflow(server)
    runs = mlflow.runs("paceline/cut%20short")
    (parent,) = (one for one in runs if "mlflow.parentRunId" not in pairs(one, "tags"))
    mlflow.ask("mlflow/runs/delete-tag", {"run_id": parent["info"]["run_id"], "key": "paceline.complete"})
    assert send_to_mlflow(store, server).returncode == 0
    anew = mlflow.runs("paceline/cut%20short")
    assert len(anew) == len(runs)
    assert not {one["info"]["run_id"] for one in runs} & {one["info"]["run_id"] for one in anew}


def test_a_server_that_is_not_there_is_named(store: Path) -> None:
    done = send_to_mlflow(store, f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert line.startswith("paceline: MLflow at 'http://127.0.0.1:")
    assert line.endswith("check the address and send it again")


def test_a_word_that_is_not_an_address_is_refused(store: Path) -> None:
    done = send_to_mlflow(store, "last")
    assert done.returncode == 2
    assert "'last' is not a tracking URI" in done.stderr


@pytest.fixture(scope="module")
def wandb() -> ToolEnvironment:
    return tool_environment("wandb", *of_product("wandb"))


def test_a_run_goes_to_an_offline_weights_and_biases_and_comes_back_exactly(
    run: RunRecords, store: Path, tmp_path: Path, wandb: ToolEnvironment
) -> None:
    variables = {"WANDB_MODE": "offline", "WANDB_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}
    arguments = ("-m", "paceline", "report", "last", "--store", str(store), "--wandb", "team/speed")
    done = wandb.run(*arguments, env=variables, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"group {run.run.id} of project speed")
    files = {file.stem.removeprefix("run-"): file for file in tmp_path.glob("wandb/offline-run-*/*.wandb")}
    assert len(files) == len(run.records) + 1

    for case in tracked_cases(run):
        records = _datastore(wandb, files[f"{run.run.id}-{case.record.case.index}"])
        (begun,) = (one["run"] for one in records if one["type"] == "run")
        assert (begun["project"], begun["entity"], begun["run_group"]) == ("speed", "team", run.run.id)
        assert (begun["display_name"], begun["job_type"]) == (case.label, case.record.case.benchmark)
        assert begun["host"] == "node-07"  # where it was measured, not where it was sent from
        config = next(one["config"]["update"] for one in records if one["type"] == "config")
        assert config.items() >= case.record.case.parameters.items()
        assert config["paceline"].get("unit", {}) == case.units
        assert config["paceline"]["case"]["outcome"] == case.record.outcome.value
        (logged,) = (one["history"]["item"] for one in records if one["type"] == "history")
        assert logged.items() >= figures_of(case.record).items()
        assert logged["seconds"] == case.record.seconds
        (end,) = (one["exit"] for one in records if one["type"] == "exit")
        assert end.get("exit_code", 0) == (0 if case.record.is_success else 1)

    records = _datastore(wandb, files[run.run.id])
    (artifact,) = (one["artifact"] for one in records if one["type"] == "artifact")
    kept = {one["path"]: Path(one["local_path"]).read_text() for one in artifact["manifest"]["contents"]}
    (again,) = jsonl.parse(kept["records.jsonl"].splitlines(), "wandb")
    assert again.records == run.records
    assert kept["report.html"].startswith("<!doctype html>")


def _datastore(wandb: ToolEnvironment, file: Path) -> list[dict[str, Any]]:
    """The records of an offline run's file, as the tool itself reads them."""
    shown = wandb.run("-m", "wandb", "leet", "inspect", "--json", str(file))
    assert shown.returncode == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_without_a_key_it_is_said_how_to_log_in(store: Path, tmp_path: Path, wandb: ToolEnvironment) -> None:
    arguments = ("-m", "paceline", "report", "last", "--store", str(store), "--wandb", "speed")
    done = wandb.run(*arguments, env={"HOME": str(tmp_path), "WANDB_MODE": "online"}, cwd=tmp_path)
    assert done.returncode == 1
    assert "log in with `wandb login`, or set WANDB_MODE=offline" in done.stderr

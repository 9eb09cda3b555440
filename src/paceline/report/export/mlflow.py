"""Sends a run to MLflow: a parent run with the report and the records, and a child run for each case."""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError, MissingDependency, PacelineError
from paceline.core.run import RunRecords
from paceline.report.export import Tracker
from paceline.report.export.tracking import TrackedCase, about_case, about_run, tracked_cases

if TYPE_CHECKING:
    from mlflow import MlflowClient

MOST_METRICS, MOST_OTHERS = 1000, 100  # in one request, by MLflow's own limits
LONGEST_NAME = 250
LONGEST_REASON = 200
LONGEST = {"params": 6000, "tags": 8000}  # characters of a value; `records.jsonl` has the whole of it
PREFIX = "paceline"  # of tags
COMPLETE = f"{PREFIX}.complete"
# A server that is not there costs seconds, not minutes; and a line for the whole run is enough.
_SETTINGS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}


def send(records: RunRecords, place: str, files: Mapping[str, str]) -> str:
    """Send all of it, and say where it is; what an earlier attempt left unfinished is removed first."""
    if place and not re.search("[/:]", place) and place not in ("databricks", "uc"):
        message = f"'{place}' is not a tracking URI such as http://127.0.0.1:5000; a run is named before --mlflow"
        raise InputError("not-a-tracking-uri", message, key="--mlflow", value=place)
    try:
        import mlflow
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise MissingDependency("mlflow, which talks to MLflow,", "pip install '.[mlflow]'") from None
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    client = mlflow.MlflowClient(tracking_uri=place or None)
    where = str(client.tracking_uri)
    try:
        experiment = _experiment(client, records.run.name)
        _remove_unfinished(client, experiment, records.run.id)
        parent = _send_parent(client, experiment, records, files)
        for case in tracked_cases(records):
            _send_case(client, experiment, parent, case)
        client.set_tag(parent, COMPLETE, "true")
        _end(client, parent, records.all_ok, records.run.ended_at or records.run.started_at)
    except MlflowException as error:
        reason = textwrap.shorten(str(error).partition("\n")[0], LONGEST_REASON, placeholder=" ...")
        message = (
            f"MLflow at '{where}' did not take run '{records.run.id}': {reason}; check the address and send it again"
        )
        raise PacelineError(message) from None
    if where.startswith("http"):
        return f"{where.rstrip('/')}/#/experiments/{experiment}/runs/{parent}"
    return f"run {parent} in experiment {experiment} at {where}"


def _experiment(client: MlflowClient, suite: str) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or f"{PREFIX}/{suite}"
    if identifier := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return identifier
    existing = client.get_experiment_by_name(name)
    return str(existing.experiment_id if existing is not None else client.create_experiment(name))


def _remove_unfinished(client: MlflowClient, experiment: str, run_id: str) -> None:
    for earlier in client.search_runs([experiment], f"tags.\"{PREFIX}.run\" = '{run_id}'"):
        if COMPLETE in earlier.data.tags:
            message = f"MLflow has run '{run_id}' already, as {earlier.info.run_id}; delete that one to send it again"
            raise InputError("sent-already", message, key="--mlflow", value=run_id)
        for child in client.search_runs([experiment], f"tags.mlflow.parentRunId = '{earlier.info.run_id}'"):
            client.delete_run(child.info.run_id)
        client.delete_run(earlier.info.run_id)


def _send_parent(client: MlflowClient, experiment: str, records: RunRecords, files: Mapping[str, str]) -> str:
    run = records.run
    tags = {f"{PREFIX}.{name}": word for name, word in about_run(run).items()}
    name = f"{run.name} {run.id}"
    parent: str = client.create_run(experiment, _milliseconds(run.started_at), _fitting(tags, "tags"), name).info.run_id
    failed = sum(not record.is_success for record in records.records)
    _log(client, parent, run.started_at, {"cases": float(len(records.records)), "cases_failed": float(failed)}, {}, {})
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            path = Path(folder, file)
            path.write_text(content, encoding="utf-8")
            client.log_artifact(parent, str(path))
    return parent


def _send_case(client: MlflowClient, experiment: str, parent: str, case: TrackedCase) -> None:
    record = case.record
    tags = {f"{PREFIX}.{name}": word for name, word in about_case(case).items()}
    tags |= {f"{PREFIX}.unit.{legal(name)}": unit for name, unit in case.units.items()}
    tags |= {f"{PREFIX}.better.{legal(name)}": better for name, better in case.better.items()}
    tags |= {f"{PREFIX}.not_finite.{legal(name)}": value for name, value in case.not_finite.items()}
    created = client.create_run(
        experiment, _milliseconds(record.started_at), {"mlflow.parentRunId": parent}, case.label
    )
    child: str = created.info.run_id
    parameters = {legal(name): str(value) for name, value in case.parameters.items()}
    figures = {legal(name): value for name, value in case.figures.items()}
    _log(client, child, record.started_at, figures, parameters, tags)
    _end(client, child, record.is_success, record.started_at + timedelta(seconds=record.seconds))


def _log(
    client: MlflowClient,
    run_id: str,
    at: datetime,
    figures: Mapping[str, float],
    parameters: Mapping[str, str],
    tags: Mapping[str, str],
) -> None:
    from mlflow.entities import Metric, Param, RunTag

    metrics = [Metric(name, value, _milliseconds(at), 0) for name, value in figures.items()]
    params = [Param(name, value) for name, value in _fitting(parameters, "params").items()]
    marks = [RunTag(name, value) for name, value in _fitting(tags, "tags").items()]
    for first in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + MOST_METRICS])
    for first in range(0, max(len(params), len(marks)), MOST_OTHERS):
        part = slice(first, first + MOST_OTHERS)
        client.log_batch(run_id, params=params[part], tags=marks[part])


def _end(client: MlflowClient, run_id: str, ok: bool, at: datetime) -> None:
    client.set_terminated(run_id, "FINISHED" if ok else "FAILED", _milliseconds(at))


def _fitting(values: Mapping[str, str], kind: str) -> dict[str, Any]:
    """The values, the longest of them cut where MLflow would refuse them."""
    longest = LONGEST[kind]
    return {name: value if len(value) <= longest else f"{value[: longest - 3]}..." for name, value in values.items()}


def legal(name: str) -> str:
    """A name of the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII).strip("/. ")[:LONGEST_NAME] or "_"


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


TRACKER = Tracker("mlflow", "send it to MLflow: a run with a child run for each case", "[URI]", send)

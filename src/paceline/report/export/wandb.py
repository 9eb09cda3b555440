"""Sends a run to Weights & Biases: a group with a run for each case, and one with the report and the records."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError, MissingDependency, PacelineError
from paceline.core.run import RunRecords
from paceline.report.export import Tracker
from paceline.report.export.tracking import TrackedCase, about_case, about_run, tracked_cases
from paceline.report.text import one_line

if TYPE_CHECKING:
    from wandb import Run as WandbRun

LONGEST_TAG = 64  # characters, by the service's own limit


def send(records: RunRecords, place: str, files: Mapping[str, str]) -> str:
    """Send all of it, and say where it is: a folder of this machine where WANDB_MODE is offline."""
    entity, _, project = place.rpartition("/")
    if not project:
        message = f"'{place}' is not a project: write PROJECT or ENTITY/PROJECT"
        raise InputError("not-a-project", message, key="--wandb", value=place)
    try:
        import wandb
    except ImportError:
        raise MissingDependency("wandb, which talks to Weights & Biases,", "pip install '.[wandb]'") from None
    run = records.run
    about = about_run(run)
    # The machine that sends is not the one that measured, so nothing of it goes along.
    quiet = {"console": "off", "silent": True, "disable_git": True, "disable_code": True}
    settings = wandb.Settings(**quiet, x_disable_stats=True, x_disable_meta=True, host=about["host"])
    shared = {"project": project, "entity": entity or None, "group": run.id, "settings": settings}

    def start(identifier: str, name: str, kind: str, tags: list[str] | None = None) -> WandbRun:
        """A run whose id is known, so that sending again replaces it."""
        return wandb.init(**shared, id=identifier, name=name, job_type=kind, tags=tags, resume="allow")

    try:
        for case in tracked_cases(records):
            started = start(f"{run.id}-{case.record.case.index}", case.label, case.record.case.benchmark)
            _log_case(started, case, about)
            started.finish(exit_code=0 if case.record.is_success else 1)
        started = start(run.id, f"{run.name} {run.id}", "report", [tag[:LONGEST_TAG] for tag in run.tags])
        started.config.update({"paceline": {"run": about}}, allow_val_change=True)
        failed = sum(not record.is_success for record in records.records)
        started.log({"cases": len(records.records), "cases_failed": failed})
        name = re.sub(r"[^\w.-]", "-", f"{run.name}-{run.id}")
        _attach(started, wandb.Artifact(name, type="paceline-run"), files)
        where = f"{Path(started.dir).parent}: `wandb sync` uploads it" if started.offline else started.url
        started.finish()
    except wandb.Error as error:
        message = f"Weights & Biases did not take run '{run.id}': {one_line(str(error))}"
        raise PacelineError(f"{message}; log in with `wandb login`, or set WANDB_MODE=offline") from None
    return f"group {run.id} of project {project}, {where}"


def _log_case(run: WandbRun, case: TrackedCase, about: Mapping[str, str]) -> None:
    of_metrics = {"unit": case.units, "better": case.better, "not_finite": case.not_finite}
    ours = {"run": about, "case": about_case(case), **of_metrics}
    run.config.update({**case.record.case.parameters, "paceline": ours}, allow_val_change=True)
    run.log({**case.figures, "seconds": case.record.seconds})


def _attach(run: WandbRun, artifact: Any, files: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            path = Path(folder, file)
            path.write_text(content, encoding="utf-8")
            artifact.add_file(str(path), name=file)  # it keeps a copy until it is uploaded
    run.log_artifact(artifact)


TRACKER = Tracker(
    "wandb", "send it to this project of Weights & Biases: a group with a run for each case", "PROJECT", send
)

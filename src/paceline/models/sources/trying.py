"""Tries a model of the user's own before anything is measured, in a process of its own: it may do whatever it likes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from paceline.core.errors import InputError, MissingDependency
from paceline.models.base import ModelSpec, Traits
from paceline.models.sources.refusal import refusal

_LAST_LINES = 3  # of what a process said that ended by itself


@lru_cache(maxsize=256)
def try_in_child(name: str, inputs: str | None, key: str) -> Traits:
    """What a model leaves no choice of; InputError says what is wrong with it."""
    if importlib.util.find_spec("torch") is None:  # whoever starts a run on other hosts need not have it
        return Traits()
    reading, writing = os.pipe()
    command = [sys.executable, "-P", "-m", __name__, json.dumps([name, inputs, key]), str(writing)]
    with os.fdopen(reading) as answers:
        # What the user's code prints is for nobody: the output of a command may be read by a program.
        try:
            done = subprocess.run(command, pass_fds=[writing], stdin=subprocess.DEVNULL, capture_output=True)
        finally:
            os.close(writing)
        answer = answers.read()
    if not answer:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        how = f"ended its process with exit code {done.returncode}"
        raise refusal("failing-model", name, f" {how}: {' | '.join(words) or 'it said nothing'}").within("", key=key)
    said: dict[str, Any] = json.loads(answer)
    if "error" in said:
        fields = said["error"]
        raise InputError(fields["code"], fields["message"], key=fields["key"], value=fields["value"])
    return Traits(**said["traits"])


def try_model(spec: ModelSpec) -> None:
    """One step forward on the meta device, where nothing is computed, or else on the CPU."""
    import torch

    def step(device: str) -> None:
        with torch.device(device):
            workload = spec.build("tiny")
        rows = spec.traits.batch_size or 1
        batch = workload.make_batch(rows, torch.Generator()).to(torch.device(device))
        with torch.no_grad():
            workload.module.eval()(*batch.inputs)

    try:
        step("meta")
        return
    except Exception:  # code that needs numbers; what is wrong in any case is wrong once more
        pass
    try:
        step("cpu")
    except (InputError, MissingDependency):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or ["without a message"]
        why = f" fails with its inputs: {type(error).__name__}: {lines[0]}; give others with --input SIZES"
        raise refusal("failing-model", spec.name, why) from error


def _answer(name: str, inputs: str | None, key: str) -> dict[str, Any]:
    from paceline.models.sources import find_model

    try:
        spec = find_model(name, allow_import=True, key=key, inputs=inputs)
        try_model(spec)
    except InputError as error:
        fields = {"code": error.code, "message": error.message, "key": error.key or key, "value": error.value}
        return {"error": fields}
    except MissingDependency as error:
        message = f"model '{name}' cannot be loaded: {error}"
        return {"error": {"code": "missing-dependency", "message": message, "key": key, "value": name}}
    return {"traits": asdict(spec.traits)}


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[2]), "w") as answers:
        json.dump(_answer(*json.loads(sys.argv[1])), answers)

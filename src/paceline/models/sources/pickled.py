"""Live objects of a user's Python, which cloudpickle wrote into a file that nobody else may write."""

from __future__ import annotations

import os
import pickle
import stat

from paceline.models.base import ModelSpec
from paceline.models.sources.factory import spec_of
from paceline.models.sources.importing import mended
from paceline.models.sources.refusal import WITH_INPUTS, existing_file, refusal


def load_object(text: str, inputs: str | None = None) -> ModelSpec:
    """The model in such a file; one that others may have written is refused, as reading it runs what they wrote."""
    path = existing_file(text, WITH_INPUTS)
    for one in (path, path.parent):
        status = one.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = f": {one} may be written by others, and reading the file would run what they wrote"
            raise refusal("not-private", text, why, WITH_INPUTS)
    content = path.read_bytes()
    return spec_of(text, lambda scale: mended(lambda: pickle.loads(content)), inputs, "an object of the user's Python")

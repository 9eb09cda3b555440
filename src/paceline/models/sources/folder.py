"""A folder with a Hugging Face config, or the config file itself."""

from __future__ import annotations

import copy

from paceline.models.base import ModelSpec
from paceline.models.sources.factory import spec_of
from paceline.models.sources.hugging_face import read_config


def load_folder(text: str, inputs: str | None = None) -> ModelSpec:
    """The model that the config describes, with random weights."""
    config = read_config(text)
    return spec_of(text, lambda scale: copy.deepcopy(config), inputs, f"{config.model_type}, from a config")

"""Prompts for language models, in the manner of OpenAI's interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import InputError
from paceline.load.distribution import Distribution
from paceline.load.parameters import RequestParameters
from paceline.load.request import Prepared, Wire

PROMPT = Distribution.constant(32)
OUTPUT = Distribution.constant(16)
# Common short words, which most tokenizers take as one token each; lengths are therefore near, not exact.
_COMMON = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
)
WORDS = np.array(_COMMON.split(" "))


def language_requests(wanted: RequestParameters, wire: Wire, *, model: str, seed: int) -> tuple[list[Prepared], str]:
    """Different prompts, and where they are from."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    lengths = (wanted.output_tokens or OUTPUT).draw(wanted.distinct, random)
    if wanted.dataset is not None:
        texts = read_prompts(wanted.dataset)
        prompts = [texts[number % len(texts)] for number in range(wanted.distinct)]
        source = f"the user's file {wanted.dataset.name}"
    else:
        prompts = _prompts(wanted, random)
        source = "random common words, about one token each; lengths are near, not exact"
    bodies = [
        _body(prompt, int(length), wire, model, wanted.stream) for prompt, length in zip(prompts, lengths, strict=True)
    ]
    return [Prepared(json.dumps(body).encode(), {"content-type": "application/json"}) for body in bodies], source


def read_prompts(path: Path) -> list[str]:
    """One prompt on each line: a JSON string, or an object with `prompt`."""
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"dataset {path} cannot be read: {error}"
        raise InputError("unreadable-file", message, key="requests.dataset", value=str(path)) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        text = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(text, str) or not text:
            message = 'write a JSON string or {"prompt": "..."}'
            where = f"dataset {path}, line {number}"
            raise InputError("not-a-prompt", message, where=where, key="requests.dataset", value=line)
        found.append(text)
    if not found:
        raise InputError("no-prompts", f"dataset {path} has no prompts", key="requests.dataset", value=str(path))
    return found


def _prompts(wanted: RequestParameters, random: np.random.Generator) -> list[str]:
    lengths = (wanted.prompt_tokens or PROMPT).draw(wanted.distinct, random)
    shared = random.choice(WORDS, size=int(lengths.max()))
    prompts = []
    for length in lengths:
        same = round(wanted.shared_prefix * int(length))
        # What is not shared begins differently in each prompt, or a cache of prefixes would answer it.
        prompts.append(" ".join([*shared[:same], *random.choice(WORDS, size=int(length) - same)]))
    return prompts


def _body(prompt: str, length: int, wire: Wire, model: str, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "max_tokens": length, "stream": stream, "temperature": 0.0}
    if wire == "openai-completions":
        return body | {"prompt": prompt}
    return body | {"messages": [{"role": "user", "content": prompt}]}

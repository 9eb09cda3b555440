"""Finds and reads suites: those that ship, those of other providers, and a user's own file."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

from paceline.core.errors import unknown
from paceline.core.files import read_text
from paceline.core.registry import providers
from paceline.core.suite import Suite
from paceline.core.yaml_text import read_yaml
from paceline.runner.superbench_config import is_config, read_config


@lru_cache(maxsize=1)
def shipped() -> dict[str, Path]:
    """Suites by name, from the `suites` folder of every provider."""
    suites: dict[str, Path] = {}
    for provider in providers():
        try:
            spec = importlib.util.find_spec(provider)
        except (Exception, SystemExit):  # of the package around it; the registries say why
            continue
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder, "suites").glob("*.yaml")):
                suites.setdefault(path.stem, path)
    return suites


def load_suite(name: str) -> Suite:
    """A suite by its name or by the path of its file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or "/" in name:
        text = read_text(path, "the suite file", hint="'paceline list suites' names those that ship")
        document = read_yaml(text, name)
        return read_config(document, name) if is_config(document) else Suite.read(document, name)
    if name not in shipped():
        raise unknown("suite", name, shipped())
    return Suite.read(read_yaml(shipped()[name].read_text(encoding="utf-8"), f"suite {name}"), f"suite {name}")

"""Finds and reads suites: those that ship, those of other providers, and a user's own file."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from paceline.core.errors import InputError, located, unknown
from paceline.core.registry import providers
from paceline.core.suite import Suite


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a duplicate key is an error, not silently overwritten."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":  # '<<: *anchor': what it brings may be overridden
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, str | int | float | bool):
            continue
        if key in keys:
            line = f"line {key_node.start_mark.line + 1}"
            message = f"duplicate key '{key}'; leave one of them out"
            raise InputError("duplicate-key", message, where=line, key=str(key))
        keys.add(key)
    return dict(yaml.SafeLoader.construct_mapping(loader, node, deep=True))


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(text: str, where: str) -> Any:
    """Parse YAML; a mistake is refused with its line."""
    with located(where):
        try:
            return yaml.load(text, Loader=_StrictLoader)
        except yaml.MarkedYAMLError as error:
            line = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
            hint = "; YAML is indented with spaces, not with tabs" if "'\\t'" in (error.problem or "") else ""
            raise InputError("not-yaml", f"not valid YAML: {error.problem}{hint}", where=line) from None
        except RecursionError:
            message = "not valid YAML: brackets within brackets, deeper than can be read"
            raise InputError("too-deep", message) from None
        except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is a plain ValueError
            raise InputError("not-yaml", f"not valid YAML: {' '.join(str(error).split())}") from None


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
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            message = f"there is no suite file '{name}'; 'paceline list suites' names those that ship"
            raise InputError("missing-file", message, value=name) from None
        except (OSError, UnicodeDecodeError) as error:
            message = f"the suite file '{name}' cannot be read: {error}"
            raise InputError("unreadable-file", message, value=name) from None
        return Suite.read(read_yaml(text, name), name)
    if name not in shipped():
        raise unknown("suite", name, shipped())
    return Suite.read(read_yaml(shipped()[name].read_text(encoding="utf-8"), f"suite {name}"), f"suite {name}")

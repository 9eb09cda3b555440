"""Flags generated from the parameters of benchmarks, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

import click
from pydantic.fields import FieldInfo

from paceline.cli._names import models
from paceline.core.errors import InputError
from paceline.core.network import rule_of
from paceline.core.parameters import REQUIRED, UNSET, placeholder, show_bounds, show_default
from paceline.core.quantity import parse_duration
from paceline.core.suite import CaseKeys, parts_of, shorthand_of

PREFIX = "parameter__"
DOT = "__part__"  # click takes only identifiers
WHOLE = "__whole"  # ends the key of a flag in whose value a comma means nothing
# Between values; the one in generated/fc:layers=2,width=64 is within a value, as the next word is a setting, too, and
# so are those in p99=50ms,p99.9=80ms and uniform(1, 8).
_COMMA = re.compile(r",(?!\s*[\w.]+=)(?![^()]*\))")


def flags_of(
    fields: Mapping[str, FieldInfo], *, required: bool = True, words: Sequence[str] = ()
) -> list[click.Option]:
    """One option per field; given twice or with commas it expands to a matrix.

    What a benchmark requires is marked so, unless the cases of a suite have it already. Which parts a parameter has may
    depend on others that are among the words: `--server.kind url` takes `--server.model`.
    """
    given = _given_parts(words)
    flags = []
    for name, field in fields.items():
        flags.append(_flag(name, field, required=required))
        values = given.get(name, {})
        if shorthand := shorthand_of(field.annotation):  # `--server url` and `--server.kind url` are the same
            values = {shorthand: values.get("")} | values if "" in values else values
        parts = parts_of(field.annotation, values) or {}  # `--load` and `--load.rate`
        flags += [_flag(f"{name}.{part}", one, required=False) for part, one in parts.items()]
    return flags


def _given_parts(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Values of parts by parameter, from flags and settings: {"server": {"kind": "url"}}; a whole one is part ""."""
    given: dict[str, dict[str, Any]] = {}
    for word, following in pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        text = f"{flag.removeprefix('--')}={value if equals else following}"
        key, _, value = text.removeprefix("set=").partition("=")
        name, _, part = key.replace("-", "_").partition(".")
        if word.startswith("--") and value:
            with suppress(InputError):  # said when the value itself is read
                given.setdefault(name, {})[part] = read_value([value])
    return given


def case_flags() -> list[click.Option]:
    """Flags for the keys that every case has."""
    return flags_of(
        {
            name: f
            for name, f in CaseKeys.model_fields.items()
            if name not in ("benchmark", "only_on", "env", "superbench")
        }
    )


def read_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, as overrides of a suite."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        if not name.startswith(PREFIX) or value in (None, ()):
            continue
        key = name.removeprefix(PREFIX).replace(DOT, ".")
        if key.endswith(WHOLE):
            given[key.removesuffix(WHOLE)] = value[0] if len(value) == 1 else list(value)
        else:
            given[key] = value if isinstance(value, bool) else read_value(value)
    return given


def read_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`--set key=value`, as overrides of a suite."""
    given: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            message = "write it as key=value or benchmark.key=value"
            raise InputError("not-a-setting", message, where=f"--set {text}", key="--set", value=text)
        given[key.strip().replace("-", "_")] = read_value([value])
    return given


def read_value(texts: Iterable[str]) -> Any:
    """One value, or a list where there are several."""
    values: list[Any] = []
    for text in texts:
        if text.lstrip().startswith(("[", "{")):
            from paceline.core.yaml_text import read_yaml

            value = read_yaml(text, f"the value {text}")
            values.extend(value if isinstance(value, list) else [value])
        else:
            values.extend(part.strip() for part in _COMMA.split(text))
    return values[0] if len(values) == 1 else values


def _flag(name: str, field: FieldInfo, *, required: bool) -> click.Option:
    option, key = name.replace("_", "-"), PREFIX + name.replace(".", DOT)
    text = (field.description or "").replace("\n", " ")
    default = show_default(field)
    if field.annotation is bool:
        is_on = default == "true"
        text += f"  [default: {option if is_on else f'no-{option}'}]"
        return click.Option([f"--{option}/--no-{option}", key], default=None, help=text)
    notes = [show_bounds(field)]
    if default == REQUIRED:
        notes.insert(0, REQUIRED if required else "")
    elif default != UNSET:
        notes.insert(0, f"default: {default}")
    if notes := [note for note in notes if note]:
        text += f"  [{'; '.join(notes)}]"
    if (rule := rule_of(field)) is not None and rule.is_one_value:
        key += WHOLE
    return click.Option(
        [f"--{option}", key],
        multiple=True,
        type=str,
        metavar=placeholder(field),
        help=text,
        shell_complete=models if name == "model" else None,
    )


def duration_of(flag: str, text: str) -> timedelta:
    """The duration behind a flag; a refusal names both."""
    try:
        return timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError) as error:
        raise InputError("not-a-duration", str(error), where=f"{flag} {text}", key=flag, value=text) from None

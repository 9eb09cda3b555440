"""Flags generated from the parameters of benchmarks, how their values are read, and commands that have such flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click
from pydantic.fields import FieldInfo

from paceline.api.cases import find_suite
from paceline.cli._options import complete_models
from paceline.core.errors import InputError, unknown
from paceline.core.network import rule_of
from paceline.core.parameters import REQUIRED, UNSET, placeholder, show_bounds, show_default
from paceline.core.suite import CaseKeys, parts_of, shorthand_of

if TYPE_CHECKING:
    from paceline.core.suite import Suite


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
            if name not in ("benchmark", "only_on", "env", "superbench", "most_devices")
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
        shell_complete=complete_models if name == "model" else None,
    )


SUITE = "paceline.suite"
FLAGS = "paceline.flags"


class CaseCommand(click.Command):
    """A command whose flags depend on its argument `what`."""

    def suite(self, what: str | None, args: Sequence[str]) -> Suite | None:
        """The suite that is meant; None where there is none here."""
        return find_suite(what) if what is not None else None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(FLAGS, [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            suite = self._suite_of(ctx, args)
            ctx.meta[FLAGS] = []
            if suite is not None:
                ctx.meta[SUITE] = suite
                names = dict.fromkeys(str(entry.get("benchmark")) for entry in suite.cases)
                ctx.meta[FLAGS] = flags_of(_fields_of(names), required=not suite.is_written, words=args)
            return super().parse_args(ctx, self._switched(ctx, args))
        except click.NoSuchOption as error:
            flags = [flag for option in self.get_params(ctx) for flag in option.opts if flag.startswith("-")]
            raise unknown("flag", error.option_name, flags, key=error.option_name) from None
        except click.UsageError as error:  # one line, as for every other mistake
            raise InputError("usage", error.format_message()) from None

    def _switched(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        """The arguments with `--switch true` and `--switch=false`, as files have it, in click's own words."""
        options = (one for one in self.get_params(ctx) if isinstance(one, click.Option) and one.secondary_opts)
        switches = {one.opts[0]: {"true": one.opts[0], "false": one.secondary_opts[0]} for one in options}
        words: list[str] = []
        for word in args:
            name, _, value = word.partition("=")
            if words and word in switches.get(words[-1], ()):
                words[-1] = switches[words[-1]][word]
            else:
                words.append(switches.get(name, {}).get(value, word))
        return words

    def _suite_of(self, ctx: click.Context, args: Sequence[str]) -> Suite | None:
        try:
            return self.suite(self.named(ctx, args), args)
        except InputError:
            if ctx.resilient_parsing:  # a shell asks how a word that is not complete goes on
                return None
            raise

    def named(self, ctx: click.Context, args: Sequence[str]) -> str | None:
        """The first argument that is neither a flag nor the value of one."""
        if args and not args[0].startswith("-"):
            return args[0]
        fixed = {name for option in self.params if isinstance(option, click.Option) for name in option.opts}
        # To import every benchmark takes most of the time in which a run starts.
        may_have_others = any(arg.startswith("-") and arg.partition("=")[0] not in fixed for arg in args)
        ctx.meta[FLAGS] = flags_of(_every_field()) if may_have_others else []
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        values, others, _ = parser.parse_args(self._switched(ctx, args))
        words = (word for word in (values["what"], *others) if isinstance(word, str))  # unknown flags among them
        return next((word for word in words if not word.startswith("-")), None)


def _fields_of(benchmarks: Iterable[str]) -> dict[str, Any]:
    """The parameters of these benchmarks, once each."""
    from paceline.core.benchmark import BENCHMARKS

    fields: dict[str, Any] = {}
    for name in benchmarks:
        with suppress(InputError):  # reported when the suite is expanded
            for key, field in BENCHMARKS.get(name).Parameters.model_fields.items():
                fields.setdefault(key, field)
    return fields


def _every_field() -> dict[str, Any]:
    from paceline.core.benchmark import BENCHMARKS

    return _fields_of(BENCHMARKS.registry().entries)

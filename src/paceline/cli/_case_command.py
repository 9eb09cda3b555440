"""A command that takes a suite or a benchmark, and the parameters of its cases as flags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from paceline.api.cases import find_suite
from paceline.cli._flags import flags_of
from paceline.core.errors import InputError, unknown

if TYPE_CHECKING:
    from paceline.core.suite import Suite

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
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = [flag for option in self.get_params(ctx) for flag in option.opts if flag.startswith("-")]
            raise unknown("flag", error.option_name, flags, key=error.option_name) from None
        except click.UsageError as error:  # one line, as for every other mistake
            raise InputError("usage", error.format_message()) from None

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
        values, others, _ = parser.parse_args(list(args))
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

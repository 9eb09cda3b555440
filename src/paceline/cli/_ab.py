"""Measures two settings in alternation within one run, A B B A ..., so that what drifts meanwhile hits both alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from paceline.cli._flags import read_value
from paceline.core.case import Case
from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.core.run import RunRecords

ROUNDS = 6  # even, so that each side comes first equally often
FEWEST = 2  # one round cannot show how much chance moves
_FLAG = "--ab"
_COMMA = re.compile(r",(?=\s*[\w.-]+=)")  # between settings; one within a value stays

Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class PairedRuns:
    """What the two sides set, and how often each is measured."""

    sides: tuple[Overrides, Overrides]
    rounds: int

    def cases(self, expand: Callable[[Overrides], Sequence[Case]]) -> list[Case]:
        """Every case that the sides set differently, in alternation; `expand` makes the cases of one side."""
        from paceline.analysis.compare.verdicts import MARKS

        both = []
        for side in self.sides:
            try:
                both.append(expand(side))
            except InputError as error:
                if error.key in side:
                    error.where = f"{_FLAG} {error.key}"  # it would say --set, which was not given
                raise
        if len(both[0]) != len(both[1]):
            message = f"the sides make {len(both[0])} and {len(both[1])} cases, which are not pairs; give single values"
            raise InputError("unpaired-sides", message, where=_FLAG, key=_FLAG)
        pairs = [(one, other) for one, other in zip(*both, strict=True) if one.key != other.key]
        if not pairs:
            message = "both sides are the same; set something else on the second"
            raise InputError("same-sides", message, where=_FLAG, key=_FLAG)
        cases: list[Case] = []
        for pair in pairs:
            marked = []
            for case, mark in zip(pair, MARKS, strict=True):
                parameters = dict(case.parameters)
                if isinstance(parameters.get("budget"), int | float):  # its share of the time of one measurement
                    parameters["budget"] = parameters["budget"] / self.rounds
                update = {"title": f"{case.title}{mark}", "parameters": parameters}
                marked.append(case.model_copy(update=update))
            for number in range(1, self.rounds + 1):
                for case in marked if number % 2 else reversed(marked):
                    cases.append(case.model_copy(update={"index": len(cases), "repeat": number}))
        return cases


def read_pairs(texts: Sequence[str], rounds: int | None, overrides: Overrides) -> PairedRuns | None:
    """What --ab and --rounds ask for, if they do."""
    if not texts:
        if rounds is not None:
            raise InputError("rounds-without-ab", "--rounds goes with --ab A --ab B", key="--rounds", value=rounds)
        return None
    if len(texts) != 2:
        message = f"{_FLAG} is given {len(texts)} times; give it twice: what side A sets, and what side B sets"
        raise InputError("not-two-sides", message, key=_FLAG, value=len(texts))
    if "repeat" in overrides:
        message = "--repeat does not go with --ab, which measures in rounds: use --rounds"
        raise InputError("repeat-with-ab", message, key="--repeat", value=overrides["repeat"], suggestion="--rounds")
    rounds = ROUNDS if rounds is None else rounds
    if rounds < FEWEST:
        message = f"--rounds {rounds}: at least {FEWEST} are needed to tell a change from chance"
        raise InputError("too-few-rounds", message, key="--rounds", value=rounds)
    return PairedRuns((_read_side(texts[0]), _read_side(texts[1])), rounds)


def show_pairs(records: RunRecords, *, as_json: bool) -> None:
    """The comparison of a run in alternation."""
    from paceline.analysis.compare.verdicts import compare_paired
    from paceline.report.compare import document as compare
    from paceline.report.render import terminal

    try:
        comparison = compare_paired(records)
    except InputError as error:  # no round in which both sides succeeded
        click.echo(f"paceline: {error}", err=True)
        return
    if as_json:
        click.echo(compare.json_line(comparison))
    else:
        terminal.show(compare.document(comparison))


def _read_side(text: str) -> dict[str, Any]:
    side: dict[str, Any] = {}
    for setting in _COMMA.split(text):
        key, equals, value = setting.partition("=")
        if not equals or not key.strip() or not value.strip():
            message = "write a side as key=value, or several with commas between"
            raise InputError("not-a-setting", message, where=f"{_FLAG} {text}", key=_FLAG, value=text)
        side[key.strip().replace("-", "_")] = read_value([value])
    return side

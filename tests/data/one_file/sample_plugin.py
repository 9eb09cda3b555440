"""A plug-in in one file: a micro benchmark, an export, a report section, an engine, a page and a verb."""

from __future__ import annotations

from typing import Annotated

import click
from fastapi import APIRouter
from starlette.responses import PlainTextResponse

from paceline.analysis.summary import RunSummary
from paceline.core.benchmark import Benchmark, Context
from paceline.core.environment import Environment
from paceline.core.metric import Better, Metric
from paceline.core.network import FromNetwork
from paceline.core.parameters import Parameters
from paceline.core.record import Measurement, Record, Result
from paceline.core.run import RunRecords
from paceline.core.subject import SUPERBENCH, Alias, Description, ShownCeiling, Work
from paceline.report.document import Lines, Section
from paceline.report.export import Export
from paceline.report.run.sections import ReportSection
from paceline.service.engines import EngineKind, EngineOptions
from paceline.service.engines.base import Engine
from paceline.service.engines.local import LocalEngine
from paceline.web.pages import Page
from paceline.web.site import Site

RATE = Metric(name="dot_rate", unit="FLOP/s", better=Better.HIGHER)
STREAMED = Metric(name="dot_bandwidth", unit="B/s", better=Better.HIGHER)


class DotParameters(Parameters):
    """A vector."""

    length: int = 1000
    """How many numbers"""
    label: Annotated[str, FromNetwork.matching("[a-z]{1,8}")] = "plain"
    """What to call it"""


class Dot(Benchmark[DotParameters]):
    """Dot products that nobody computes: its figures are the length it was given."""

    name = "dot"
    summary = "dot product of two vectors"
    category = "vectors"
    Parameters = DotParameters
    metrics = (RATE, STREAMED)
    primary = "dot_rate"

    @classmethod
    def describe(cls, record: Record, parameters: DotParameters, environment: Environment) -> Description:
        said = super().describe(record, parameters, environment)
        rate = record.measurement(RATE.name)
        work = None
        if rate is not None:
            flops, moved = 2.0 * parameters.length, 8.0 * parameters.length
            work = Work(
                flops=flops, bytes=moved, rate=rate.value / 2, unit="FLOP/s", number_format="fp32", formula="two reads"
            )
        return said.model_copy(
            update={
                "work": work,
                "ceilings": (
                    ShownCeiling(kind="compute", name="fp32", metric=RATE.name),
                    ShownCeiling(kind="memory", name="main memory", metric=STREAMED.name),
                ),
                "aliases": {SUPERBENCH: Alias(group="dot-flops", values={"dot": rate.value / 1e9} if rate else {})},
            }
        )

    def measure(self, parameters: DotParameters, context: Context) -> Result:
        rates = [1e9 * parameters.length * part for part in (0.99, 1.0, 1.01)]
        measured = [Measurement.of_samples(RATE, rates), Measurement.of_value(STREAMED, 4e9 * parameters.length)]
        return Result(measurements=measured, facts={"device": "a pencil"})


def _count(records: RunRecords) -> str:
    return f"{len(records.records)} records\n"


def _sum(summary: RunSummary) -> Section | None:
    rows = [row for row in summary.rows if row.case.benchmark == Dot.name]
    return Section("Dots", (Lines((f"{len(rows)} dot products.",)),), key="dots") if rows else None


SECTION = ReportSection("dots", 90, _sum)

EXPORT = Export("tally", "how many records there are", _count, suffixes=(".tally",))


def _engine(options: EngineOptions) -> Engine:
    return LocalEngine(options.folder / "sample", ("sampled",))


ENGINE = EngineKind("sample", _engine)


def _routes(router: APIRouter, site: Site) -> None:
    @router.get("/sample")
    def sample() -> PlainTextResponse:
        return PlainTextResponse(f"{len(site.leader.followers())} followers")


PAGE = Page("/sample", _routes, title="Sample", order=90)


@click.command("greet")
@click.argument("name", default="you")
def greet(name: str) -> None:
    """Say hello."""
    click.echo(f"hello {name}")

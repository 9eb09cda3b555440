"""The exposition is read by a strict parser of the text format's grammar, written from its rules."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.report.export import openmetrics
from support.micro_records import micro_run
from support.records import RUN_ID, case, hostile_run, literal_run, record, run_of, sample_run
from support.serving_records import rates_run

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[n"\\])*)"')
NUMBER = re.compile(r"NaN|[+-]?Inf|[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
ESCAPED = re.compile(r'(?:[^"\\\n]|\\[n"\\])*')
SUFFIXES = {"gauge": ("",)}


@dataclass
class Parsed:
    kind: str = ""
    unit: str = ""
    help: str = ""
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Parsed]:
    """Families by name; AssertionError where the text is none of the format."""
    assert text.endswith("# EOF\n") and text.count("# EOF") == 1
    families: dict[str, Parsed] = {}
    current = ""
    for line in text.split("\n")[:-2]:
        assert line and line == line.strip(" "), repr(line)
        if line.startswith("# "):
            _, word, name, *rest = line.split(" ", 3)
            assert NAME.fullmatch(name)
            if word == "TYPE":
                assert name not in families, "a family is told once, without others between"
                current, families[name] = name, Parsed(kind=rest[0])
            assert name == current and not families[name].samples, "what describes a family stands before its samples"
            if word == "UNIT":
                families[name].unit = rest[0]
                assert name.endswith(f"_{rest[0]}")
            if word == "HELP":
                assert ESCAPED.fullmatch(rest[0])
                families[name].help = rest[0]
            assert word in ("TYPE", "UNIT", "HELP")
            continue
        name = NAME.match(line)
        assert name is not None
        rest_of = line[name.end() :]
        assert name.group() in [current + suffix for suffix in SUFFIXES[families[current].kind]]
        labels: list[tuple[str, str]] = []
        if rest_of.startswith("{"):
            place = 1
            while rest_of[place] != "}":
                found = LABEL.match(rest_of, place)
                assert found is not None, rest_of[place:]
                labels.append((found.group(1), found.group(2)))
                place = found.end() + (rest_of[found.end()] == ",")
            rest_of = rest_of[place + 1 :]
        assert rest_of.startswith(" ") and NUMBER.fullmatch(rest_of[1:]), rest_of
        assert len({key for key, _ in labels}) == len(labels)
        key = tuple(sorted(labels))
        assert key not in families[current].samples, "no two samples have the same labels"
        families[current].samples[key] = float(rest_of[1:].replace("Inf", "inf"))
    return families


@pytest.mark.parametrize(
    "run", [literal_run, sample_run, hostile_run, micro_run, rates_run], ids=lambda run: run.__name__
)
def test_every_run_is_well_formed(run: object) -> None:
    assert callable(run)
    records: RunRecords = run()
    families = parse(openmetrics.render(records))
    values = sum(len(record.measurements) for record in records.records)
    told = sum(len(family.samples) for name, family in families.items() if not re.search(r"_(low|high)(_|$)", name))
    assert told >= values + 2


def test_values_units_intervals_and_labels() -> None:
    families = parse(openmetrics.render(literal_run()))
    times = families["paceline_step_time_seconds"]
    assert (times.kind, times.unit) == ("gauge", "seconds")
    labels = {"run": RUN_ID, "benchmark": "train", "case": "train resnet50 fp16", "target": "cuda:0", "repeat": "1"}
    assert times.samples[tuple(sorted(labels.items()))] == pytest.approx(0.1)
    assert families["paceline_throughput_images_per_second"].unit == "images_per_second"
    assert set(families) >= {"paceline_step_time_low_seconds", "paceline_step_time_high_seconds"}
    (info,) = families["paceline_run_info"].samples
    assert dict(info)["host"] == "node-07" and dict(info)["commit"] == "3f9c1d2e"
    assert set(families["paceline_case_success"].samples.values()) == {1.0}


def test_percentages_become_ratios() -> None:
    families = parse(openmetrics.render(sample_run()))
    assert max(families["paceline_mfu_ratio"].samples.values()) == pytest.approx(0.331)


def test_failures_are_told() -> None:
    success = parse(openmetrics.render(sample_run()))["paceline_case_success"]
    assert sorted(dict(labels)["outcome"] for labels, value in success.samples.items() if not value) == [
        "failed",
        "out-of-memory",
    ]


@pytest.mark.filterwarnings("ignore:invalid value")  # infinity less infinity
def test_names_that_would_be_the_same_stay_apart_and_no_ending_is_taken_for_another() -> None:
    measured = [
        Measurement.of_value(Metric(name=name, unit="", better=Better.HIGHER), value)
        for name, value in (("a-b", 1.0), ("a b", 2.0), ("calls_total", 3.0), ("Ünï", math.nan), ("far", math.inf))
    ]
    families = parse(openmetrics.render(run_of([record(case(0, "train", 'say "x"\\\n'), measured)])))
    assert sorted(families["paceline_a_b"].samples.values()) == [1.0, 2.0]
    assert "paceline_calls_total_value" in families
    assert list(families["paceline_far"].samples.values()) == [math.inf]


@pytest.mark.filterwarnings("ignore:invalid value")  # infinity less infinity
def test_names_units_and_words_of_metrics() -> None:
    def measured(name: str, unit: str, value: float = 1.0, **more: Any) -> Measurement:
        return Measurement.of_value(Metric(name=name, unit=unit, **more), value)

    families = parse(
        openmetrics.render(
            run_of(
                [
                    record(
                        case(0, "train", "x"),
                        [
                            measured("calls_total", "s", better=Better.LOWER, description="All calls"),
                            measured("wait_seconds", "s"),
                            measured("depth", "", -math.inf, better=Better.HIGHER),
                            measured("use", "images/J", math.nan),
                            measured("count", ""),
                        ],
                    )
                ]
            )
        )
    )
    assert families["paceline_calls_total_seconds"].help == "All calls; lower is better"
    assert families["paceline_wait_seconds"].help == "wait seconds"
    assert families["paceline_depth"].help == "depth; higher is better"
    assert list(families["paceline_depth"].samples.values()) == [-math.inf]
    assert math.isnan(*families["paceline_use_images_per_j"].samples.values())
    assert "paceline_count_value" in families


def test_the_ends_of_an_interval_are_in_the_unit_of_the_value() -> None:
    share = Measurement.of_samples(Metric(name="share", unit="%", better=Better.LOWER), [49.0, 50.0, 51.0] * 20)
    families = parse(openmetrics.render(run_of([record(case(0, "train", "x"), [share])])))
    assert share.interval is not None
    ends = [list(families[f"paceline_share{end}_ratio"].samples.values()) for end in ("_low", "", "_high")]
    assert ends == [[pytest.approx(value / 100)] for value in (share.interval.low, share.value, share.interval.high)]
    assert families["paceline_share_low_ratio"].help == "lower end of the interval: share; lower is better"


def test_cases_are_in_the_order_of_the_run() -> None:
    run = literal_run()
    run.records.reverse()
    assert openmetrics.render(run) == openmetrics.render(literal_run())


def test_the_parser_is_strict() -> None:
    good = openmetrics.render(literal_run())
    for bad in (
        good.replace("# EOF\n", ""),
        good.replace('case="train', 'case="tr"ain', 1),
        good.replace("# UNIT paceline_step_time_seconds seconds", "# UNIT paceline_step_time_seconds meters"),
        good + "x 1\n",
        good.replace("# EOF", "paceline_step_time_seconds 1\n# EOF"),
    ):
        with pytest.raises((AssertionError, KeyError)):
            parse(bad)

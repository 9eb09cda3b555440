"""The schemas of suites and records: what is valid passes, what is not is refused at its place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from paceline.cli.show import command as show
from paceline.core.benchmark import BENCHMARKS
from paceline.core.errors import InputError
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.core.suite import Here, Suite, expand
from paceline.report.export import jsonl
from paceline.runner.suite_file import shipped
from support import docs_markdown as markdown
from support.micro_records import micro_run
from support.records import LOSS, case, hostile_run, record, run_of, sample_run
from support.serving_records import rates_run


def printed(name: str) -> Any:
    done = CliRunner().invoke(show, [name])
    assert done.exit_code == 0, done.exception
    schema = json.loads(done.output)
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


@pytest.fixture(scope="module")
def suites() -> Any:
    return printed("suite-schema")


@pytest.fixture(scope="module")
def records() -> Any:
    return printed("record-schema")


def problems(schema: Any, document: object) -> list[str]:
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in schema.iter_errors(document)]


@pytest.mark.parametrize("name", shipped())
def test_every_suite_that_ships_is_valid(suites: Any, name: str) -> None:
    assert problems(suites, yaml.safe_load(shipped()[name].read_text(encoding="utf-8"))) == []


def test_every_suite_of_the_texts_is_valid(suites: Any) -> None:
    blocks = [(page.name, block.text) for page in markdown.pages() for block in markdown.blocks(page, "yaml")]
    assert blocks
    for page, text in blocks:
        assert problems(suites, yaml.safe_load(text)) == [], page


SLOW = {"arrival": "poisson", "rate": 5}
VALID = [
    {"benchmark": "gemm", "precision": ["fp32", "bf16"], "size": [512, 1024], "budget": "2s", "repeat": 3},
    {"benchmark": "gemm", "size": None, "interval": "1%", "warm_up": 0.5, "timeout": "10 min", "memory_limit": "8GiB"},
    {"benchmark": "train", "model": "resnet50", "compile": True, "target": "cuda:*", "only_on": "gpus"},
    {"benchmark": "train", "model": ["resnet50", "gpt2-small"], "compile": ["on", "off"]},
    {"benchmark": "collective", "backend": "mpi", "hostfile": "hosts.txt"},
    {"benchmark": "collective", "backend": "mpi", "hosts": "hosts.txt"},
    {"benchmark": "serve", "model": "resnet18", "load": SLOW, "server": {"max_batch": [1, 8], "max_delay": "2ms"}},
    {
        "benchmark": "serve",
        "model": "resnet18",
        "target": "cpu",
        "load": SLOW,
        "server": {"kind": ["embedded", "mlserver"]},
    },
    {
        "benchmark": "serve",
        "model": "resnet18",
        "load": {"rate": ["2k/s", 4], "duration": "5s"},
        "slo": {"p99": "50ms"},
    },
]


@pytest.mark.parametrize("entry", VALID, ids=str)
def test_an_entry_that_paceline_takes_is_valid(
    suites: Any, entry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("localhost\n")
    suite = {"name": "x", "cases": [entry]}
    expand(Suite.read(suite, "x"), BENCHMARKS.registry().get, Here(devices={"cuda": 2}))
    assert problems(suites, suite) == []


WRONG = [
    ({"benchmark": "gem"}, "cases.0.benchmark"),
    ({"size": 512}, "cases.0: 'benchmark' is a required property"),
    ({"benchmark": "gemm", "sise": 512}, "'sise' was unexpected"),
    ({"benchmark": "gemm", "size": "large"}, "cases.0.size"),
    ({"benchmark": "gemm", "size": 0}, "cases.0.size"),
    ({"benchmark": "gemm", "size": []}, "cases.0.size"),
    ({"benchmark": "gemm", "precision": "fp12"}, "cases.0.precision"),
    ({"benchmark": "gemm", "precision": ["fp32", "fp12"]}, "cases.0.precision"),
    ({"benchmark": "gemm", "budget": "2 parsecs"}, "cases.0.budget"),
    ({"benchmark": "gemm", "repeat": 0}, "cases.0.repeat"),
    ({"benchmark": "train"}, "cases.0: 'model' is a required property"),
    ({"benchmark": "serve", "model": "resnet18", "server": {"kind": "embeded"}}, "cases.0.server"),
    ({"benchmark": "serve", "model": "resnet18", "server": {"max_bach": 8}}, "cases.0.server"),
    ({"benchmark": "serve", "model": "resnet18", "server": {"kind": "mlserver", "max_bach": 8}}, "cases.0.server"),
    ({"benchmark": "serve", "model": "resnet18", "load": {"rates": 8}}, "cases.0.load"),
    ({"benchmark": "serve", "model": "resnet18", "slo": {"p99": 50}}, "cases.0.slo"),
]


@pytest.mark.parametrize(("entry", "where"), WRONG, ids=str)
def test_an_entry_that_paceline_refuses_is_not_valid(suites: Any, entry: dict[str, Any], where: str) -> None:
    suite = {"name": "x", "cases": [{"benchmark": "gemm", "size": 64}, entry]}
    with pytest.raises(InputError):
        expand(Suite.read(suite, "x"), BENCHMARKS.registry().get, Here(devices={"cuda": 2}))
    found = problems(suites, suite)
    assert found
    assert all(where.replace("cases.0", "cases.1") in one for one in found), found


@pytest.mark.parametrize(
    "suite", [{"cases": [{"benchmark": "gemm"}]}, {"name": "x"}, {"name": "x", "cases": []}, [], None]
)
def test_what_is_not_a_suite_is_not_valid(suites: Any, suite: object) -> None:
    assert problems(suites, suite)


def test_every_parameter_is_described_with_its_default(suites: Any) -> None:
    schema = suites.schema
    for name, benchmark in BENCHMARKS.registry().entries.items():
        properties = schema["$defs"][name]["properties"]
        for key, field in benchmark.Parameters.model_fields.items():
            assert properties[key].get("description", "") == (field.description or ""), f"{name} {key}"
    assert schema["$defs"]["gemm"]["properties"]["precision"]["default"] == "fp32"


def lines(run: RunRecords) -> Iterator[dict[str, Any]]:
    for line in jsonl.render(run).splitlines():
        yield json.loads(line)


@pytest.mark.parametrize("run", [sample_run, micro_run, rates_run, hostile_run], ids=lambda run: run.__name__)
def test_every_record_is_valid(records: Any, run: Any) -> None:
    for line in lines(run()):
        assert problems(records, line) == []


def test_a_record_with_a_number_that_json_does_not_have_is_valid(records: Any) -> None:
    run = run_of([record(case(0, "train", "a"), [Measurement.of_value(LOSS, math.nan)])])
    for line in lines(run):
        assert line["measurements"][0]["samples"] == [None]
        assert problems(records, line) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("outcome",), "fine"),
        (("seconds",), "long"),
        (("case", "benchmark"), 3),
        (("measurements", 0, "metric", "unit"), None),
        (("measurements", 0, "samples"), 0.1),
        (("run", "status"), "done"),
        (("surprise",), 1),
    ],
)
def test_a_wrong_record_is_not_valid(records: Any, path: tuple[str | int, ...], value: object) -> None:
    line = next(lines(sample_run()))
    inner: Any = line
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    assert problems(records, line)


def test_a_missing_field_is_named(records: Any) -> None:
    line = next(lines(sample_run()))
    del line["case"]
    assert problems(records, line) == [": 'case' is a required property"]


def test_a_schema_in_a_file_serves_an_editor(tmp_path: Path) -> None:
    """It refers to nothing outside itself, which an editor might not get."""
    for name in ("suite-schema", "record-schema"):
        schema = printed(name).schema
        references = set(_references(schema))
        assert references
        assert all(reference.startswith("#/$defs/") for reference in references)
        assert all(reference.removeprefix("#/$defs/") in schema["$defs"] for reference in references)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)

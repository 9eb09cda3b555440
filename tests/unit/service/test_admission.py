"""What a job from the network may not ask for: one test for each refusal, and one for parameters yet to come."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from paceline.benchmarks import registry
from paceline.benchmarks.serving.servers import registry as servers
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.parameters import Parameters
from paceline.core.suite import Here, Suite, expand
from paceline.runner.suite_file import shipped
from paceline.service import admission
from paceline.service.api import submissions
from paceline.service.jobs import MachineNeeds

SERVE = {"model": "resnet18", "scale": "tiny", "load": {"arrival": "poisson", "rate": 5}}


def _refusals(benchmark: str, **parameters: Any) -> list[admission.Refusal]:
    """Those of a case as it reaches a follower, whatever its benchmark says of it."""
    read = registry().get(benchmark).Parameters.model_validate(parameters)
    case = Case(index=0, benchmark=benchmark, parameters=read.model_dump(mode="json"), title="", origin="network")
    return admission.refusals([case], registry().get)


@pytest.mark.parametrize(
    ("benchmark", "parameters", "named", "words"),
    [
        ("train", {"model": "os:system"}, "model", "import code"),
        ("inference", {"model": "my.package:factory"}, "model", "import code"),
        ("train", {"model": "/etc/passwd"}, "model", "letters"),
        ("train", {"model": "$(reboot)"}, "model", "letters"),
        ("blas-functions", {"models": ["resnet50", "os:system"]}, "models", "import code"),
        ("blas-functions", {"file": "/etc/passwd"}, "file", "file"),
        ("dnn-functions", {"file": "shapes.yaml"}, "file", "file"),
        ("disk", {"folder": "/home"}, "folder", "folder"),
        ("disk", {"raw_device": "/dev/sda"}, "raw_device", "device"),
        ("tcp", {"hosts": ["10.0.0.1:22"]}, "hosts", "whom a machine talks to"),
        ("tcp", {"peer": "10.0.0.1"}, "peer", "whom a machine talks to"),
        ("rdma", {"peer": "10.0.0.1"}, "peer", "whom a machine talks to"),
        ("collective", {"backend": "mpi", "hosts": "/etc/hosts"}, "hosts", "leader chooses"),
        ("megatron-gpt", {"code_base": "/opt/code"}, "code_base", "code to run"),
        ("megatron-gpt", {"code_base": "x", "python": "/bin/sh"}, "python", "program"),
        ("megatron-gpt", {"code_base": "x", "extra": ["--exec"]}, "extra", "arguments"),
        ("megatron-gpt", {"code_base": "x", "data_path": "/data"}, "data_path", "files"),
        ("serve", SERVE | {"model": "os:system"}, "model", "import code"),
        ("serve", SERVE | {"requests": {"dataset": "/etc"}}, "requests.dataset", "file"),
        ("serve", SERVE | {"load": {"arrival": "trace", "file": "/etc/passwd"}}, "load.file", "file"),
        ("serve", SERVE | {"server": {"kind": "url", "url": "http://10.0.0.1", "model": "m"}}, "server.url", "ALLOWED"),
        ("serve", SERVE | {"server": {"kind": "embedded", "host": "0.0.0.0"}}, "server.host", "listen"),
        ("serve", SERVE | {"server": {"kind": "vllm", "python": "/bin/sh"}}, "server.python", "program"),
        ("serve", SERVE | {"instance": "p5/../x"}, "instance", "letters"),
    ],
)  # fmt: skip
def test_it_is_refused(benchmark: str, parameters: dict[str, Any], named: str, words: str) -> None:
    found = {refusal.parameter: refusal.reason for refusal in _refusals(benchmark, **parameters)}
    assert words in found[named]


@pytest.mark.parametrize("secret", [{"token_env": "AWS_SECRET"}, {"token_file": "/etc/token"}])
def test_secrets_of_the_machine_are_refused(monkeypatch: pytest.MonkeyPatch, secret: dict[str, str]) -> None:
    monkeypatch.setenv("PACELINE_ALLOWED_URLS", "http://10.0.0.1:80")
    server = {"kind": "url", "url": "http://10.0.0.1:80/v2", "model": "org/name"}
    assert _refusals("serve", **SERVE, server=server) == []
    found = _refusals("serve", **SERVE, server=server | secret)
    assert [refusal.parameter for refusal in found] == [f"server.{next(iter(secret))}"]


@pytest.mark.parametrize(
    ("benchmark", "parameters"),
    [
        ("train", {"model": "gpt2-small", "scale": "tiny"}),
        ("train", {"model": "generated/transformer:layers=2,width=64"}),
        ("blas-functions", {"models": ["resnet50", "bert-large"]}),
        ("parallel", {"case": "gpt2/nl24_fp16_2x2x2_ac_mb32_gb256_1n8g"}),
        ("serve", SERVE | {"requests": {"samples": "uniform(1, 8)"}, "server": {"kind": "embedded", "max_batch": 8}}),
        ("rdma", {"device": "mlx5_0"}),
        ("disk", {"pattern": "random-read"}),
    ],
)
def test_the_rest_is_taken(benchmark: str, parameters: dict[str, Any]) -> None:
    assert _refusals(benchmark, **parameters) == []


@pytest.mark.parametrize("name", sorted(shipped()))
@pytest.mark.parametrize("gpus", [0, 8])
def test_what_ships_is_taken(name: str, gpus: int) -> None:
    try:
        cases = submissions.cases_of(submissions.document_of(name), {}, MachineNeeds(gpus=gpus))
    except InputError as error:
        pytest.fail(f"{name}: {error}")
    assert all(case.origin == "network" for case in cases)


def _fields(model: type[BaseModel], path: str) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        inner = [part for part in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_model(part)]
        for part in inner:
            yield from _fields(part, f"{path}.{name}")
        if not inner:
            yield f"{path}.{name}", field.annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def test_every_text_of_every_benchmark_is_judged() -> None:
    """A new parameter that takes a text or a path comes up here: it is refused until it has a line in a table."""
    known = [field for name, one in registry().entries.items() for field in _fields(one.Parameters, name)]
    known += [field for one in servers().entries.values() for field in _fields(one.Settings, "serve.server")]
    texts = {path for path, annotation in known if not admission.is_closed(annotation)}
    judged = {*admission.ADMITTED, *admission.REASONS}
    paths = {path for path, annotation in known if "Path" in str(annotation)}
    assert texts - judged - paths == set()
    assert judged - texts == set(), "a line for a parameter that is no longer there"


class Colour(Enum):
    RED = "red"


class Inner(BaseModel):
    path: Path | None = None


class Tomorrow(Parameters):
    """What somebody may add."""

    count: int = 1
    word: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    sizes: tuple[int, ...] = ()
    text: str = "usual"
    anything: Any = None
    mapping: dict[str, int] = {}
    where: Path | None = None
    inner: Inner = Inner()
    marked: str = Field(default="", json_schema_extra={"network": "[a-z]{1,5}"})


class New:
    """As much of a benchmark as matters."""

    Parameters = Tomorrow


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"count": 2, "word": "b", "colour": "red", "sizes": [1, 2]}, []),
        ({"text": "usual"}, []),
        ({"text": "else"}, ["text"]),
        ({"anything": 1}, ["anything"]),
        ({"mapping": {"a": 1}}, ["mapping"]),
        ({"where": "/tmp"}, ["where"]),
        ({"inner": {"path": "/tmp"}}, ["inner.path"]),
        ({"marked": "abc"}, []),
        ({"marked": "abc/def"}, ["marked"]),
        ({"text": "a", "where": "b"}, ["text", "where"]),
    ],
)
def test_a_new_parameter_is_refused_unless_its_type_or_its_mark_says_otherwise(
    given: dict[str, Any], refused: list[str]
) -> None:
    case = Case(index=0, benchmark="new", parameters=given, title="")
    found = admission.refusals([case], lambda _: New)  # type: ignore[arg-type, return-value]
    assert [refusal.parameter for refusal in found] == refused


def test_ranks_and_times_have_bounds() -> None:
    suite = Suite.read({"name": "x", "cases": [{"benchmark": "gemm", "timeout": "30h"}]}, "x", origin="network")
    cases = expand(suite, registry().get, Here())
    assert [one.parameter for one in admission.refusals(cases, registry().get)] == ["timeout"]
    many = [cases[0].model_copy(update={"ranks": 10_000, "timeout": 1.0})]
    assert [one.parameter for one in admission.refusals(many, registry().get)] == ["ranks"]
    with pytest.raises(InputError, match=r"not taken from the network: case 1 \(gemm\): 'timeout'"):
        admission.refuse(cases, registry().get)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"name": "x", "cases": [{"benchmark": "gemm"}] * 501}, "501 entries"),
        ({"name": "x", "cases": [{"benchmark": "gemm", "size": "x" * 5000}]}, "letters"),
        ({"name": "x\x00", "cases": [{}]}, "cannot be kept"),
        ({"name": "\ud800", "cases": [{}]}, "cannot be kept"),
        ({"name": "x", "cases": [{"size": float("nan")}]}, "no number"),
        ({"name": "x", "cases": [{"size": 10**30}]}, "digits"),
        ({"name": "x", "cases": [{"sizes": list(range(30_000))}]}, "values"),
        ({"name": "x", "cases": [{"a": list(range(200)), "b": list(range(200))}]}, "combinations"),
        ({"name": "x", "cases": [{"s": {"a": list(range(200)), "t": {"b": list(range(200))}}}]}, "combinations"),
    ],
)
def test_a_document_has_bounds(document: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        admission.check_document(document)


def test_lists_of_overrides_count_as_well() -> None:
    document = {"name": "x", "cases": [{"benchmark": "gemm", "size": list(range(1, 201))}]}
    admission.check_document(document, {"seed": [1, 2]})
    with pytest.raises(InputError, match="combinations"):
        admission.check_document(document, {"seed": list(range(200))})


def test_a_deep_document_is_refused_before_it_is_walked() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InputError, match="deep"):
        admission.check_document({"name": "x", "cases": [deep]})
    with pytest.raises(InputError, match="deep"):
        admission.check_yaml("[" * 5000)


def test_yaml_that_unfolds_is_refused() -> None:
    with pytest.raises(InputError, match=r"line 2: write out what '\*a'"):
        admission.check_yaml("x: &a [1, 2]\ny: [*a, *a]\n")
    admission.check_yaml("x: [1, 2]\n")
    admission.check_yaml("x: [1, 2")  # its reader says what is wrong


def test_a_suite_has_so_many_cases_and_no_more() -> None:
    document = {"name": "x", "cases": [{"benchmark": "gemm", "repeat": 3000}]}
    with pytest.raises(InputError, match="more than 2,000 cases"):
        submissions.cases_of(document, {}, MachineNeeds())

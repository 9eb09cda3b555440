"""What a job from the network may not ask for: one test for each refusal, and one for parameters yet to come."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from threading import BoundedSemaphore
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.network import FromNetwork, is_closed, rule_of
from paceline.core.parameters import Parameters
from paceline.core.suite import Here, Suite, expand
from paceline.runner.suite_file import shipped
from paceline.servers import SERVERS
from paceline.service import admission
from paceline.service.jobs import MachineNeeds
from support.refused import refused

SERVE = {"model": "resnet18", "scale": "tiny", "load": {"arrival": "poisson", "rate": 5}}


def _refusals(benchmark: str, **parameters: Any) -> list[InputError]:
    """Those of a case as it reaches a follower, whatever its benchmark says of it."""
    read = BENCHMARKS.registry().get(benchmark).Parameters.model_validate(parameters)
    case = Case(index=0, benchmark=benchmark, parameters=read.model_dump(mode="json"), title="", origin="network")
    return admission.refusals([case], BENCHMARKS.registry().get)


@pytest.mark.parametrize(
    ("benchmark", "parameters", "named", "words"),
    [
        ("train", {"model": "os:system"}, "model", "run code"),
        ("inference", {"model": "my.package:factory"}, "model", "run code"),
        ("train", {"model": "/etc/passwd"}, "model", "read a file"),
        ("inference", {"model": "./net.onnx"}, "model", "read a file"),
        ("train", {"model": "net.py:make"}, "model", "run code"),
        ("inference", {"model": "net.cloudpickle"}, "model", "run code"),
        ("inference", {"model": "resnet50", "input": "1x8"}, "input", "may not name"),
        ("command", {"exec": "reboot"}, "exec", "is a command to run"),
        ("serve", SERVE | {"model": "tiny/config.json"}, "model", "read a file"),
        ("train", {"model": "$(reboot)"}, "model", "invalid characters"),
        ("blas-functions", {"models": ["resnet50", "os:system"]}, "models", "run code"),
        ("blas-functions", {"file": "/etc/passwd"}, "file", "file"),
        ("dnn-functions", {"file": "shapes.yaml"}, "file", "file"),
        ("disk", {"folder": "/home"}, "folder", "folder"),
        ("disk", {"raw_device": "/dev/sda"}, "raw_device", "device"),
        ("tcp", {"endpoints": ["10.0.0.1:22"]}, "endpoints", "whom a machine talks to"),
        ("tcp", {"remote_host": "10.0.0.1"}, "remote_host", "whom a machine talks to"),
        ("rdma", {"remote_host": "10.0.0.1"}, "remote_host", "whom a machine talks to"),
        ("collective", {"backend": "mpi", "hostfile": "/etc/hosts"}, "hostfile", "leader chooses"),
        ("megatron-gpt", {"code_base": "/opt/code"}, "code_base", "code to run"),
        ("megatron-gpt", {"code_base": "x", "python": "/bin/sh"}, "python", "program"),
        ("megatron-gpt", {"code_base": "x", "extra": ["--exec"]}, "extra", "arguments"),
        ("megatron-gpt", {"code_base": "x", "data_path": "/data"}, "data_path", "files"),
        ("serve", SERVE | {"model": "os:system"}, "model", "run code"),
        ("serve", SERVE | {"requests": {"dataset": "/etc"}}, "requests.dataset", "file"),
        ("serve", SERVE | {"load": {"arrival": "trace", "file": "/etc/passwd"}}, "load.file", "file"),
        ("serve", SERVE | {"server": {"kind": "url", "url": "http://10.0.0.1", "model": "m"}}, "server.url", "ALLOWED"),
        ("serve", SERVE | {"server": {"kind": "embedded", "host": "0.0.0.0"}}, "server.host", "listen"),
        ("serve", SERVE | {"server": {"kind": "vllm", "python": "/bin/sh"}}, "server.python", "program"),
        ("serve", SERVE | {"instance": "p5/../x"}, "instance", "invalid characters"),
    ],
)  # fmt: skip
def test_it_is_refused(benchmark: str, parameters: dict[str, Any], named: str, words: str) -> None:
    found = {refusal.key: refusal for refusal in _refusals(benchmark, **parameters)}
    assert (found[named].code, found[named].case) == ("not-from-network", 1)
    assert words in found[named].message


def test_a_refusal_has_the_value_that_was_given() -> None:
    (refusal,) = _refusals("train", model="os:system")
    assert (refusal.key, refusal.value) == ("model", "os:system")


@pytest.mark.parametrize("secret", [{"token_env": "AWS_SECRET"}, {"token_file": "/etc/token"}])
def test_secrets_of_the_machine_are_refused(monkeypatch: pytest.MonkeyPatch, secret: dict[str, str]) -> None:
    monkeypatch.setenv("PACELINE_ALLOWED_URLS", "http://10.0.0.1:80")
    server = {"kind": "url", "url": "http://10.0.0.1:80/v2", "model": "org/name"}
    assert _refusals("serve", **SERVE, server=server) == []
    found = _refusals("serve", **SERVE, server=server | secret)
    assert [refusal.key for refusal in found] == [f"server.{next(iter(secret))}"]


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
        cases = admission.cases_of(admission.document_of(name), {}, MachineNeeds(gpus=gpus))
    except InputError as error:
        pytest.fail(f"{name}: {error}")
    assert all(case.origin == "network" for case in cases)


def _fields(model: type[BaseModel], path: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        inner = [part for part in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_model(part)]
        for part in inner:
            yield from _fields(part, f"{path}.{name}")
        if not inner:
            yield f"{path}.{name}", field


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def test_every_text_of_every_benchmark_is_judged() -> None:
    """A new parameter that takes a text comes up here: it is refused until its field says what it takes."""
    known = [field for name, one in BENCHMARKS.registry().entries.items() for field in _fields(one.Parameters, name)]
    known += [field for one in SERVERS.registry().entries.values() for field in _fields(one.Settings, "serve.server")]
    texts = {path: field for path, field in known if not is_closed(field.annotation)}
    paths = {path for path, field in texts.items() if "Path" in str(field.annotation)}
    assert {path for path, field in texts.items() if rule_of(field) is None} - paths == set()


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
    marked: Annotated[str, FromNetwork.matching("[a-z]{1,5}")] = ""


class New:
    """As much of a benchmark as matters."""

    Parameters = Tomorrow


@pytest.mark.parametrize(
    ("given", "keys"),
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
    given: dict[str, Any], keys: list[str]
) -> None:
    case = Case(index=0, benchmark="new", parameters=given, title="")
    found = admission.refusals([case], lambda _: New)  # type: ignore[arg-type, return-value]
    assert [refusal.key for refusal in found] == keys


def test_ranks_and_times_have_bounds() -> None:
    suite = Suite.read({"name": "x", "cases": [{"benchmark": "gemm", "timeout": "30h"}]}, "x", origin="network")
    cases = expand(suite, BENCHMARKS.registry().get, Here())
    assert [one.key for one in admission.refusals(cases, BENCHMARKS.registry().get)] == ["timeout"]
    many = [cases[0].model_copy(update={"ranks": 10_000, "timeout": 1.0})]
    assert [one.key for one in admission.refusals(many, BENCHMARKS.registry().get)] == ["ranks"]
    with refused("not-from-network", case=1, key="timeout", value=108_000.0, where="case 1 (gemm)"):
        admission.refuse(cases)


def test_a_refusal_says_how_many_more_there_are() -> None:
    suite = Suite.read({"name": "x", "cases": [{"benchmark": "gemm", "timeout": "30h"}] * 3}, "x", origin="network")
    with pytest.raises(InputError, match=r"^case 1 \(gemm\): not taken from the network: 'timeout' .*; and 2 more$"):
        admission.refuse(expand(suite, BENCHMARKS.registry().get, Here()))


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"name": "x", "cases": [{"benchmark": "gemm"}] * 501}, "too-many-entries"),
        ({"name": "x", "cases": [{"benchmark": "gemm", "size": "x" * 5000}]}, "too-many-characters"),
        ({"name": "x\x00", "cases": [{}]}, "invalid-characters"),
        ({"name": "\ud800", "cases": [{}]}, "invalid-characters"),
        ({"name": "x", "cases": [{"size": float("nan")}]}, "not-finite"),
        ({"name": "x", "cases": [{"size": 10**30}]}, "too-many-digits"),
        ({"name": "x", "cases": [{"sizes": list(range(30_000))}]}, "too-many-values"),
        ({"name": "x", "cases": [{"a": list(range(200)), "b": list(range(200))}]}, "too-many-combinations"),
        (
            {"name": "x", "cases": [{"s": {"a": list(range(200)), "t": {"b": list(range(200))}}}]},
            "too-many-combinations",
        ),
    ],
)
def test_a_document_has_bounds(document: dict[str, Any], code: str) -> None:
    with refused(code):
        admission.check_document(document)


def test_lists_of_overrides_count_as_well() -> None:
    document = {"name": "x", "cases": [{"benchmark": "gemm", "size": list(range(1, 201))}]}
    admission.check_document(document, {"seed": [1, 2]})
    with refused("too-many-combinations", value=40_000):
        admission.check_document(document, {"seed": list(range(200))})


def test_a_deep_document_is_refused_before_it_is_walked() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with refused("too-deep"):
        admission.check_document({"name": "x", "cases": [deep]})
    with refused("too-deep", where="line 1"):
        admission.read_document("[" * 5000, "")


def test_yaml_that_unfolds_is_refused() -> None:
    with refused("yaml-alias", where="line 2", value="a"):
        admission.read_document("x: &a [1, 2]\ny: [*a, *a]\n", "", takes_aliases=False)
    assert admission.read_document("x: [1, 2]\n", "", takes_aliases=False) == {"x": [1, 2]}
    with refused("too-many-bytes"):
        admission.read_document("x: " + "y" * 102_400, "")


def test_a_suite_has_so_many_cases_and_no_more() -> None:
    document = {"name": "x", "cases": [{"benchmark": "gemm", "repeat": 3000}]}
    with refused("too-many-cases", case=1):
        admission.cases_of(document, {}, MachineNeeds())


class TestHowLongACheckTakes:
    """However a suite is written, nobody else waits long for its check."""

    def test_a_suite_that_is_too_large_is_not_looked_at_entry_by_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        entry = {"benchmark": "gemm", "size": list(range(1, 141)), "seed": list(range(140)), "only_on": "cuda"}
        looked_up: list[str] = []
        monkeypatch.setattr("paceline.service.admission.Suite.read", lambda *_, **__: looked_up.append("read"))
        for count, code in ((100, "too-many-values"), (2, "too-many-combinations"), (501, "too-many-entries")):
            document = {"name": "x", "cases": [entry if count < 500 else {"benchmark": "gemm"}] * count}
            problems, _ = admission.problems(document, {}, MachineNeeds())
            assert [problem.code for problem in problems] == [code]
        assert looked_up == []

    def test_a_check_ends_when_its_time_is_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "LONGEST_CHECK", -1.0)
        document = {"name": "x", "cases": [{"benchmark": "gemm"}] * 3}
        with refused("too-long-to-check"):
            admission.cases_of(document, {}, MachineNeeds())
        problems, cases = admission.problems(document, {}, MachineNeeds())
        assert ([problem.code for problem in problems], cases) == (["too-long-to-check"], [])

    def test_of_large_suites_only_so_many_wait_to_be_checked_and_small_ones_do_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = BoundedSemaphore(1)
        taken.acquire()
        monkeypatch.setattr(admission, "_WAITING_FOR_IT", taken)
        large = {"name": "x", "cases": [{"benchmark": "gemm"}] * (admission.LARGE + 1)}
        small = {"name": "x", "cases": [{"benchmark": "gemm"}]}
        with pytest.raises(admission.Busy):
            admission.problems(large, {}, MachineNeeds())
        assert len(admission.problems(small, {}, MachineNeeds())[1]) == 1
        taken.release()
        assert len(admission.problems(large, {}, MachineNeeds())[1]) == admission.LARGE + 1
        assert taken.acquire(blocking=False), "it is given back"

"""What distinguishes configurations, and what they share, in a few words."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.configuration import (
    Configuration,
    configuration_of,
    device_count,
    device_of,
    flattened,
    labels,
    layout_of,
    machine_of,
    shared_choices,
)
from paceline.core.subject import ServedLoad, Subject
from support.records import ENVIRONMENT, case, record, run_of


def chosen(**choices: str) -> Configuration:
    return Configuration("work", {"machine": "H200", "target": "cuda", "ranks": "1"} | choices)


def test_what_all_share_is_said_unless_it_goes_without_saying() -> None:
    both = [chosen(precision="fp16", compile="auto", graph="on"), chosen(precision="fp32", compile="auto", graph="on")]
    assert labels(both) == ["fp16", "fp32"]
    assert shared_choices(both) == "on H200 graph=on"
    assert shared_choices(both[:1]) == ""
    assert labels(both[:1]) == ["on H200 fp16 graph=on"]


def test_machines_alone_are_called_by_their_names() -> None:
    assert labels([chosen(machine="A"), chosen(machine="B")]) == ["A", "B"]
    assert labels([Configuration("work", {"compile": "auto"})]) == ["as set by default"]


@pytest.mark.parametrize(("value", "word"), [(True, "on"), (False, "off"), (0.25, "0.25"), ([1], "[1]")])
def test_a_choice_in_a_word(value: object, word: str) -> None:
    one = record(case(0, "train", "m", model="m", graph=value, wire=None, budget=3.0))
    choices = configuration_of(one, run_of([one]).run).choices
    assert choices["graph"] == word
    assert set(choices) == {"graph", "machine", "target"}


def test_the_work_leaves_out_what_is_not_set() -> None:
    one = record(case(0, "other", "m", model="m", scale="tiny", shape={"a": 1, "b": None}, rest=None))
    assert configuration_of(one, run_of([one]).run).work == "other m tiny a=1"


def test_a_device_is_called_as_the_record_or_the_machine_does() -> None:
    bare = record(case(0, "other", "m"))
    assert device_of(bare, run_of([bare], environment=ENVIRONMENT | {"gpus": [{"name": "L4"}]}).run) == "L4"
    assert device_of(bare, run_of([bare], environment={}).run) == "unknown GPU"
    host = record(case(0, "other", "m", target="cpu"))
    assert device_of(host, run_of([host], environment={}).run) == "unknown processor"


GPUS = ENVIRONMENT | {"gpus": [{"name": "L4"}, {"name": "A10"}, {"name": "L4"}]}


def test_the_same_choices_have_one_key_in_whatever_order() -> None:
    both = Configuration("work", {"a": "1", "b": "2"}), Configuration("work", {"b": "2", "a": "1"})
    assert both[0].key == both[1].key
    assert both[0].key != Configuration("other", both[0].choices).key
    assert both[0].key != Configuration("work", {"a": "1", "b": "3"}).key


def test_how_much_load_there_was_is_part_of_the_work_only_where_it_is_asked_for() -> None:
    load = ServedLoad(
        loop="open",
        kind={"arrival": "poisson", "users": None},
        traffic={"arrival": "poisson", "rate": 50.0},
        requests={"samples": 4},
    )
    one = record(case(0, "other", "m", model="m", budget=3.0), load=load)
    run = run_of([one]).run
    parameters = one.case.parameters | {"clients": {"hosts": [], "remote_shell": None}}
    one = one.model_copy(update={"case": one.case.model_copy(update={"parameters": parameters})})
    assert configuration_of(one, run).work == "other m poisson samples=4"
    assert configuration_of(one, run, with_load=True).work == "other m poisson rate=50 samples=4"


def test_a_layout_is_a_choice_but_for_what_it_trains() -> None:
    word = "gpt2/nl24_bf16_2x1x4_ac_mb4_gb64_1n8g"
    what = case(0, "other", "m", ranks=8, target="cuda:*", case=word, precision="fp32", engine="own", hidden=64)
    one = record(what, subject=Subject(layout=word))
    configuration = configuration_of(one, run_of([one]).run)
    assert configuration.work == "other hidden=64 gpt2 layers=24 global_batch=64"
    assert configuration.choices == {
        "data": "2",
        "tensor": "1",
        "pipeline": "4",
        "checkpointing": "on",
        "micro_batch": "4",
        "precision": "bf16",
        "engine": "own",
        "machine": "8x NVIDIA H200",
        "target": "cuda",
    }


@pytest.mark.parametrize("word", [None, "", "2x2x4"])
def test_what_is_no_layout_is_none(word: str | None) -> None:
    assert layout_of(record(case(0, "other", "m"), subject=Subject(layout=word))) is None


@pytest.mark.parametrize(
    ("parameters", "work"),
    [
        ({"scale": "full", "model": "m"}, "other m"),
        ({"scale": "tiny", "operation": "sum"}, "other tiny sum"),
        ({"size": 0.5, "flag": True, "name": "x"}, "other size=0.5 flag=on name=x"),
        ({"shape": {"a": {"b": 1, "c": None}, "d": False}}, "other a.b=1 d=off"),
    ],
)
def test_the_work_in_words(parameters: dict[str, Any], work: str) -> None:
    one = record(case(0, "other", "m", **parameters))
    assert configuration_of(one, run_of([one]).run).work == work


def test_nested_values_are_called_by_their_path() -> None:
    assert flattened({"a": {"b": {"c": 1}, "d": 2}, "e": 3}) == {"a.b.c": 1, "a.d": 2, "e": 3}


@pytest.mark.parametrize(
    ("target", "ranks", "gpus", "count"),
    [
        ("cpu", 4, 3, 1),
        ("cuda:0", 1, 3, 1),
        ("cuda:*", 1, 3, 3),
        ("cuda:*", 1, 0, 1),
        ("cuda:*", 2, 3, 2),
        ("cuda:*", 8, 3, 8),
    ],
)
def test_how_many_devices_a_case_uses(target: str, ranks: int, gpus: int, count: int) -> None:
    one = record(case(0, "other", "m", target=target, ranks=ranks))
    run = run_of([one], environment=GPUS | {"gpus": GPUS["gpus"][:gpus]}).run
    assert device_count(one, run) == count


def test_ranks_are_a_choice_on_a_processor_alone() -> None:
    for target, ranks in (("cpu", "2"), ("cuda:*", None)):
        one = record(case(0, "other", "m", target=target, ranks=2))
        choices = configuration_of(one, run_of([one]).run).choices
        assert (choices["target"], choices.get("ranks")) == (target.partition(":")[0], ranks)


@pytest.mark.parametrize(
    ("target", "device", "environment", "name"),
    [
        ("cuda:0", "H100", GPUS, "H100"),
        ("cuda:0", None, GPUS, "L4"),
        ("cpu", "N1", GPUS, ENVIRONMENT["cpu"]["model"]),
        ("cpu", "N1", {}, "N1"),
        ("cpu", None, {}, "unknown processor"),
    ],
)
def test_what_computed_by_name(target: str, device: str | None, environment: dict[str, Any], name: str) -> None:
    one = record(case(0, "other", "m", target=target), subject=Subject(device=device))
    run = run_of([one], environment=environment).run
    assert device_of(one, run) == name
    ours = one.model_copy(update={"load": ServedLoad(loop="open")})
    assert device_of(ours, run) == name
    served = one.model_copy(update={"load": ServedLoad(loop="open", server="http://there:8000")})
    assert device_of(served, run) == "http://there:8000"


@pytest.mark.parametrize(
    ("where", "cpu", "machine"),
    [
        ({"target": "cuda:0"}, {}, "L4"),
        ({"target": "cuda:*"}, {}, "3x L4"),
        ({"target": "cuda:*", "ranks": 2}, {}, "2x L4"),
        ({"target": "cpu"}, {"model": "N1", "usable": 1.5, "physical_cores": 8}, "N1, 1.5 cores"),
        ({"target": "cpu", "ranks": 2}, {"model": "N1", "physical_cores": 8}, "N1, 8 cores"),
        ({"target": "cpu"}, {"model": "N1"}, "N1"),
    ],
)
def test_a_machine_is_so_many_devices_or_cores(where: dict[str, Any], cpu: dict[str, Any], machine: str) -> None:
    one = record(case(0, "other", "m", **where))
    run = run_of([one], environment=GPUS | {"cpu": cpu}).run
    assert machine_of(one, run) == machine
    assert configuration_of(one, run).machine == machine


def test_a_server_elsewhere_has_no_cores_that_are_known_here() -> None:
    one = record(case(0, "other", "m", target="cpu"), load=ServedLoad(loop="open", server="http://there:8000"))
    assert machine_of(one, run_of([one]).run) == "http://there:8000"


def test_labels_of_what_only_some_chose() -> None:
    assert labels([]) == []
    assert labels([chosen(graph="on"), chosen()]) == ["graph=on", "as set by default"]
    servers = [chosen(**{"server.kind": kind, "server.max_batch": most}) for kind, most in (("a", "8"), ("b", "1"))]
    assert labels(servers) == ["a max_batch=8", "b max_batch=1"]
    assert labels([chosen(target="cuda", wire="x"), chosen(target="cpu", wire="x")]) == ["cuda", "cpu"]
    both = [chosen(machine="A", graph="on"), chosen(machine="B", graph="off")]
    assert labels(both) == ["on A graph=on", "on B graph=off"]


def test_what_is_shared_is_said_in_the_order_of_the_first() -> None:
    first = Configuration("work", {"graph": "on", "wire": "x", "compile": "off", "ranks": "2"})
    second = Configuration("work", {"ranks": "2", "compile": "off", "wire": "x", "graph": "on", "shard": "on"})
    assert shared_choices([first, second]) == "graph=on x"
    assert shared_choices([first, second, second]) == "graph=on x"
    assert shared_choices([]) == ""

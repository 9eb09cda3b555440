"""The form: its fields, what it refuses and where it says so, and the job that comes of it."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.service import admission
from paceline.web import form_fields as forms

SUITE = "name: small\ncases:\n  - benchmark: gemm\n    size: [64, 128]\n"


def checked(visited: Any, **fields: str) -> Any:
    kind = fields.setdefault("kind", "benchmark")
    answer = visited.send("/submit/check", visited.form(f"/submit?kind={kind}&benchmark=gemm") | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_benchmark_is_submitted_with_its_parameters(visited: Any) -> None:
    job_id = visited.submit(kind="benchmark", **{"p.size": "64, 128", "p.precision": "fp32", "priority": "3"})
    job = visited.leader.job(job_id)
    assert job.suite == {"name": "gemm", "cases": [{"benchmark": "gemm", "size": ["64", "128"], "precision": "fp32"}]}
    assert (job.priority, job.submitted_by) == (3, "local")


def test_a_suite_that_ships_is_submitted_with_changes(visited: Any) -> None:
    job = visited.leader.job(visited.submit(kind="suite", suite="quick", set="budget=1s", tags="nightly, x"))
    assert (job.name, job.overrides, job.tags) == ("quick", {"budget": "1s"}, ("nightly", "x"))


def test_a_suite_of_ones_own_is_submitted_once(visited: Any) -> None:
    fields = visited.form("/submit?kind=yaml") | {"yaml": SUITE, "gpus": "0"}
    places = [visited.send("/submit", fields).headers["location"] for _ in range(2)]
    assert places[0] == places[1]
    assert visited.json("/")["counts"]["queued"] + visited.json("/")["counts"]["placed"] == 1


def test_a_form_that_was_changed_after_it_was_sent_is_another_job(visited: Any) -> None:
    fields = visited.form("/submit?kind=yaml")
    places = [
        visited.send("/submit", fields | {"yaml": SUITE.replace("64", size)}).headers["location"]
        for size in ("32", "16")
    ]
    assert places[0] != places[1]


def test_what_was_typed_stays_when_nothing_can_be_taken(visited: Any) -> None:
    fields = visited.form("/submit?kind=yaml") | {"yaml": SUITE}
    visited.leader.trouble = "the disk is full"
    sent = visited.send("/submit", fields)
    assert sent.status_code == 503
    assert "the disk is full" in sent.text and "size: [64, 128]" in sent.text
    assert "Nothing is accepted just now" in visited.page("/")
    assert not visited.store.queue.counts()


def test_parts_of_a_parameter_become_one(shared: Any) -> None:
    fields = {"benchmark": "serve", "p.model": "mlp-small", "p.load.rate": "10", "p.load.duration": "1s"}
    page = shared.page("/submit?kind=benchmark&name=serve")
    assert 'name="p.load.rate"' in page and 'name="p.server.kind"' in page
    found, errors = forms.read_parameters({"load.rate": "10", "load.duration": "1s"}, parameters_of("serve"))
    assert (found, errors) == ({"load": {"rate": "10", "duration": "1s"}}, {})
    assert "p.load.rate" not in checked(shared, **fields)["errors"]
    _, errors = forms.read_parameters({"load": "10", "load.rate": "10"}, parameters_of("serve"))
    assert "as a whole" in errors["load.rate"]


def parameters_of(name: str) -> Any:
    from paceline.core.benchmark import BENCHMARKS

    return BENCHMARKS.registry().get(name).Parameters


def test_every_benchmark_has_a_form() -> None:
    from paceline.core.benchmark import BENCHMARKS

    for benchmark in BENCHMARKS.registry().entries.values():
        names = {entry.name for group in forms.groups_of(benchmark.Parameters) for entry in group.entries}
        assert {name.partition(".")[0] for name in names} >= set(benchmark.Parameters.model_fields)


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"p.size": "large"}, "p.size", "'size' = 'large'"),
        ({"p.size": "64, none"}, "p.size", "'none'"),
        ({"p.precision": "fp23"}, "p.precision", "did you mean 'fp"),
        ({"p.sise": "64"}, "p.sise", "did you mean 'size'"),
        ({"p.m": "64"}, "benchmark", "m"),
        ({"p.repeat": "0"}, "p.repeat", "greater than or equal to 1"),
        ({"benchmark": "gem"}, "benchmark", "did you mean 'gemm'"),
        ({"priority": "high"}, "priority", "whole number"),
        ({"priority": "101"}, "priority", "100"),
        ({"gpus": "-1"}, "gpus", "greater than or equal to 0"),
        ({"tags": "<b>"}, "tags", "write letters"),
        ({"id": "not/an id"}, "id", "match"),
        ({"kind": "suite", "suite": "quik"}, "suite", "did you mean 'quick'"),
        ({"kind": "suite", "suite": "quick", "set": "budget"}, "set", "key=value"),
        ({"kind": "suite", "suite": "quick", "set": "budgte=1s"}, "set", "did you mean 'budget'"),
        ({"kind": "yaml", "yaml": "name: x\ncasse: []\n"}, "yaml", "did you mean 'cases'"),
        ({"kind": "yaml", "yaml": "name: [x\n"}, "yaml", "line 2"),
        ({"kind": "yaml", "yaml": "- 1\n"}, "yaml", "mapping"),
        ({"kind": "yaml", "yaml": SUITE.replace("size", "sise")}, "yaml", "did you mean 'size'"),
    ],
)
def test_a_mistake_is_told_at_its_field(shared: Any, fields: dict[str, str], place: str, words: str) -> None:
    found = checked(shared, **fields)
    assert not found["ok"]
    assert words in found["errors"][place]
    kind = fields.get("kind", "benchmark")
    sent = shared.send("/submit", shared.form(f"/submit?kind={kind}&benchmark=gemm") | fields)
    if fields.get("benchmark") != "gem":  # a benchmark that does not exist has no form
        assert sent.status_code == 422
        assert fields[place].partition("\n")[0].replace("<b>", "&lt;b&gt;") in sent.text if place in fields else True
    assert not shared.store.queue.counts()


def test_what_it_comes_to_is_told_before_it_is_sent(shared: Any) -> None:
    found = checked(shared, kind="yaml", yaml=SUITE)
    assert (found["ok"], found["cases"]) == (True, 2)
    assert found["message"].endswith("2 of the 2 machines here can run it.")
    assert (
        "0 of the 2 machines here can run it; the job will wait for another."
        in (checked(shared, kind="yaml", yaml=SUITE, gpus="8")["message"])
    )


def test_code_from_the_network_is_refused(shared: Any) -> None:
    harmful = "name: x\ncases:\n  - benchmark: train\n    model: os:system\n"
    assert "network" in checked(shared, kind="yaml", yaml=harmful)["errors"]["yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(f"{n}: &{n} [{', '.join([f'*{p}'] * 10)}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)),  # noqa: E501
        "a: &a {k: 1}\n" + "".join(f"{n}: &{n} {{<<: [{', '.join([f'*{p}'] * 10)}]}}\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)),  # noqa: E501
        "&a [*a]\n",
        "[" * 5000 + "]" * 5000,
    ],
)  # fmt: skip
def test_a_document_that_would_grow_beyond_measure_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        admission.read_document(text, "the suite")
    assert caught.value.code in ("too-many-values", "too-deep", "endless-anchor")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", "64"),
        ("64, 128", ["64", "128"]),
        ("generated/fc:layers=2,width=64", "generated/fc:layers=2,width=64"),
        ("uniform(1, 8)", "uniform(1, 8)"),
        ("[1, 2]", [1, 2]),
        ("{rate: 5}", {"rate": 5}),
    ],
)
def test_values_read_as_people_write_them(text: str, value: object) -> None:
    assert forms.read_value(text) == value


def test_values_are_split_at_each_comma_that_is_neither_within_brackets_nor_before_a_setting() -> None:
    comma = re.compile(r",(?!\s*\w+=)(?![^()\[\]{}]*[)\]}])")  # the same, in a time that grows with the square
    draw = Random(6)
    for _ in range(2_000):
        text = "".join(draw.choices(",,,()[]{} a1=_:.", k=draw.randrange(30)))
        assert forms.split_values(text) == comma.split(text), text


@pytest.mark.parametrize("field", ["p.size", "set"])
def test_a_field_is_not_longer_than_any_text_may_be(shared: Any, field: str) -> None:
    kind = "suite" if field == "set" else "benchmark"
    text = "size=" + "," * 9_000 if field == "set" else "," * 9_000
    told = checked(shared, kind=kind, **{field: text})
    assert told["errors"][field] == "it has 9,000 characters; at most 4,000 are taken"


def test_known_values_are_offered_and_not_typed(visited: Any) -> None:
    visited.engine.gpus = 2
    visited.leader.step()
    page = visited.page("/submit?kind=benchmark&name=train")
    assert '<input type="checkbox" name="p.precision" value="bf16">' in page
    assert '<option value="resnet50">' in page  # of the list of models
    assert '<option value="H200">H200 (2 machines)</option>' in page
    assert '<select id="f-gpus" name="gpus"' in page and '<option value="2">2</option>' in page
    assert '<option value="141">141 GiB</option>' in page
    serve = visited.page("/submit?kind=benchmark&name=serve")
    assert '<select id="p-server-kind"' in serve and "embedded (default)" in serve


def test_ticked_values_make_a_case_of_each(visited: Any) -> None:
    fields = visited.form("/submit?kind=benchmark&name=gemm") | {"p.precision": ["fp32", "bf16"], "p.size": "64"}
    checked = visited.send("/submit/check", fields).json()
    assert (checked["ok"], checked["cases"]) == (True, 2)


def test_a_value_that_is_no_choice_is_shown_with_what_is_wrong(visited: Any) -> None:
    fields = visited.form("/submit?kind=benchmark&name=gemm") | {"p.precision": "fp31"}
    page = visited.send("/submit", fields).text
    assert "<option selected>fp31</option>" in page
    assert "fp32" in page.split('data-error="p.precision"')[1][:200]

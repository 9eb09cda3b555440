"""What is wrong with a suite as one types it, results, and the description of all that."""

from __future__ import annotations

from typing import Any

import pytest

from support.leading import Served
from support.records import literal_run


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("name: x\ncases: [{benchmark: gem}]", [("unknown-benchmark", 1, "benchmark", "gemm")]),
        ("name: x\ncases: [{benchmark: gemm, sise: 3}]", [("unknown-key", 1, "sise", "size")]),
        ("name: x\ncases: [{benchmark: gemm}, {benchmark: gemm, size: big}]", [("invalid-value", 2, "size", None)]),
        ("name: x\ncases: [{benchmark: gem}, {benchmark: gemm, precison: fp32}]",
         [("unknown-benchmark", 1, "benchmark", "gemm"), ("unknown-key", 2, "precison", "precision")]),
        ("name: x\ncases: [{benchmark: disk, folder: /home}]", [("not-from-network", 1, "folder", None)]),
        ("name: x\ncases: [{benchmark: train, model: 'a:b'}]", [("not-from-network", 1, "model", None)]),
        ("name: x\ncases: 3", [("not-a-list", None, "cases", None)]),
        ("name: x\ncasses: []", [("unknown-key", None, "casses", "cases")]),
        ("name: x\ncases: [{benchmark: gemm", [("not-yaml", None, None, None)]),
        ("name: x\nname: y\ncases: [{benchmark: gemm}]", [("duplicate-key", None, "name", None)]),
        ("- 1", [("not-a-suite", None, None, None)]),
        ("", [("not-a-suite", None, None, None)]),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_place(shared: Served, text: str, problems: list[tuple[Any, ...]]) -> None:
    verdict = shared.ask("POST", "validate", {"text": text}).json
    assert verdict["ok"] is False
    assert [_fields(one) for one in verdict["problems"]] == problems


def _fields(problem: dict[str, Any]) -> tuple[Any, ...]:
    return problem["code"], problem["case"], problem["key"], problem["suggestion"]


def test_a_problem_says_where_only_if_the_entry_does_not(shared: Served) -> None:
    told = {
        text: shared.ask("POST", "validate", {"text": text}).json["problems"][0]["message"]
        for text in ("name: x\ncases: [{benchmark: gemm, sise: 3}]", "name: x\nname: y\ncases: []")
    }
    assert list(told.values()) == [
        "unknown key 'sise': did you mean 'size'?",
        "the suite, line 2: duplicate key 'name'; leave one of them out",
    ]


def test_a_case_that_no_machine_asked_for_has_is_no_mistake_of_its_entry(shared: Served) -> None:
    text = "name: x\ncases: [{benchmark: gemm, only_on: cuda}, {benchmark: gemm, sise: 3}]"
    (problem,) = shared.ask("POST", "validate", {"text": text}).json["problems"]
    assert _fields(problem) == ("unknown-key", 2, "sise", "size")


def test_a_good_suite_is_told_with_its_cases(shared: Served) -> None:
    text = "name: x\ncases: [{benchmark: gemm, size: [64, 128]}]"
    verdict = shared.ask("POST", "validate", {"text": text, "overrides": {"precision": "fp32"}}).json
    assert (verdict["ok"], verdict["cases"], len(verdict["titles"])) == (True, 2, 2)
    assert shared.ask("POST", "validate", {"suite": "quick"}).json["ok"] is True
    assert shared.ask("POST", "validate", {"suite": "gemm", "overrides": {"sise": 1}}).json["ok"] is False
    assert shared.ask("POST", "validate", {}).json["ok"] is False
    assert shared.ask("GET", "jobs").json["jobs"] == []


def test_runs_are_listed_shown_and_reported(served: Served) -> None:
    found = literal_run()
    run_id = found.run.id
    served.store.begin(found.run)
    for record in found.records:
        served.store.add(record)
    served.store.finish(run_id)
    assert [run["id"] for run in served.ask("GET", "runs").json["runs"]] == [run_id]
    shown = served.ask("GET", f"runs/{run_id}").json
    assert shown["run"]["status"] == "finished"
    assert "samples" not in shown["records"][0]["measurements"][0]
    whole = served.ask("GET", "runs/last?samples=true").json
    assert any(one["samples"] for record in whole["records"] for one in record["measurements"])
    page = served.ask("GET", f"runs/{run_id}/report")
    assert (page.status, page.body) == (200, f"<title>{run_id}</title>".encode())
    assert page.headers["content-type"].startswith("text/html")
    assert "sandbox" in page.headers["content-security-policy"]
    assert "allow-same-origin" not in page.headers["content-security-policy"]


def test_the_description_declares_every_answer(shared: Served) -> None:
    described = shared.ask("GET", "openapi.json").json
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            answers = one["responses"]
            assert {"401", "403", "422", "429", "503"} <= set(answers), (method, path)
            assert any(code.startswith("2") for code in answers), (method, path)
            for code, answer in answers.items():
                if not code.startswith("2"):
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema["$ref"].endswith("/ErrorBody"), (method, path, code)


def test_the_description_says_how_much_comes_unless_more_is_asked_for(shared: Served) -> None:
    paths = shared.ask("GET", "openapi.json").json["paths"]
    defaults = {
        path.removeprefix("/api/v1"): one["schema"]["default"]
        for path, methods in paths.items()
        for one in methods.get("get", {}).get("parameters", [])
        if one["name"] in ("limit", "samples")
    }
    assert defaults == {
        "/jobs": 100,
        "/quarantine": 100,
        "/jobs/{job_id}/logs": 500,
        "/runs": 50,
        "/runs/{run_id}": False,
        "/audit": 100,
    }


def test_every_answer_that_any_request_may_get_is_described(shared: Served) -> None:
    described = shared.ask("GET", "openapi.json").json["paths"]["/api/v1/followers"]["get"]["responses"]
    assert set(described) == {"200", "400", "401", "403", "408", "413", "415", "422", "429", "503"}


@pytest.mark.parametrize("sent", [{}, {"suite": "gemm", "text": "name: x\ncases: [{benchmark: gemm}]"}])
def test_a_suite_is_given_in_one_way(shared: Served, sent: dict[str, Any]) -> None:
    (problem,) = shared.ask("POST", "validate", sent).json["problems"]
    assert (problem["code"], problem["key"]) == ("not-one-suite", "suite")


def test_the_first_twenty_cases_are_named(shared: Served) -> None:
    sizes = list(range(64, 64 + 21))
    text = f"name: x\ncases: [{{benchmark: gemm, size: {sizes}}}]"
    verdict = shared.ask("POST", "validate", {"text": text}).json
    assert (verdict["cases"], len(verdict["titles"])) == (21, 20)
    assert len(set(verdict["titles"])) == 20

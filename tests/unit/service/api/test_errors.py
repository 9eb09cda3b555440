"""The one shape of everything that goes wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.service.api.errors import Refused, not_found
from support.leading import Served


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a", "a"), (0.5, 0.5), (3, 3), (True, True), (math.inf, None), (math.nan, None), ([1], None), (None, None)],
)
def test_a_value_is_told_if_json_has_a_form_for_it(value: Any, shown: Any) -> None:
    answer = Refused.of(InputError("odd", "it is odd", key="size", value=value)).answer()
    error = json.loads(bytes(answer.body))["error"]
    assert answer.status_code == 422
    expected = {"code": "odd", "message": "it is odd", "key": "size"}
    assert error == expected | ({} if shown is None else {"value": shown})


def test_an_unknown_name_is_404() -> None:
    assert not_found("job", "x").answer().status_code == 404


def test_what_cannot_be_done_with_a_thing_that_is_there_is_405(shared: Served) -> None:
    answer = shared.ask("DELETE", "jobs")
    assert (answer.status, answer.error["code"]) == (405, "not-allowed")
    assert "allow" in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "body", "error"),
    [
        ("GET", "jobs?limit=0", None, ("invalid-value", "limit", "'limit': ")),
        ("POST", "jobs", {"id": "a"}, ("missing-key", "suite", "'suite': is missing")),
        ("POST", "jobs", {"id": "a", "suite": "x", "needs": {"a": 1}}, ("unknown-key", "needs.a", "'needs.a': is not")),
        ("POST", "jobs", None, ("missing-key", None, "is missing")),
    ],
)
def test_a_wrong_part_of_a_request_is_named(
    shared: Served, method: str, path: str, body: Any, error: tuple[str, str | None, str]
) -> None:
    answer = shared.ask(method, path, body)
    assert answer.status == 422
    assert (answer.error["code"], answer.error.get("key")) == error[:2]
    assert answer.error["message"].startswith(error[2])

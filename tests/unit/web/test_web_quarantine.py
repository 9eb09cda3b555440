"""The quarantine as a page: what could not be stored, why, and how to retry or drop it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.record import Outcome, Record
from paceline.service.job_store import TRIES
from support.scripted_followers import START, a_job, case


@pytest.fixture
def with_item(visited: Any) -> Any:
    """A leader with one item in quarantine: the record of a case that was never planned."""
    visited.leader.submit(a_job())
    visited.leader.step()
    attempt = visited.engine.attempt("job")
    attempt.begin()
    fields = {"run_id": attempt.assignment.run_id, "outcome": Outcome.OK, "started_at": START, "seconds": 1.0}
    attempt.tell("record", record=Record.model_validate({**fields, "case": case(7), "facts": {"x": "<b>\x1b[2J"}}))
    for _ in range(TRIES):
        visited.leader.step()
    return visited


def test_pages_say_that_something_is_in_quarantine_and_why(with_item: Any) -> None:
    for path in ("/", "/jobs/job"):
        assert 'could not be stored: see <a href="/quarantine">' in with_item.page(path)
    page = with_item.page("/quarantine")
    assert "1 item in quarantine." in page
    assert "it contradicts what the store holds already (FOREIGN KEY constraint failed)" in page
    item = with_item.page("/quarantine/1")
    assert r"&lt;b&gt;\\x1b[2J" in item
    assert with_item.json("/quarantine/1")["item"]["record"]["case"]["index"] == 7


def test_an_item_is_retried_or_dropped_by_a_form(with_item: Any) -> None:
    form = with_item.form("/quarantine/1")
    refused = with_item.send("/quarantine/1/retry", form)
    assert refused.status_code == 409
    assert "still cannot be stored" in refused.text
    assert "Store it now" in refused.text, "the item is shown again"
    assert with_item.send("/quarantine/1/drop", {"token": "wrong"}).status_code == 403
    assert with_item.send("/quarantine/1/nothing", form).status_code == 404
    assert with_item.send("/quarantine/1/drop", form).status_code == 303
    assert "All that followers reported is in the store." in with_item.page("/quarantine")
    assert with_item.get("/quarantine/1").status_code == 404


def test_the_api_lists_shows_retries_and_drops(with_item: Any) -> None:
    api = "/api/v1/quarantine"
    assert [entry["job_id"] for entry in with_item.json(api)["entries"]] == ["job"]
    assert with_item.json("/api/v1/jobs")["quarantined"] == 1
    assert with_item.json(f"{api}/1")["item"]["kind"] == "record"
    refused = with_item.client.post(f"{api}/1/retry")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "still-refused")
    assert with_item.client.post(f"{api}/1/drop").json()["id"] == 1
    assert with_item.client.post(f"{api}/1/drop").status_code == 404

"""The pages of a leader whose followers do what a test says, asked as a browser would."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from paceline.report.run.document import to_html
from paceline.service.api.app import create_app
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.store.store import Store
from paceline.web.pages import pages_of
from support.scripted_followers import ScriptedEngine

BROWSER = {"accept": "text/html,application/xhtml+xml"}


@dataclass
class Visited:
    """A leader with its pages."""

    client: TestClient
    leader: Leader
    engine: ScriptedEngine
    store: Store

    def get(self, path: str, **more: Any) -> Any:
        return self.client.get(path, headers=BROWSER, **more)

    def page(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def json(self, path: str) -> Any:
        answer = self.client.get(path, headers={"accept": "application/json"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def form(self, path: str = "/submit") -> dict[str, str]:
        """The fields of the form that only the page knows."""
        found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', self.page(path))
        return {name: html.unescape(value) for name, value in found}

    def send(self, path: str, fields: dict[str, str], **headers: str) -> Any:
        return self.client.post(path, data=fields, headers=BROWSER | headers, follow_redirects=False)

    def submit(self, **fields: str) -> str:
        """A job by the form; its id."""
        kind = fields.pop("kind", "yaml")
        answer = self.send("/submit", self.form(f"/submit?kind={kind}&benchmark=gemm") | fields)
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"]).removeprefix("/jobs/")


@pytest.fixture
def visited(tmp_path: Path) -> Iterator[Visited]:
    """A leader of a test's own."""
    with visited_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    """A leader for tests that change nothing."""
    with visited_in(tmp_path_factory.mktemp("leader")) as made:
        yield made


@contextmanager
def visited_in(folder: Path) -> Iterator[Visited]:
    engine = ScriptedEngine(["one", "two"])
    with open_store(folder / "store.db") as store:
        leader = Leader(store, engine)
        app = create_app(leader, store, is_local=True, report=to_html, pages=pages_of(leader, store, to_html))
        with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50_000)) as client:
            leader.step()
            yield Visited(client, leader, engine, store)
        leader.close()

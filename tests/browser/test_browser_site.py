"""The documentation as a site: built without a warning, nothing loaded from elsewhere, search in a real browser."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from support.docs_markdown import ROOT

pytestmark = pytest.mark.long

WORD = "roofline"  # the guides explain it
LOADING = {  # what a browser fetches by itself, by element
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "input": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}


class _References(HTMLParser):
    """What a page loads, where its links lead, and which places of it they can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if address := values.get(LOADING.get(tag, ""), ""):
            self.loaded.add(address)
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        self.anchors |= {values[name] for name in ("id", "name") if name in values}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the pages, which a test may spoil."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="install it with: pip install '.[site]'")
    root = tmp_path_factory.mktemp("site") / "sources"
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("[A-Z]*"):
        if path.is_file():
            shutil.copy(path, root)
    (root / "src").symlink_to(ROOT / "src")
    return root


def build(sources: Path, into: str) -> subprocess.CompletedProcess[str]:
    """As `make site` does it."""
    recipe = re.search(r"-m sphinx (.*) \. build/site$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe
    command = [sys.executable, "-m", "sphinx", *recipe[1].split(), ".", f"build/{into}"]
    return subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(sources: Path) -> Path:
    done = build(sources, "site")
    assert done.returncode == 0, done.stderr
    return sources / "build" / "site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site at a plain HTTP server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def pages_of(site: Path) -> dict[Path, _References]:
    pages = {path: _References(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 50
    return pages


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path, page in pages_of(site).items():
        assert page.loaded
        assert not {address for address in page.loaded if re.match(r"(?!data:)(\w+:|//)", address)}, path
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?\s*(?:https?:)?//[^)]*", text), path


def test_every_link_and_file_within_the_site_exists(site: Path) -> None:
    pages = pages_of(site)
    for path, page in pages.items():
        for address in page.links | page.loaded:
            parts = urlsplit(address)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {address}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors | {""}, f"{path.name}: {address}"


def test_the_navigation_has_every_page(site: Path) -> None:
    front = pages_of(site)[site / "index.html"]
    for folder in ("guide", "reference", "decisions"):
        for path in (ROOT / "docs" / folder).glob("*.md"):
            assert f"docs/{folder}/{path.stem}.html" in front.links
    assert {"CONTRIBUTING.html", "CHANGELOG.html", "SECURITY.html", "CODE_OF_CONDUCT.html"} <= front.links


@pytest.mark.parametrize("over_http", [False, True], ids=["file", "http"])
def test_search_finds_a_word_and_leads_to_it(browser: Any, site: Path, address: str, over_http: bool) -> None:
    requests: list[str] = []
    complaints: list[str] = []
    opened = browser.new_page()
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    start = address if over_http else site.as_uri()
    opened.goto(f"{start}/index.html")
    opened.get_by_role("textbox", name="Search").fill(WORD)
    opened.keyboard.press("Enter")
    results = opened.locator("#search-results li a")
    results.first.wait_for()
    results.first.click()
    opened.locator("article h1").wait_for()
    landed = opened.locator("article").inner_text().lower()
    opened.close()
    assert WORD in landed
    assert not [url for url in requests if not url.startswith((start, "data:"))]
    assert complaints == []


def test_a_broken_link_fails_the_build(sources: Path, site: Path) -> None:
    page = sources / "docs" / "guide" / "suites.md"
    page.write_text(
        f"{page.read_text(encoding='utf-8')}\n[one](nowhere.md) [two](models.md#nothing)\n", encoding="utf-8"
    )
    done = build(sources, "broken")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
    assert "nothing" in done.stderr

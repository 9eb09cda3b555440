"""An operation of an OpenAPI document says what is sent and what a good answer is."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.servers._openapi import read_operation

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "servers": [{"url": "http://{host}:8000/v1/", "variables": {"host": {"default": "gpu7"}}}],
    "components": {
        "schemas": {
            "Picture": {
                "type": "object",
                "required": ["pixels", "size"],
                "properties": {
                    "pixels": {"type": "array", "minItems": 3, "items": {"type": "number"}},
                    "size": {"$ref": "#/components/schemas/Size"},
                    "note": {"type": "string"},
                },
            },
            "Size": {"type": "integer", "minimum": 8},
            "Tree": {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Tree"}}},
        },
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}},
    },
    "paths": {
        "/models/{name}/predict": {
            "parameters": [{"name": "name", "in": "path", "example": "a b"}],
            "post": {
                "operationId": "predict",
                "parameters": [
                    {"name": "top", "in": "query", "required": True, "schema": {"type": "integer", "default": 5}},
                    {"name": "trace", "in": "query"},
                    {"name": "X-Team", "in": "header", "required": True, "schema": {"enum": ["vision"]}},
                ],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Picture"}}}},
                "responses": {
                    "200": {
                        "content": {"application/json": {"schema": {"type": "object", "required": ["label"]}}},
                    },
                    "422": {},
                },
            },
        },
        "/tree": {
            "put": {
                "operationId": "plant",
                "security": [{"key": []}],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Tree"}}}},
            }
        },
        "/health": {"get": {"operationId": "health"}},
    },
}


def read(folder: Path, wanted: str | None = None, given: dict[str, Any] | None = None, *had: str, **change: Any) -> Any:
    path = folder / "openapi.json"
    path.write_text(json.dumps(DOCUMENT | change))
    return read_operation(str(path), wanted, given or {}, set(had))


@pytest.mark.parametrize("wanted", ["predict", "POST /models/{name}/predict"])
def test_an_operation_says_what_is_sent_and_what_is_good(tmp_path: Path, wanted: str) -> None:
    assert read(tmp_path, wanted) == {
        "url": "http://gpu7:8000",
        "method": "POST",
        "path": "/v1/models/a%20b/predict?top=5",
        "header": ["X-Team: vision", "Content-Type: application/json"],
        "body": '{"pixels": [1.0, 1.0, 1.0], "size": 8}',
        "expect_status": ["200"],
        "expect_json": ["label"],
    }


def test_an_address_and_headers_of_the_user_win(tmp_path: Path) -> None:
    settings = read(tmp_path, "predict", {"url": "http://other"}, "x-team")
    assert settings["path"] == "/models/a%20b/predict?top=5"
    assert settings["header"] == ["Content-Type: application/json"]
    assert "url" not in settings


def test_a_schema_that_holds_itself_ends(tmp_path: Path) -> None:
    body = json.loads(read(tmp_path, "plant", {}, "x-api-key")["body"])
    assert set(body) == {"next"}


def test_a_document_in_yaml_with_one_operation(tmp_path: Path) -> None:
    path = tmp_path / "openapi.yaml"
    path.write_text("openapi: 3.0.0\npaths:\n  /p:\n    get:\n      responses:\n        200: {}\n        201: {}\n")
    settings = read_operation(str(path), None, {"url": "http://h"}, set())
    assert settings == {"method": "GET", "path": "/p", "expect_status": ["200", "201"]}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a server that has the document, which names no other."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps({**DOCUMENT, "servers": []}).encode()
            self.send_response(200 if self.path == "/openapi.json" else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_document_at_an_address_is_of_that_server(served: str) -> None:
    settings = read_operation(f"{served}/openapi.json", "health", {}, set())
    assert settings == {"url": served, "method": "GET", "path": "/health"}
    with pytest.raises(InputError, match="cannot be read: it answers 404"):
        read_operation(f"{served}/other", "health", {}, set())


@pytest.mark.parametrize(
    ("wanted", "change", "said"),
    [
        (None, {}, "it has 3 operations; name one with --server.operation: predict, plant, health"),
        ("predcit", {}, "unknown operation 'predcit': did you mean 'predict'?"),
        ("plant", {}, "PUT /tree needs a secret: add --server.header 'X-Api-Key: $NAME'"),
        ("health", {"servers": []}, "names no address of a server: give it with --server.url http://..."),
        ("health", {"openapi": "2.0"}, "is not a document of OpenAPI 3"),
        ("health", {"paths": None}, "has no 'paths'"),
        ("plant", {"components": {}}, "the reference '#/components/schemas/Tree' is to nothing"),
    ],
)
def test_a_wrong_document_or_operation_is_refused(
    tmp_path: Path, wanted: str | None, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        read(tmp_path, wanted, None, **change)


def test_a_missing_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_operation(str(tmp_path / "none.json"), None, {}, set())

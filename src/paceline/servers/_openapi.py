"""One operation of an OpenAPI document as settings of wire http."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from paceline.core.errors import InputError, unknown
from paceline.core.yaml_text import read_yaml
from paceline.servers._program import HTTP_ERRORS, http_get

METHODS = ("get", "post", "put", "patch", "delete")
_KEY = "server.openapi"
_DEEPEST = 12  # of a schema: one that holds itself is cut off here
_SAMPLES = {"string": "string", "integer": 1, "number": 1.0, "boolean": True, "null": None}
_IN_PATH = re.compile(r"\{([^{}]+)\}")


def read_operation(source: str, wanted: str | None, given: Mapping[str, Any], had: set[str]) -> dict[str, Any]:
    """Address, method, path, headers and body of an operation, and what a good answer to it is.

    Given are settings that the user wrote, and the names of the headers among them.
    """
    document = _document(source)
    method, path, operation = _chosen(document, wanted)
    name = f"{method.upper()} {path}"
    parameters = [
        _resolved(document, one)
        for one in (*_list(document["paths"][path].get("parameters")), *_list(operation.get("parameters")))
    ]
    by_place = {place: [one for one in parameters if one.get("in") == place] for place in ("path", "query", "header")}
    values = {str(one.get("name")): _text(_sample_of(document, one)) for one in by_place["path"]}
    path = _IN_PATH.sub(lambda match: quote(values.get(match[1], "1"), safe=""), path)
    needed = [one for one in by_place["query"] if one.get("required")]
    query = "&".join(f"{quote(str(one['name']))}={quote(_text(_sample_of(document, one)))}" for one in needed)
    required = [one for one in by_place["header"] if one.get("required") and str(one.get("name")).lower() not in had]
    headers = [f"{one['name']}: {_text(_sample_of(document, one))}" for one in required]
    found: dict[str, Any] = {"method": method.upper(), "path": path + (f"?{query}" if query else "")}
    if "url" not in given:
        address, base = _address(document, source)
        found |= {"url": address, "path": base + found["path"]}
    content = _resolved(document, operation.get("requestBody") or {}).get("content")
    if isinstance(content, Mapping) and content:
        kind = next((one for one in content if "json" in one), next(iter(content)))
        body = _sample_of(document, content[kind])
        found["body"] = json.dumps(body) if "json" in kind else _text(body)
        headers.append(f"Content-Type: {kind}")
    if not {"token_env", "token_file"} & given.keys():
        _require_secrets(document, operation, had, name)
    found |= {"header": headers} if headers else {}
    return found | _good_answer(document, operation)


def _document(source: str) -> dict[str, Any]:
    if source.startswith(("http://", "https://")):
        parts = urlsplit(source)
        tls = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            status, content = http_get(parts.hostname or "", parts.port or (443 if tls else 80), path, tls=tls)
        except HTTP_ERRORS as error:
            raise _refusal("unreadable-file", f"{source} cannot be read: {error}") from None
        if status != 200:
            raise _refusal("unreadable-file", f"{source} cannot be read: it answers {status}")
    else:
        try:
            content = Path(source.removeprefix("@")).expanduser().read_bytes()
        except OSError as error:
            raise _refusal("unreadable-file", f"{source} cannot be read: {error.strerror}") from None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = read_yaml(content.decode("utf-8", "replace"), f"openapi {source}")
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3"):
        reason = f"{source} is not a document of OpenAPI 3: it has no 'openapi: 3...'"
        raise _refusal("not-openapi", reason)
    if not isinstance(document.get("paths"), dict) or not all(isinstance(p, dict) for p in document["paths"].values()):
        raise _refusal("not-openapi", f"{source} has no 'paths'")
    return document


def _chosen(document: dict[str, Any], wanted: str | None) -> tuple[str, str, dict[str, Any]]:
    operations = {
        f"{method.upper()} {path}": (method, path, item[method])
        for path, item in document["paths"].items()
        for method in METHODS
        if isinstance(item.get(method), dict)
    }
    names = {str(one[2]["operationId"]): one for one in operations.values() if "operationId" in one[2]}
    if wanted is None and len(operations) == 1:
        return next(iter(operations.values()))
    if wanted is None:
        known = ", ".join([*names] or [*operations][:20])
        message = f"it has {len(operations)} operations; name one with --server.operation: {known}"
        raise InputError("missing-key", message, key="server.operation")
    if wanted not in (every := operations | names):
        raise unknown("operation", wanted, names or operations, key="server.operation")
    return every[wanted]


def _address(document: dict[str, Any], source: str) -> tuple[str, str]:
    """The address of the server, and the path that all operations begin with."""
    servers = _list(document.get("servers"))
    url = str(servers[0].get("url", "/")) if servers else "/"
    for name, variable in (servers[0].get("variables") or {}).items() if servers else ():
        url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
    parts = urlsplit(urljoin(source, url) if source.startswith("http") else url)
    if not parts.netloc:
        message = f"{source} names no address of a server: give it with --server.url http://..."
        raise InputError("missing-key", message, key="server.url")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def _sample_of(document: dict[str, Any], holder: Mapping[str, Any]) -> Any:
    """The example that a parameter or a body has, or one that its schema allows."""
    if "example" in holder:
        return holder["example"]
    examples = holder.get("examples")
    if isinstance(examples, Mapping) and examples:
        return _resolved(document, next(iter(examples.values()))).get("value")
    return _sample(document, holder.get("schema") or {}, 0)


def _sample(document: dict[str, Any], schema: Any, depth: int) -> Any:
    schema = _resolved(document, schema)
    for key in ("example", "default", "const"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    if depth >= _DEEPEST:
        return None
    for key in ("oneOf", "anyOf"):
        if choices := _list(schema.get(key)):
            return _sample(document, choices[0], depth + 1)
    if parts := _list(schema.get("allOf")):
        samples = [_sample(document, part, depth + 1) for part in parts]
        return {key: value for one in samples if isinstance(one, dict) for key, value in one.items()}
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        needed = schema.get("required") or properties
        return {name: _sample(document, properties[name], depth + 1) for name in properties if name in needed}
    if kind == "array":
        count = max(1, min(int(schema.get("minItems") or 1), 1000))
        return [_sample(document, schema.get("items") or {}, depth + 1)] * count
    minimum = schema.get("minimum")
    return minimum if minimum is not None and kind in ("integer", "number") else _SAMPLES.get(str(kind), "string")


def _resolved(document: dict[str, Any], value: Any) -> dict[str, Any]:
    """What a reference within the document means."""
    for _ in range(_DEEPEST):
        if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
            break
        reference, value = value["$ref"], document
        if not reference.startswith("#/"):
            raise _refusal("not-openapi", f"the reference '{reference}' is to another document; put them into one")
        for part in reference[2:].split("/"):
            value = value.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
        if value is None:
            raise _refusal("not-openapi", f"the reference '{reference}' is to nothing")
    return value if isinstance(value, dict) else {}


def _good_answer(document: dict[str, Any], operation: Mapping[str, Any]) -> dict[str, Any]:
    """The statuses of success, and the properties that the answer of the first of them must have."""
    answers = {str(status): one for status, one in (operation.get("responses") or {}).items()}
    good = sorted(status for status in answers if re.fullmatch(r"2\d\d", status))
    if not good:
        return {}
    content = _resolved(document, answers[good[0]]).get("content") or {}
    schema = next((one.get("schema") for kind, one in content.items() if "json" in kind), None)
    names = [str(name) for name in _resolved(document, schema).get("required") or ()]
    plain = [name for name in names if re.fullmatch(r"[\w-]+", name)]
    return {"expect_status": good} | ({"expect_json": plain} if len(good) == 1 and plain else {})


def _require_secrets(document: dict[str, Any], operation: Mapping[str, Any], had: set[str], name: str) -> None:
    """Refuse an operation that wants a header with a secret which nobody gave."""
    alternatives = list(_secret_headers(document, operation))
    if alternatives and not any(needed <= had for needed in alternatives):
        header = sorted(alternatives[0])[0].title()
        scheme = "Bearer " if header == "Authorization" else ""
        message = f"{name} needs a secret: add --server.header '{header}: {scheme}$NAME', with it in that variable"
        raise InputError("missing-key", message, key="server.header")


def _secret_headers(document: dict[str, Any], operation: Mapping[str, Any]) -> Iterator[set[str]]:
    schemes = (document.get("components") or {}).get("securitySchemes") or {}
    for alternative in _list(operation.get("security", document.get("security"))):
        needed = set()
        for scheme in (_resolved(document, schemes.get(name)) for name in alternative):
            if scheme.get("type") == "apiKey" and scheme.get("in") == "header":
                needed.add(str(scheme.get("name")).lower())
            elif scheme.get("type") in ("http", "oauth2", "openIdConnect"):
                needed.add("authorization")
        yield needed


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _refusal(code: str, reason: str) -> InputError:
    return InputError(code, f"openapi: {reason}", key=_KEY)

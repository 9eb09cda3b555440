"""A curl command line as settings of wire http."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline.core.errors import InputError, nearest

_DATA = {"-d", "--data", "--data-ascii", "--data-raw", "--data-binary", "--json"}
_AS_HEADER = {"-A": "User-Agent", "--user-agent": "User-Agent", "-e": "Referer", "--referer": "Referer"}
_AS_HEADER |= {"-b": "Cookie", "--cookie": "Cookie"}
_TAKEN = {"-X", "--request", "-H", "--header", "--url", *_DATA, *_AS_HEADER}
# They say how curl itself shows or waits for an answer.
_IGNORED = {"-s", "--silent", "-S", "--show-error", "-v", "--verbose", "-i", "--include", "-f", "--fail", "-N"}
_IGNORED |= {"--no-buffer", "--compressed", "--http1.1", "-g", "--globoff", "--no-progress-meter", "-#"}
_IGNORED_WITH_VALUE = {"-o", "--output", "-w", "--write-out", "-m", "--max-time", "--connect-timeout", "--retry"}
_REFUSED = {
    "-u": "put user:password in base64 into a variable and write -H 'Authorization: Basic $NAME'",
    "-F": "write the parts into a file and send it with --data-binary @FILE and its Content-Type",
    "-k": "certificates are always checked; use http:// or a valid certificate",
    "-L": "redirects are not followed; name the address itself",
    "-G": "write the query into the address",
    "-T": "use --data-binary @FILE with -X PUT",
    "--data-urlencode": "write the encoded text with --data-raw",
}
_LONG = {"--user": "-u", "--form": "-F", "--insecure": "-k", "--location": "-L", "--get": "-G", "--upload-file": "-T"}
_DROPPED = ("accept-encoding", "content-length", "connection", "te")  # the load generator's own affair


def read_curl(given: str) -> dict[str, Any]:
    """Address, method, path, headers and body of `curl ...`, or of a file that holds it."""
    words = _words(given)
    method, body, urls, headers = None, [], [], []
    kinds = set()
    while words:
        word = words.pop(0)
        option, value = _split(word)
        if option in _IGNORED:
            continue
        if option in _IGNORED_WITH_VALUE or option in _TAKEN:
            if value is None and not words:
                raise _refusal(f"'{option}' has no value")
            value = words.pop(0) if value is None else value
        if option in ("-X", "--request"):
            method = value
        elif option in ("-H", "--header"):
            headers.append(str(value))
        elif option in _AS_HEADER:
            headers.append(f"{_AS_HEADER[option]}: {value}")
        elif option in _DATA:
            body.append(str(value))
            kinds.add(option)
        elif option == "--url" or not option:
            urls.append(str(value if option else word))
        elif option not in _IGNORED_WITH_VALUE:
            raise _not_understood(option)
    if len(urls) != 1:
        raise _refusal(f"it has {len(urls)} addresses, and must have one")
    return _settings(urls[0], method, headers, body, kinds)


def _words(given: str) -> list[str]:
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"from_curl = '{given}': the file cannot be read: {error}"
            raise InputError("unreadable-file", message, key="server.from_curl", value=given) from None
    if "$'" in text:
        raise _refusal("$'...' is a form of one shell: write the text in plain quotes, or into a file (-d @FILE)")
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "), comments=given.startswith("@"))
    except ValueError as error:
        raise _refusal(f"{error}".lower()) from None
    if words[:1] == ["$"]:
        words.pop(0)
    if not words or Path(words[0]).name != "curl":
        raise _refusal("it does not begin with curl")
    return words[1:]


def _split(word: str) -> tuple[str, str | None]:
    """The option and the value that is joined to it; no option for an address."""
    if word.startswith("--"):
        option, equals, value = word.partition("=")
        return option, value if equals else None
    if not word.startswith("-") or word == "-":
        return "", None
    if len(word) > 2:
        if word[:2] in _TAKEN:  # -XPOST
            return word[:2], word[2:]
        for letter in word[1:]:  # -sS
            if f"-{letter}" not in _IGNORED:
                return f"-{letter}", None
        return word[:2], None
    return word, None


def _settings(url: str, method: str | None, headers: list[str], body: list[str], kinds: set[str]) -> dict[str, Any]:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if "@" in parts.netloc:
        raise _refusal("its address holds a password: write -H 'Authorization: Basic $NAME'")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    found: dict[str, Any] = {"url": f"{parts.scheme}://{parts.netloc}", "path": path}
    headers = [header for header in headers if header.partition(":")[0].strip().lower() not in _DROPPED]
    names = {header.partition(":")[0].strip().lower() for header in headers}
    if body:
        files = [part for part in body if part.startswith("@")] if kinds != {"--data-raw"} else []
        if len(body) > 1 and files:
            raise _refusal("several bodies of which one is a file: put all of it into one file")
        found["body"] = "&".join(body)
        usual = "application/json" if "--json" in kinds else "application/x-www-form-urlencoded"  # as curl does it
        headers += [] if "content-type" in names else [f"Content-Type: {usual}"]
    found |= {"header": headers} if headers else {}
    return found | ({"method": method} if method is not None else {})


def _not_understood(option: str) -> InputError:
    option = _LONG.get(option, option)
    if option in _REFUSED:
        return _refusal(f"'{option}' is not taken: {_REFUSED[option]}")
    known = sorted(_TAKEN | _IGNORED | _IGNORED_WITH_VALUE)
    guess = nearest(option, known)
    return _refusal(f"'{option}' is not an option that is known here" + (f"; did you mean '{guess}'?" if guess else ""))


def _refusal(reason: str) -> InputError:
    # The line itself may hold a secret: it is not shown.
    example = "curl -X POST http://127.0.0.1:8000/predict -H 'Content-Type: application/json' -d '{\"x\": 1}'"
    message = f"from_curl: {reason}; expected is a line like\n  {example}"
    return InputError("not-a-curl-line", message, key="server.from_curl")

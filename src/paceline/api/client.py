"""Speaks to a leader: one request after the other, tried again where that is safe."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from paceline.core.errors import InputError, PacelineError
from paceline.core.files import read_text

LEADER, TOKEN = "PACELINE_LEADER", "PACELINE_TOKEN"
DEFAULT = "http://127.0.0.1:8765"
_PATIENCE = 20.0  # seconds until a leader that asks for a pause is given up
_ABSENT = 3.0  # until one that does not answer at all is
_SECONDS = 60.0  # for one answer
_LARGEST = 1 << 28  # bytes of an answer
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_AGAIN = (429, 502, 503, 504)


class NoLeader(PacelineError):
    """No leader answers, or one that cannot; `again_after` so many seconds, if that may help."""

    exit_code = 2

    def __init__(self, message: str, again_after: float | None = None, *, is_absent: bool = False) -> None:
        super().__init__(message)
        self.again_after = again_after
        self.is_absent = is_absent


def open_client(leader: str | None, token_file: Path | None) -> Client:
    """The client that the options and the environment describe."""
    if token_file is None:
        return new_client(leader, None)
    return new_client(leader, read_text(token_file, "--token-file", key="--token-file"), token_file, "--token-file")


def new_client(leader: str | None, token: str | None, source: Path | str = "token", key: str = "token") -> Client:
    """The client of a leader; what is not given is in the environment."""
    if token is None:
        token, source, key = os.environ.get(TOKEN, ""), f"${TOKEN}", TOKEN
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        message = f"{source} is not a token: one is a single word, as `paceline token create` gave it"
        raise InputError("not-a-token", message, key=key)
    return Client(leader or os.environ.get(LEADER) or DEFAULT, token or None)


class Client:
    """A leader at an address."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience: float = _PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or "@" in url:
            message = f"'{url}' is not the address of a leader; write it like {DEFAULT}"
            raise InputError("not-an-address", message, key="--leader", value=url)
        self.url = url.rstrip("/")
        self._patience, self._absent = patience, min(patience, _ABSENT)
        self._token = token
        self._sleep = sleep
        # A machine's own leader is never behind a proxy, and an answer never sends us, and our token, elsewhere.
        host = parts.hostname or ""
        try:
            is_here = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_here = host == "localhost"
        proxies = urllib.request.ProxyHandler({} if is_here else None)
        self._opener = urllib.request.build_opener(proxies, _NoRedirect)

    def be_patient(self, seconds: float) -> None:
        """Wait so long for a leader that is restarted."""
        self._patience = self._absent = seconds

    def get(self, path: str, **query: Any) -> Any:
        query = {key: value for key, value in query.items() if value not in (None, ())}
        return self._request("GET", path + (f"?{urlencode(query, doseq=True)}" if query else ""), None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Do something that may be said twice: a job has an id, and what is cancelled stays so."""
        return self._request("POST", path, body)

    def job(self, text: str) -> str:
        """The id of the job that a person means by `last`, an id, or the beginning of one."""
        jobs = self.get("/jobs", limit=500)["jobs"]
        if text == "last" and jobs:
            return str(jobs[0]["id"])
        matches = [job["id"] for job in jobs if job["id"].startswith(text)]
        if text in matches or not matches:
            return text
        if len(matches) > 1:
            message = f"'{text}' is the beginning of {len(matches)} jobs: {', '.join(matches[:5])}; type more of it"
            raise InputError("ambiguous-job", message, value=text)
        return str(matches[0])

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        begun = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._once(method, path, body)
            except NoLeader as error:
                wait = max(pause, error.again_after or 0.0)
                patience = self._absent if error.is_absent else self._patience
                if error.again_after is None or time.monotonic() + wait - begun > patience:
                    raise
            self._sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = b"" if method == "POST" else None
        if body is not None:
            try:
                data = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError) as error:  # a date in YAML, say
                raise InputError("not-json", f"the suite cannot be sent: {error}") from None
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, method=method)
        request.add_header("Accept", "application/json")
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return json.loads(answer.read(_LARGEST))
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except urllib.error.URLError as error:
            raise self._unreachable(error.reason) from None
        except (ValueError, RecursionError) as error:
            raise NoLeader(f"what answers at {self.url} is not a leader of Paceline: {error}") from None
        except (OSError, HTTPException) as error:  # it went away in the middle of an answer
            raise self._unreachable(error) from None

    def _refused(self, error: urllib.error.HTTPError) -> PacelineError:
        after = error.headers.get("Retry-After", "")
        again_after = None if error.code not in _AGAIN else float(after) if after.isdecimal() else 0.0
        with error:
            try:
                detail = json.loads(error.read(1 << 20))["error"]
                message = str(detail["message"])
            except (
                ValueError,
                LookupError,
                TypeError,
                OSError,
                RecursionError,
            ):  # a proxy, or a server that is too busy for more
                message = f"what answers at {self.url} is not a leader of Paceline: status {error.code}"
                return NoLeader(message, again_after)
        words = f"{message}; {detail['remedy']}" if detail.get("remedy") else message
        if again_after is not None or error.code >= 500:
            return NoLeader(f"the leader at {self.url}: {words}", again_after)
        fields = {name: detail.get(name) for name in ("case", "key", "value", "suggestion")}
        return InputError(str(detail.get("code", "refused")), words, **fields)

    def _unreachable(self, reason: object) -> NoLeader:
        if isinstance(reason, ssl.SSLError) and not isinstance(reason, ssl.SSLCertVerificationError):
            remedy = "a leader without --tls-cert has an address that begins with http://"
            return NoLeader(f"no TLS connection to the leader at {self.url} ({reason}): {remedy}")
        if isinstance(reason, ssl.SSLError):
            return NoLeader(f"the leader at {self.url} is not trusted: {reason}; $SSL_CERT_FILE names the certificate")
        why = getattr(reason, "strerror", None) or reason
        remedy = f"start one with `paceline leader`, or say where it is with --leader or ${LEADER}"
        return NoLeader(f"no leader answers at {self.url} ({why}): {remedy}", 0.0, is_absent=True)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None

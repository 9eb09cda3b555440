"""A server that somebody else runs, at an address that the user names."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import SplitResult, quote, urlsplit

from pydantic import field_validator

from paceline.core.errors import InputError
from paceline.core.network import OTHER_HOSTS, WORD, FromNetwork, shorten
from paceline.load.kserve import DATATYPES, TensorSpec
from paceline.load.kserve_grpc import METHOD as GRPC_METHOD
from paceline.load.request import LANGUAGE_PATHS, WIRE_HEADERS, Endpoint, Wire
from paceline.servers._any_http import AnyHttpSettings, resolved
from paceline.servers._program import HTTP_ERRORS, http_get
from paceline.servers.base import Artifact, Need, Server, ServerFailed, ServerSettings

ALLOWED = "PACELINE_ALLOWED_URLS"  # servers that cases from the network may use: addresses, separated by commas
_PORTS = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}
_ANTHROPIC = "api.anthropic.com"  # takes a key in one header alone; servers that imitate it look into either
_OPENAI = ("/v1", "/v3")  # the latter in OpenVINO Model Server
_POLL = 0.2  # seconds between checks whether it is ready


def _not_allowed(url: str) -> str:
    return "" if is_allowed(url) else f"= {shorten(url)} is not among the addresses in ${ALLOWED}"


class UrlSettings(AnyHttpSettings):
    """The address, the token for it, and the user's own requests."""

    url: Annotated[str, FromNetwork(_not_allowed)]
    """Address, like http://gpu7:8000, https://host/v1 or grpc://gpu7:8001"""
    model: Annotated[str, FromNetwork.matching(f"{WORD}(/{WORD})?")] = ""
    """What the server calls the model; wire http needs none"""
    metrics: Annotated[str | None, OTHER_HOSTS] = None
    """Address of its metrics in Prometheus' text, like http://gpu7:8002/metrics; unset is /metrics at its own"""
    token_env: Annotated[str | None, FromNetwork(never="names a secret of the machine")] = None
    """Environment variable that holds the bearer token"""
    token_file: Annotated[Path | None, FromNetwork(never="names a secret of the machine")] = None
    """File that holds the bearer token"""

    @field_validator("url", "metrics")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        # An address is stored with the results, so that nothing secret may be in it, or in this message.
        if "@" in url or "?" in url or "#" in url:
            raise ValueError("an address has no user, password or query; name the token with token_env or token_file")
        try:
            parts = urlsplit(url)
            usable = parts.scheme in _PORTS and parts.hostname and parts.port != 0 and url.isprintable()
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(f"'{url}' is not the address of a server; write it like http://gpu7:8000")
        return url


class Url(Server):
    """Gets requests, but is never started or stopped."""

    name = "url"
    summary = "a server that somebody else runs; KServe v2 over HTTP or gRPC, OpenAI-compatible, or any other HTTP"
    Settings = UrlSettings
    wires: ClassVar[tuple[Wire, ...]] = ("kserve-json", "kserve-binary", "kserve-grpc", *LANGUAGE_PATHS, "http")
    is_checkable: ClassVar[bool] = False  # it may have other weights
    is_remote: ClassVar[bool] = True

    settings: UrlSettings

    def __init__(self, settings: ServerSettings, need: Need, folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(settings, need, folder, say)
        self._parts = urlsplit(self.settings.url)
        self._tls = self._parts.scheme in ("https", "grpcs")
        self._is_grpc = self._parts.scheme.startswith("grpc")
        self._host = self._parts.hostname or ""
        self._port = self._parts.port or _PORTS[self._parts.scheme]
        self._base = self._parts.path.rstrip("/")
        self._headers: dict[str, str] = {}
        self._path = ""  # of wire http, after that of the address
        self._hidden: tuple[str, ...] = ()  # secrets, which no message may show
        self._platform: dict[str, Any] = {}
        self._started = False

    @classmethod
    def usual_wire(cls, settings: ServerSettings, model: str = "") -> Wire:
        assert isinstance(settings, UrlSettings)
        return "http" if settings.used else cls.wires[0]

    @classmethod
    def listens_at(cls, settings: ServerSettings) -> str:
        assert isinstance(settings, UrlSettings)
        return urlsplit(settings.url).hostname or ""

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        assert isinstance(settings, UrlSettings)
        if settings.token_env is not None and settings.token_file is not None:
            message = "token_env and token_file say the same thing; give one of them"
            raise InputError("conflicting-keys", message, key="server.token_file")
        if (settings.used or need.wire == "http") and not need.allow_import:
            message = "wire http: only a case that was started on this machine may say what is sent"
            raise InputError("not-from-network", message, key="wire", value="http")
        if need.wire == "http":
            cls._check_http(settings)
        elif settings.used:
            message = f"{', '.join(settings.used)}: only wire http takes it, not {need.wire}; leave out one of them"
            raise InputError("conflicting-keys", message, key=f"server.{settings.used[0]}")
        elif not settings.model:
            message = "server 'url': 'model' is missing; a server that speaks none of the protocols has wire: http"
            raise InputError("missing-key", message, key="server.model")
        if need.allow_import:
            return
        if settings.token_env is not None or settings.token_file is not None:
            message = "token_env, token_file: only a case that was started on this machine may read its secrets"
            given = "token_env" if settings.token_env is not None else "token_file"
            raise InputError("not-from-network", message, key=f"server.{given}")
        if not is_allowed(settings.url):
            message = f"url = '{settings.url}': this machine uses only the addresses in ${ALLOWED}"
            raise InputError("address-not-allowed", message, key="server.url", value=settings.url)

    @classmethod
    def _check_http(cls, settings: UrlSettings) -> None:
        if not settings.url.startswith("http"):
            message = f"url = '{settings.url}': wire http needs an address that starts with http:// or https://"
            raise InputError("wrong-scheme", message, key="server.url", value=settings.url)
        settings.check_request()

    def prepare(self) -> None:
        token = self._token()
        own, self._path, self._hidden = resolved(self.settings)
        self._headers = WIRE_HEADERS.get(self.need.wire, {}) | own
        if token:
            is_anthropic = self.need.wire == "anthropic-messages"
            if is_anthropic:
                self._headers["x-api-key"] = token
            if not is_anthropic or self._host != _ANTHROPIC:
                self._headers["authorization"] = f"Bearer {token}"
            self._hidden += (token,)

    def start(self) -> float:
        """Wait until it reports that it is ready, and read the description of its model."""
        begin = time.monotonic()
        self.say(f"asking {self._parts.netloc}")
        said = ""
        while (reason := self._why_not_ready()) is not None:
            if reason != said:
                self.say(f"waiting for {self._parts.netloc}: {reason}")
                said = reason
            if time.monotonic() - begin > self.settings.ready_timeout:
                raise ServerFailed(
                    f"{self.settings.url} was not ready after {self.settings.ready_timeout:g} s: {reason}; "
                    f"see that it runs, and that url and model are right"
                )
            time.sleep(_POLL)
        ready = time.monotonic() - begin
        if not self._is_grpc and not self._is_openai and self.need.wire != "http":
            self._read_metadata()
        self._started = True
        return ready

    def endpoint(self, wire: Wire) -> Endpoint:
        if (wire == "kserve-grpc") != self._is_grpc:
            needed = "grpc:// or grpcs://" if wire == "kserve-grpc" else "http:// or https://"
            message = f"url = '{self.settings.url}': {wire} needs an address that starts with {needed}"
            raise InputError("wrong-scheme", message, key="server.url", value=self.settings.url)
        path = GRPC_METHOD if wire == "kserve-grpc" else f"{self._model_path}/infer"
        if wire in LANGUAGE_PATHS:
            base = self._base if self._is_openai else f"{self._base}/v1"
            path = base + LANGUAGE_PATHS[wire].removeprefix("/v1")
        if wire == "http":
            path = self._base + self._path or "/"
        return Endpoint(
            wire=wire,
            host=self._host,
            port=self._port,
            path=path,
            model=self.settings.model,
            tls=self._tls,
            headers=self._headers,
            hidden=self._hidden,
            method=self.settings.effective_method if wire == "http" else "POST",
            expected=self.settings.expected(self._hidden) if wire == "http" else None,
        )

    def describe(self) -> dict[str, Any]:
        model = {"model": self.settings.model} if self.settings.model else {}
        return {"server": self.name, "url": self.settings.url} | model | self._platform

    @property
    def metrics_url(self) -> str:
        return self.settings.metrics or ""

    def is_alive(self) -> bool:
        return self._started

    def stop(self) -> None:
        self._started = False

    @property
    def _is_openai(self) -> bool:
        """An address that ends as those of language models do."""
        return self._base.endswith(_OPENAI)

    @property
    def _model_path(self) -> str:
        return f"{self._base}/v2/models/{quote(self.settings.model, safe='')}"

    def _token(self) -> str | None:
        settings = self.settings
        if settings.token_env is not None:
            key, token = "token_env", os.environ.get(settings.token_env, "").strip()
            empty = f"token_env: ${settings.token_env} is empty or not set"
        elif settings.token_file is not None:
            try:
                key, token = "token_file", settings.token_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                message = f"token_file = '{settings.token_file}' cannot be read: {error}"
                raise InputError("unreadable-file", message, key="server.token_file") from None
            empty = f"token_file = '{settings.token_file}' is empty"
        else:
            return None
        if not token:
            raise InputError("empty-token", empty, key=f"server.{key}")
        if not (token.isascii() and token.isprintable()):  # neither message nor value may show it
            raise InputError("invalid-token", f"{key}: the token is not a single line of ASCII", key=f"server.{key}")
        return token

    def _why_not_ready(self) -> str | None:
        if self._is_grpc:
            return _grpc_problem(self._host, self._port, self._tls)
        if self.need.wire == "http":  # what it answers is seen when it is asked for the first time
            return _tcp_problem(self._host, self._port)
        path = f"{self._base}/models" if self._is_openai else f"{self._model_path}/ready"
        status, _ = self._get(path)
        if isinstance(status, str):
            return status
        if status == 404 and not self._is_openai:  # it may be a server of language models without /v1 in its address
            other, _ = self._get(f"{self._base}/v1/models")
            if other == 200:
                self._base += "/v1"
                return None
        if 300 <= status < 400:
            raise ServerFailed(f"{self.settings.url} redirects to an address that is not followed; name that one")
        if status in (401, 403):
            raise ServerFailed(f"{self.settings.url} refuses with {status}; name a token with token_env or token_file")
        return None if status == 200 else f"it answers {status} to {path}"

    def _read_metadata(self) -> None:
        """Inputs and outputs of the model, as the server describes them."""
        status, body = self._get(self._model_path)
        try:
            metadata = json.loads(body) if status == 200 else {}
            inputs = tuple(_tensor(entry) for entry in metadata.get("inputs") or [])
            outputs = tuple(_tensor(entry) for entry in metadata.get("outputs") or [])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ServerFailed(
                f"{self.settings.url} describes its model in a way that is not understood: {error}"
            ) from None
        if inputs:
            need = self.need
            self.artifact = Artifact(
                need.model,
                need.scale,
                "eager",
                need.precision,
                need.seed,
                None,
                inputs,
                outputs,
                given_inputs=need.inputs,
            )
        if isinstance(metadata.get("platform"), str):
            self._platform = {"platform": metadata["platform"][:200]}

    def _get(self, path: str) -> tuple[int | str, bytes]:
        """Status and body, or why there is none."""
        try:
            return http_get(self._host, self._port, path, tls=self._tls, headers=self._headers)
        except socket.gaierror as error:  # waiting does not help
            message = f"{self.settings.url}: the host '{self._host}' was not found ({error}); correct server.url"
            raise ServerFailed(message) from None
        except HTTP_ERRORS as error:
            return f"{type(error).__name__}: {error}", b""


def is_allowed(url: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the owner of this machine lets others use this address through it."""
    origin = _origin(urlsplit(url))
    allowed = [urlsplit(one.strip()) for one in environment.get(ALLOWED, "").split(",") if one.strip()]
    return any(_origin(one) == origin for one in allowed if one.scheme in _PORTS and one.hostname)


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)


def _tensor(entry: Mapping[str, Any]) -> TensorSpec:
    name, datatype, shape = entry["name"], entry["datatype"], entry["shape"]
    if datatype not in DATATYPES:
        raise ValueError(
            f"the tensor '{str(name)[:100]}' has the datatype '{str(datatype)[:40]}', which is not supported"
        )
    return TensorSpec(str(name), datatype, tuple(int(size) for size in shape[1:]))


def _tcp_problem(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _grpc_problem(host: str, port: int, tls: bool) -> str | None:
    import grpc

    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options = [("grpc.enable_http_proxy", 0)]
    if tls:
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
    else:
        channel = grpc.insecure_channel(target, options)
    with channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=2)
        except grpc.FutureTimeoutError:
            return f"there is no answer at {target}"
    return None

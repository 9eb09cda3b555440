"""A server that somebody else runs: what it tells is learnt, secrets stay secret, no other address is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline.core.errors import InputError
from paceline.load.kserve import TensorSpec
from paceline.load.request import Wire
from paceline.servers.base import Need, ServerFailed
from paceline.servers.url import ALLOWED, Url, UrlSettings, is_allowed
from support.refused import refused

LOCAL = Need(model="resnet18", allow_import=True)
NETWORK = Need(model="resnet18", allow_import=False)
SECRET = "sesame-0123456789"
METADATA = {
    "name": "m",
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 8]}],
    "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1]}],
}


class Scripted(BaseHTTPRequestHandler):
    """Answers by path, and remembers what it was asked."""

    answers: ClassVar[dict[str, tuple[int, object]]] = {}
    asked: ClassVar[list[tuple[str, dict[str, str]]]] = []
    wants_token: ClassVar[bool] = False

    def do_GET(self) -> None:
        self.asked.append((self.path, dict(self.headers)))
        status, body = self.answers.get(self.path, (404, {}))
        if self.wants_token and self.headers.get("authorization") != f"Bearer {SECRET}":
            status, body = 401, {}
        text = json.dumps(body).encode()
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def somebody() -> Iterator[str]:
    """The address of somebody's server."""
    Scripted.answers, Scripted.asked, Scripted.wants_token = {}, [], False
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def made(url: str, folder: Path, need: Need = LOCAL, **settings: Any) -> Url:
    read = UrlSettings.read({"kind": "url", "url": url, "model": "m", "ready_timeout": 0.5} | settings)
    Url.check(read, need)
    return Url(read, need, folder, lambda _: None)


def started(url: str, folder: Path, **settings: Any) -> Url:
    server = made(url, folder, **settings)
    server.prepare()
    server.start()
    return server


def test_the_inputs_are_those_that_the_server_tells(somebody: str, tmp_path: Path) -> None:
    Scripted.answers = {"/v2/models/m/ready": (200, {}), "/v2/models/m": (200, METADATA)}
    server = started(somebody, tmp_path)
    assert server.artifact is not None
    assert server.artifact.inputs == (TensorSpec("x", "FP32", (3, 8)),)
    assert server.artifact.outputs == (TensorSpec("y", "INT64", ()),)
    endpoint = server.endpoint("kserve-binary")
    assert (endpoint.path, endpoint.model, endpoint.tls) == ("/v2/models/m/infer", "m", False)
    assert server.describe() == {"server": "url", "url": somebody, "model": "m", "platform": "onnxruntime_onnx"}
    assert server.is_alive()
    assert server.processes() == []
    server.stop()
    assert not server.is_alive()


@pytest.mark.parametrize("suffix", ["", "/v1", "/v1/"])
def test_a_server_of_language_models_is_known_by_its_models(somebody: str, tmp_path: Path, suffix: str) -> None:
    Scripted.answers = {"/v1/models": (200, {"data": []})}
    server = started(somebody + suffix, tmp_path)
    assert server.endpoint("openai-chat").path == "/v1/chat/completions"
    assert server.endpoint("openai-completions").path == "/v1/completions"


def test_openvino_model_server_has_the_interface_of_openai_at_another_path(somebody: str, tmp_path: Path) -> None:
    Scripted.answers = {"/v3/models": (200, {"data": []})}
    assert started(f"{somebody}/v3", tmp_path).endpoint("openai-chat").path == "/v3/chat/completions"


def test_a_name_with_a_slash_stays_one_part_of_the_path(somebody: str, tmp_path: Path) -> None:
    Scripted.answers = {"/v2/models/a%2Fb/ready": (200, {}), "/v2/models/a%2Fb": (200, METADATA)}
    assert started(somebody, tmp_path, model="a/b").endpoint("kserve-json").path == "/v2/models/a%2Fb/infer"


@pytest.mark.parametrize("by", ["token_env", "token_file"])
def test_the_token_is_sent_and_shown_nowhere(
    somebody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    Scripted.answers = {"/v2/models/m/ready": (200, {}), "/v2/models/m": (200, METADATA)}
    Scripted.wants_token = True
    (tmp_path / "token").write_text(f"{SECRET}\n")
    monkeypatch.setenv("THEIR_TOKEN", SECRET)
    value = "THEIR_TOKEN" if by == "token_env" else str(tmp_path / "token")
    server = started(somebody, tmp_path, **{by: value})
    endpoint = server.endpoint("kserve-json")
    assert endpoint.headers["authorization"] == f"Bearer {SECRET}"
    shown = f"{endpoint!r} {server.describe()} {server.settings!r} {server.settings.model_dump()} {server.logs()}"
    assert SECRET not in shown


def test_anthropics_messages_have_their_version_and_key_when_the_models_are_asked_for(
    somebody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_TOKEN", SECRET)
    need = Need(model="m", allow_import=True, wire="anthropic-messages")
    Scripted.answers = {"/v1/models": (200, {"data": []})}
    server = made(f"{somebody}/v1", tmp_path, need, token_env="THEIR_TOKEN")
    server.prepare()
    server.start()
    both = {"anthropic-version": "2023-06-01", "x-api-key": SECRET, "authorization": f"Bearer {SECRET}"}
    ((_, asked),) = Scripted.asked
    assert {name.lower(): value for name, value in asked.items()}.items() >= both.items()
    theirs = made("https://api.anthropic.com/v1", tmp_path, need, token_env="THEIR_TOKEN")
    theirs.prepare()
    headers = theirs.endpoint("anthropic-messages").headers
    assert headers == {name: value for name, value in both.items() if name != "authorization"}


def test_without_a_token_the_refusal_says_what_to_do(somebody: str, tmp_path: Path) -> None:
    Scripted.wants_token = True
    with pytest.raises(ServerFailed, match="refuses with 401; name a token with token_env or token_file"):
        started(somebody, tmp_path)


def test_a_redirect_is_not_followed(somebody: str, tmp_path: Path) -> None:
    Scripted.answers = {"/v2/models/m/ready": (307, {}), "/elsewhere": (200, {})}
    with pytest.raises(ServerFailed, match="redirects to an address that is not followed"):
        started(somebody, tmp_path)
    assert "/elsewhere" not in [path for path, _ in Scripted.asked]


def test_proxies_of_the_environment_are_not_asked(
    somebody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.answers = {"/v2/models/m/ready": (200, {}), "/v2/models/m": (200, METADATA)}
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    started(somebody, tmp_path)


def test_nobody_there_is_told_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"127.0.0.1:1 was not ready after 0.5 s: ConnectionRefusedError"):
        started("http://127.0.0.1:1", tmp_path)


@pytest.mark.parametrize(
    "told", [[], {"inputs": [{"name": "x"}]}, {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1]}]}]
)
def test_a_strange_description_is_refused(somebody: str, tmp_path: Path, told: object) -> None:
    Scripted.answers = {"/v2/models/m/ready": (200, {}), "/v2/models/m": (200, told)}
    with pytest.raises(ServerFailed, match="is not understood"):
        started(somebody, tmp_path)


@pytest.mark.parametrize("wire", ["kserve-grpc", "kserve-json"])
def test_the_way_must_fit_the_address(tmp_path: Path, wire: Wire) -> None:
    url = "http://127.0.0.1:1" if wire == "kserve-grpc" else "grpc://127.0.0.1:1"
    with refused("wrong-scheme", key="server.url", value=url):
        made(url, tmp_path).endpoint(wire)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gpu7:8000", "is not the address"),
        ("ftp://gpu7", "is not the address"),
        ("http://", "is not the address"),
        ("http://gpu7:0", "is not the address"),
        ("http://gpu7:99999", "is not the address"),
        (f"http://me:{SECRET}@gpu7", "has no user, password or query"),
        (f"http://gpu7/?key={SECRET}", "has no user, password or query"),
    ],
)
def test_an_address_that_is_none_or_has_a_secret_is_refused(tmp_path: Path, url: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        made(url, tmp_path)
    assert SECRET not in str(caught.value)


def test_a_token_that_is_not_there_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THEIR_TOKEN", raising=False)
    with refused("empty-token", key="server.token_env", says=r"\$THEIR_TOKEN"):
        made("http://gpu7", tmp_path, token_env="THEIR_TOKEN").prepare()
    with refused("unreadable-file", key="server.token_file"):
        made("http://gpu7", tmp_path, token_file=str(tmp_path / "none")).prepare()
    with refused("conflicting-keys", key="server.token_file"):
        made("http://gpu7", tmp_path, token_env="A", token_file="b")


def test_a_token_of_two_lines_is_refused_without_being_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_TOKEN", f"{SECRET}\r\nX-Evil: 1")
    with pytest.raises(InputError) as caught:
        made("http://gpu7", tmp_path, token_env="THEIR_TOKEN").prepare()
    assert (caught.value.code, caught.value.key) == ("invalid-token", "server.token_env")
    assert SECRET not in repr(vars(caught.value))


def test_from_the_network_only_allowed_addresses_are_asked_and_no_secrets_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOWED, raising=False)
    with refused("address-not-allowed", key="server.url", value="http://gpu7:8000"):
        made("http://gpu7:8000", tmp_path, NETWORK)
    monkeypatch.setenv(ALLOWED, "http://gpu8:8000, http://gpu7:8000")
    made("http://gpu7:8000/v1", tmp_path, NETWORK)
    with refused("not-from-network", key="server.token_env"):
        made("http://gpu7:8000", tmp_path, NETWORK, token_env="HOME")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://gpu7", True),
        ("http://gpu7:80/path", True),
        ("http://GPU7", True),
        ("https://gpu7", False),
        ("http://gpu7:81", False),
        ("http://gpu77", False),
        ("http://gpu7.evil.example", False),
    ],
)
def test_an_allowed_address_is_scheme_host_and_port(url: str, allowed: bool) -> None:
    assert is_allowed(url, {ALLOWED: "http://gpu7,nonsense"}) is allowed


def test_a_host_that_nobody_knows_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"the host 'gpu7\.invalid' was not found .*correct server\.url"):
        started("http://gpu7.invalid:8000/v1", tmp_path, ready_timeout="1h")

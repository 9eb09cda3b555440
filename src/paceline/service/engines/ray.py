"""Followers on the nodes of a Ray cluster: one actor on each, which outlives the leader; the only file that uses Ray.

A node is a follower if it offers the resource `paceline`. Its actor is named after the node and detached, so that a
leader that comes back finds it, and what it measures, where it was. All calls go through `_answer`, which waits for a
second or two and no longer. What an actor answers is believed if it has the token of its follower.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from paceline.core.errors import InputError, MissingDependency
from paceline.core.files import data_directory, private_directory, write_atomic
from paceline.core.interrupt import catch_interrupts
from paceline.devices import visible_variables
from paceline.service.credentials import Answer, read_token, signed
from paceline.service.engines import EngineKind, EngineOptions
from paceline.service.engines.base import Assignment, AttemptKey, AttemptReport, FollowerGone, FollowerState
from paceline.service.follower.worker import Worker
from paceline.store import codec

RESOURCE = "paceline"
NAMESPACE = "paceline"
FOLDER, LABELS = "PACELINE_FOLLOWER_FOLDER", "PACELINE_FOLLOWER_LABELS"  # of a node, for its actor
OWN_TOKEN = "PACELINE_FOLLOWER_TOKEN_FILE"  # likewise; not of the cluster, but of the follower
TOKEN = "ray-token"
_LEADERS_TOKEN = "own-token"  # of the follower that comes with a cluster that is started here
_FIRST_WITH_TOKENS = [2, 52]  # an older one ignores the settings and lets everybody in
_PATIENCE = 1.5  # seconds that a follower has to answer
_LOOK_SECONDS = 1.0  # between two looks at the list of nodes
_START_SECONDS = 120.0  # that Ray has to come up
_TRIES = 3  # to start Ray, which gives up after half a minute on a busy machine
_PORTS = 50  # of a node, one after the other from that of the cluster on, so that a firewall can name them
_OBJECTS = 100 << 20  # bytes of memory for Ray's objects, of which there are hardly any
_LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for a mistake and uses the public interface
_NOT_OURS = "OMP_NUM_THREADS"  # that Ray sets for what it starts, like the visible devices, and would be measured

_log = logging.getLogger(__name__)


class RayFollower(Worker):
    """The actor of a node: a worker whose spool is a folder of that node."""

    def __init__(self, name: str) -> None:
        # What is measured here must not inherit what Ray sets for its own sake, but what the node was started with.
        with suppress(psutil.Error):
            node = psutil.Process().parent()
            original = node.environ() if node is not None else {}
            for variable in (_NOT_OURS, *visible_variables()):
                os.environ.pop(variable, None)
                if variable in original:
                    os.environ[variable] = original[variable]
        folder = Path(os.environ.get(FOLDER) or data_directory() / "followers" / name)
        labels = tuple(filter(None, os.environ.get(LABELS, "").split(",")))
        super().__init__(folder, name, labels, address=_ray().util.get_node_ip_address())

    def introduce(self, nonce: bytes) -> Answer:
        """What this machine has, with the proof that it is the one of this name."""
        return self._signed(self.describe().model_dump(), nonce)

    def report(self, nonce: bytes, acknowledged: Mapping[AttemptKey, int]) -> Answer:
        """What `poll` gives, with the same proof."""
        return self._signed([report.model_dump() for report in self.poll(acknowledged)], nonce)

    def _signed(self, value: Any, nonce: bytes) -> Answer:
        token = ""
        with suppress(InputError):  # who has none is refused by the leader, which says so
            token = read_token(Path(os.environ.get(OWN_TOKEN, "")))  # each time: it may be replaced
        return signed(codec.dumps(value).encode(), token, self.name, nonce)


@dataclass(frozen=True)
class _Question:
    """A call to an actor, and the number by which its answer is known to be new."""

    nonce: bytes
    answer: Any


@dataclass
class _Node:
    """A node with its actor, as far as it was reached."""

    id: str
    actor: Any
    state: FollowerState | None = None
    described: _Question | None = None  # the call to describe itself that it has not answered yet
    polled: _Question | None = None
    refused: str = ""  # why its last answer was not believed


class RayEngine:
    """Actors on the nodes of a Ray cluster, which exists already or is started here."""

    def __init__(self, options: EngineOptions) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}  # by name
        self._looked_at = -math.inf
        self._head: psutil.Process | None = None
        self.address = options.address
        self.invitation = ""
        self._credentials = options.credentials
        if not self.address:
            host = _LOOPBACK if options.host in ("127.0.0.1", "localhost") else options.host
            self.address = f"{host}:{options.port}"
            private_directory(options.folder)
            # Before Ray is imported, as it reads them only then.
            token = make_token(options.folder / TOKEN)
            os.environ.update(token_settings(token))
            own = " --own-token-file FILE" if self._credentials.are_needed else ""
            self.invitation = f"paceline follower --leader {self.address} --token-file {token}{own}"
            _ray()
            self._head = _head(replace(options, host=host), self.address)
            own_token = read_token(make_token(options.folder / _LEADERS_TOKEN))
            self._credentials = options.credentials.with_own(_own_name(), own_token)
        self._ray = ray = _ray()
        # Ray takes the machine's public address for its own unless it is given another one.
        more = {"_node_ip_address": self.address.rpartition(":")[0]} if self.address.startswith("127.") else {}
        try:
            ray.init(
                address=self.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **more
            )
        except Exception as error:  # Ray has one for each of its parts
            message = (
                f"the Ray cluster at {self.address} cannot be joined: {_first_line(error)}; start one on this machine "
                f"with `ray start`, and set RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH as it was started with"
            )
            raise InputError("cannot-join-cluster", message, value=self.address) from error

    def followers(self) -> Sequence[FollowerState]:
        """The nodes that offer themselves and whose actor has answered once, and those that are not believed.

        While Ray is away, those of before.
        """
        with self._lock:
            if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                self._look()
                self._looked_at = time.monotonic()
            states = []
            for name, node in self._nodes.items():
                refused, now = self._why_refused(name, node), datetime.now(UTC)
                state = node.state or (FollowerState(id=name, host=name, cpus=0, seen_at=now) if refused else None)
                if state is not None:
                    states.append(state.model_copy(update={"seen_at": now, "refused": refused}))
            return states

    def begin(self, follower: str, assignment: Assignment) -> None:
        self._credentials.refresh()  # whose token was revoked a moment ago is given nothing
        self._answer(self._node(follower).actor.begin.remote(assignment))

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        """What there is to report; a call that is still open is waited for, not made again."""
        node = self._node(follower)
        polled = node.polled or _ask(node.actor.report, acknowledged)
        node.polled = None
        try:
            reports = self._believed(follower, node, polled)
        except _Silent:
            node.polled = polled
            raise
        return [AttemptReport.model_validate(report) for report in reports]

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        self._answer(self._node(follower).actor.cancel.remote(job_id, attempt))

    def close(self) -> None:
        """Leave the cluster; one that was started here ends, and what it measures reports to the next leader."""
        self._ray.shutdown()
        if self._head is not None:
            _end(self._head)

    def _look(self) -> None:
        """Bring the nodes up to date; actors come up in their own time, and who was not believed may try again."""
        self._credentials.refresh()
        alive = self._alive()
        if alive is None:
            return
        for name in set(self._nodes) - set(alive):
            del self._nodes[name]
        for name, node in alive.items():
            if name not in self._nodes or self._nodes[name].id != node["NodeID"]:
                self._nodes[name] = _Node(node["NodeID"], self._actor(name, node))
        for name, reached in self._nodes.items():
            if reached.state is not None and not reached.refused:
                continue
            if not hasattr(reached.actor, "introduce"):  # it was started before Paceline was updated
                reached.refused = "it runs an earlier version of Paceline: start it again"
                continue
            if reached.described is None:
                reached.described = _ask(reached.actor.introduce)
            if self._ray.wait([reached.described.answer], timeout=0)[0]:
                described, reached.described = reached.described, None
                with suppress(FollowerGone):
                    reached.state = FollowerState.model_validate(
                        self._believed(name, reached, described) | {"id": name}
                    )

    def _alive(self) -> dict[str, dict[str, Any]] | None:
        """Nodes by name, and None if Ray does not answer.

        Of two with one name the one that was listed before, unless that was not believed.
        """
        listed: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: listed.extend([{}, *self._ray.nodes()]), daemon=True)
        asking.start()
        asking.join(_PATIENCE)
        if not listed:
            _log.warning("Ray does not list its nodes")
            return None
        alive: dict[str, dict[str, Any]] = {}
        for node in list(listed[1:]):
            if node["Alive"] and node["Resources"].get(RESOURCE):
                name = node.get("NodeName") or node["NodeManagerHostname"]
                earlier = self._nodes.get(name)
                is_earlier = earlier is not None and earlier.id == node["NodeID"]
                is_other = earlier is not None and not is_earlier
                if name not in alive or (is_other if earlier is not None and earlier.refused else is_earlier):
                    alive[name] = node
        return alive

    def _actor(self, name: str, node: Mapping[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = self._ray.remote(RayFollower).options(
            name=f"{name}-{node['NodeID']}",
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=4,  # a poll that waits for a slow disk does not hold up a cancel
            num_cpus=0,
            num_gpus=int(node["Resources"].get("GPU", 0)),  # all of them: no work of others runs alongside
            resources={RESOURCE: 1},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        return actor.remote(name)

    def _node(self, follower: str) -> _Node:
        with self._lock:
            node = self._nodes.get(follower)
        if node is None:
            raise FollowerGone(f"no node of the Ray cluster is called '{follower}'")
        if refused := self._why_refused(follower, node):
            raise FollowerGone(f"it is refused: {refused}")
        return node

    def _why_refused(self, follower: str, node: _Node) -> str:
        return self._credentials.why_refused(follower) or node.refused

    def _believed(self, follower: str, node: _Node, question: _Question) -> Any:
        """What a follower answered, if it has proven that it is the one of this name."""
        answer: Answer = self._answer(question.answer)
        node.refused = self._credentials.why_not_believed(follower, question.nonce, answer)
        if node.refused:
            raise FollowerGone(f"it is refused: {node.refused}")
        return codec.loads(answer.body)

    def _answer(self, call: Any) -> Any:
        try:
            return self._ray.get(call, timeout=_PATIENCE)
        except self._ray.exceptions.GetTimeoutError:
            raise _Silent(f"it did not answer within {_PATIENCE:g} s") from None
        except Exception as error:  # an actor that died, a node that is gone, or what the worker there raised
            raise FollowerGone(_first_line(getattr(error, "cause", None) or error)) from error


class _Silent(FollowerGone):
    """It may answer yet."""


def _ask(call: Any, *arguments: Any) -> _Question:
    nonce = secrets.token_bytes(16)
    return _Question(nonce, call.remote(nonce, *arguments))


def join(
    address: str,
    token: Path,
    name: str,
    labels: Sequence[str],
    own_address: str = "",
    own_token: Path | None = None,
) -> int:
    """Make this machine a follower of the cluster there, until that ends or the user stops it; Ray's exit code."""
    _ray()
    environment = os.environ | token_settings(token) | {LABELS: ",".join(labels)}
    if own_token is not None:
        environment[OWN_TOKEN] = str(own_token)
    host, _, port = address.rpartition(":")
    where = [f"--address={address}"]
    if own_address or address.startswith("127."):
        where.append(f"--node-ip-address={own_address or host}")
    catch_interrupts()
    for _ in range(_TRIES):
        begun = time.monotonic()
        command = [*_ray_start(name, int(port)), *where]
        child = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            code = child.wait()
        except KeyboardInterrupt:
            return 130
        finally:
            _end(child)
        if code == 0 or time.monotonic() - begun > _START_SECONDS:
            break  # it had joined, and the cluster is gone
        _log.warning("Ray did not come up; on a busy machine that may take another try")
    return code


def make_token(path: Path) -> Path:
    """The secret that all nodes of a cluster share; made where there is none."""
    if not path.exists():
        private_directory(path.parent)
        created = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(created, "w") as file:
            file.write(secrets.token_hex(32))
    return path


def token_settings(path: Path) -> dict[str, str]:
    """The settings that make Ray talk only to those who have the secret."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingDependency("ray", "install it with `pip install '.[cluster]'`") from None
    version = [int(number) for number in re.findall(r"\d+", ray.__version__)[:2]]
    if version < _FIRST_WITH_TOKENS:
        message = (
            f"Ray {ray.__version__} has no tokens: whoever reaches its ports could run anything here; "
            f"install at least {'.'.join(map(str, _FIRST_WITH_TOKENS))} with `pip install '.[cluster]'`"
        )
        raise InputError("ray-without-tokens", message, value=ray.__version__)
    return ray


def _ray_start(name: str, port: int) -> list[str]:
    """The beginning of the command that makes this machine a node; it stays in the foreground."""
    node_manager, object_manager, *workers = _node_ports(port)
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        f"--node-name={name}",
        f"--resources={json.dumps({RESOURCE: 1})}",
        f"--object-store-memory={_OBJECTS}",
        "--num-cpus=1",  # Ray keeps a process with a port for each, and the follower's needs none
        f"--node-manager-port={node_manager}",
        f"--object-manager-port={object_manager}",
        f"--worker-port-list={','.join(map(str, workers))}",
        "--dashboard-agent-listen-port=0",  # nobody asks there, and two nodes may share a machine
    ]


def _node_ports(port: int) -> list[int]:
    """Those of the first block after the cluster's port that no other node of this machine has, as far as free."""
    for first in range(port + 1, 2**16 - _PORTS, _PORTS):
        if _is_free(first):
            return [first, *filter(_is_free, range(first + 1, first + _PORTS))]
    message = f"Ray needs {_PORTS} free ports above {port}, and there are none: give the cluster a lower port"
    raise InputError("no-free-ports", message, value=port)


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was closed a minute ago is free
        try:
            tried.bind(("", port))
        except OSError:
            return False
        return True


def _head(options: EngineOptions, address: str) -> psutil.Process:
    """The process that keeps the cluster: that of an earlier leader if it is alive, otherwise a new one."""
    note, log = options.folder / "ray-head.json", options.folder / "ray-head.log"
    with suppress(OSError, ValueError, KeyError, psutil.NoSuchProcess):
        noted = json.loads(note.read_text(encoding="utf-8"))
        process = psutil.Process(noted["pid"])
        if noted["address"] == address and process.create_time() == noted["started"]:
            return process
    where = ["--head", "--include-dashboard=false", f"--node-ip-address={options.host}", f"--port={options.port}"]
    own_token = make_token(options.folder / _LEADERS_TOKEN)
    environment = os.environ | {
        LABELS: ",".join(options.labels),
        FOLDER: str(options.folder / "follower"),
        OWN_TOKEN: str(own_token),
    }
    for _ in range(_TRIES):
        command = [*_ray_start(_own_name(), options.port), *where]
        with log.open("wb") as output:
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while child.poll() is None and time.monotonic() < deadline:
            if "Ray runtime started" in log.read_text(errors="replace"):
                process = psutil.Process(child.pid)
                write_atomic(note, json.dumps({"pid": child.pid, "started": process.create_time(), "address": address}))
                return process
            time.sleep(0.1)
        _end(child)
    words = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
    raise InputError("cluster-did-not-start", f"Ray did not start at {address}: {words}; see {log}", value=address)


def _own_name() -> str:
    """Of the follower on the leader's own machine."""
    return socket.gethostname() or "leader"


def _end(process: psutil.Process | subprocess.Popen[bytes]) -> None:
    """End Ray's own processes of a node: the group of the one that started them."""
    with suppress(psutil.NoSuchProcess):
        process.terminate()  # it ends the others
        with suppress(psutil.TimeoutExpired, subprocess.TimeoutExpired):
            process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):
        process.wait()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


ENGINE = EngineKind("ray", RayEngine)

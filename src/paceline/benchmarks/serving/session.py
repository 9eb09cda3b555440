"""One server under test: started, warmed up, asked in several ways, and ended whatever happens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from paceline.benchmarks.serving import metrics, trace_metrics
from paceline.benchmarks.serving.answers import Answers
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.requests import made_requests
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import CaseError, InputError
from paceline.core.record import Measurement
from paceline.load.calibrate import Ceiling, Kind, calibrate
from paceline.load.clients import ClientHosts
from paceline.load.cpu_placement import Place, on_cores
from paceline.load.generator import drive
from paceline.load.network import Cable, connected, link_of
from paceline.load.parameters import LoadParameters
from paceline.load.request import Endpoint, Prepared
from paceline.load.trace import Trace
from paceline.servers import registry
from paceline.servers.base import Need, Server, ServerFailed

STEADY = 0.1  # of the median: an answer this near to the later ones counts as steady
WARM_UP_USERS = 4
KEPT_ANSWERS = 1  # of each kind


@dataclass
class Session:
    """A running server, and all that is needed to ask it."""

    parameters: ServeParameters
    context: Context
    server: Server
    endpoint: Endpoint
    requests: list[Prepared]
    streaming: bool
    place: Place
    ceiling: Ceiling
    answers: Answers | None
    clients: ClientHosts | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    cold_start: list[Measurement] = field(default_factory=list)
    first_rate: float = 1.0  # requests/s that a few users who wait for their answers got
    _sends: int = 0

    @property
    def most_rate(self) -> float:
        """Requests per second that the load generator was seen to send, on all cores that it has."""
        return self.clients.most if self.clients is not None else self.ceiling.rate * len(self.place.load)

    def send(self, load: LoadParameters, phase: str, *, is_measured: bool = False) -> Trace:
        """One load; ServerFailed if the server died under it."""
        self.context.report(Progress(phase=phase))
        self._sends += 1
        trace = drive(
            self.endpoint,
            self.requests,
            load,
            seed=self.parameters.seed + self._sends,  # or every load of a search would be the same one
            workers=self.parameters.workers,
            cpus=self.place.load,
            hosts=self.clients,
            timeout=self.parameters.timeout_per_request,
            streaming=self.streaming,
            keep=KEPT_ANSWERS if self.answers is not None else 0,
            on_answer=self.answers,
            go_on=self.server.is_alive,
        )
        if trace.ok.any() and is_measured:
            latencies = tuple(float(one) for one in trace.latency[trace.ok])
            self.context.report(Progress(phase, metrics.LATENCY.name, metrics.LATENCY.unit, latencies))
        if self.clients is not None:
            self.clients.require_all(trace)
        if not self.server.is_alive():
            answered = int(trace.ok.sum())
            raise ServerFailed(
                f"the server ended while it was asked: {answered} of {len(trace)} requests were answered, "
                f"{len(trace) - answered} were not",
                self.server.logs(),
            )
        return trace


@contextmanager
def opened(parameters: ServeParameters, context: Context) -> Iterator[Session]:
    """Everything up to the first measured request; the server ends with the block."""
    place = Place.of_machine(parameters.workers)
    kind = registry().get(parameters.server.kind)
    need = Need(
        model=parameters.model,
        scale=parameters.scale,
        precision=parameters.precision,
        device=context.target,
        seed=parameters.seed,
        allow_import=context.case.origin == "local",
        wire=parameters.chosen_wire,
        form=parameters.requests.read_by_server,
    )

    def say(phase: str) -> None:
        context.report(Progress(phase=phase))

    with (
        TemporaryDirectory(prefix="paceline-serve-") as folder,
        _clients(parameters, place, say) as clients,
        _cable(parameters.load) as cable,
    ):
        if clients is not None and not clients.is_on_this_machine:
            place = Place.without_load()
        settings = parameters.server.settings()
        if cable is not None:
            settings = settings.model_copy(update={"host": cable.address})
        server = kind(settings, need, Path(folder), say)
        try:
            say("preparing the model")
            server.prepare()
            say("starting the server")
            with on_cores(place.server), cable.other_end() if cable is not None else nullcontext():
                started = server.start()
            endpoint = server.endpoint(parameters.chosen_wire)
            if clients is not None:
                clients.require_reach(endpoint)
            made = made_requests(parameters, server, endpoint, allow_import=need.allow_import)
            say("calibrating the load generator")
            sent = Kind.of(endpoint, made.prepared)
            ceiling = _ceiling(clients, place, sent, _needed(parameters))
            session = Session(
                parameters,
                context,
                server,
                endpoint,
                made.prepared,
                made.streaming,
                place,
                ceiling,
                made.answers,
                clients,
            )
            session.facts |= _facts(session, made.source, sent)
            _warm_up(session, started.ready)
            yield session
        except (CaseError, InputError) as error:
            if not getattr(error, "detail", ""):
                error.detail = server.logs()  # type: ignore[union-attr]
            raise
        finally:
            server.stop()


@contextmanager
def _clients(parameters: ServeParameters, place: Place, say: Callable[[str], None]) -> Iterator[ClientHosts | None]:
    """The hosts that were named; None where this machine sends."""
    if not parameters.clients.hosts:
        yield None
        return
    say("entering the client hosts")
    with ClientHosts.reached(parameters.clients.hosts, parameters.clients.shell(), place) as clients:
        yield clients


@contextmanager
def _cable(load: LoadParameters | None) -> Iterator[Cable | None]:
    """The network that the kernel emulates; None where nobody or the client does."""
    if load is None or load.network is None or load.network_by != "tc":
        yield None
        return
    with connected(link_of(load.network)) as cable:
        yield cable


def _needed(parameters: ServeParameters) -> float:
    """Requests per second of the load, where that is known: a search, and users who wait, send as fast as they can."""
    load = parameters.load
    if load is None or load.loop != "open":
        return math.inf
    return load.schedule(np.random.default_rng(parameters.seed)).peak_rate  # about that of the load itself


def _ceiling(clients: ClientHosts | None, place: Place, sent: Kind, needed: float) -> Ceiling:
    if clients is None:
        return calibrate((place.load[0], place.server[0]), sent, needed=needed)
    clients.calibrate(sent)
    return clients.weakest


def _warm_up(session: Session, ready: float) -> None:
    """Ask until answers are steady, or the time for it is over; how long that took is the rest of the cold start."""
    first = session.send(LoadParameters(arrival="single-stream", requests=1), "first answer")
    if not first.ok.any():
        raise ServerFailed(f"the first request failed: {describe_status(int(first.status[0]))}", session.server.logs())
    latency = float(first.latency[0])
    session.first_rate = 1.0 / latency
    parts = {"process to ready": ready, "ready to first answer": latency}
    if session.parameters.warm_up > 0:
        load = LoadParameters(arrival="closed", users=WARM_UP_USERS, duration=session.parameters.warm_up)
        trace = session.send(load, "warming up")
        steady = _until_steady(trace)
        if steady is not None:
            parts["first answer to steady"] = steady
        if trace.ok.any():  # or there is no time in which something was answered
            session.first_rate = float(trace.ok.sum()) / trace_metrics.seconds_of(trace)
    session.cold_start = [
        Measurement.of_value(metrics.COLD_START, seconds, at={"part": part}) for part, seconds in parts.items()
    ]


def _until_steady(trace: Trace) -> float | None:
    """When the last answer came that was slower than the usual ones of the second half, at the begin of the load."""
    took = (trace.done - trace.sent)[trace.ok]
    done = trace.done[trace.ok]
    if len(took) < 8:
        return None
    usual = float(np.median(took[len(took) // 2 :]))
    spread = float(np.quantile(took[len(took) // 2 :], 0.9))
    slow = took > max(spread, usual * (1.0 + STEADY))
    settled = int(np.argmin(slow)) if not slow.all() else len(slow) - 1  # the first that is not slow
    return float(done[settled - 1]) if settled else 0.0


def _facts(session: Session, source: str, sent: Kind) -> dict[str, Any]:
    place, ceiling = session.place, session.ceiling
    weakest = " of the weakest host" if session.clients is not None else ""
    least = "" if ceiling.is_undisturbed else "at least "  # others had the core meanwhile
    most = f"{least}{ceiling.rate:.0f} {sent} from one worker{weakest}"
    return {
        "server": session.server.describe(),
        "wire": session.endpoint.wire,
        "requests": source,
        "different_requests": len(session.requests),
        **({"server_cores": list(place.server)} if session.server.processes() else {}),
        **({"load_cores": list(place.load)} if place.load else {}),
        **({"client_hosts": list(session.parameters.clients.hosts)} if session.clients is not None else {}),
        "client_ceiling": f"{most} against a server that does nothing",
        "latency_counts_from": "the intended time of each request",
    }


def describe_status(status: int) -> str:
    """What became of a request, in words."""
    words = {0: "it was never sent", 1: "no connection", 2: "the connection broke", 3: "no answer in time"}
    words |= {4: "an answer that is not in the protocol", 5: "no free socket"}
    return words.get(status, f"the server answered with status {status}")

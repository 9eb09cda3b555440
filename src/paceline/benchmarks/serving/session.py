"""One server under test: started, warmed up, asked in several ways, and ended whatever happens."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.answers import Answers
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.requests import made_requests
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import CaseError, InputError
from paceline.core.record import Measurement, RecordWarning
from paceline.devices import kind_of
from paceline.devices.base import EnergyMeter
from paceline.load.calibrate import GeneratorCeiling, RequestKind, calibrate
from paceline.load.clients import ClientHosts
from paceline.load.generator import drive
from paceline.load.network import Cable, connected, link_of
from paceline.load.parameters import LoadParameters
from paceline.load.processes import CpuPlacement, on_cores
from paceline.load.request import Endpoint, Prepared
from paceline.load.trace import Trace
from paceline.machine import conditions
from paceline.machine.conditions import Conditions
from paceline.servers import registry
from paceline.servers.base import Need, Server, ServerFailed

LOOK_SECONDS = 0.25


@dataclass
class Use:
    """What was used, filled when the watch ends."""

    seconds: float = 0.0
    cpu_seconds: float | None = None  # None for a server that is not ours to look at
    memory: int = 0
    gpu_shares: list[float] = field(default_factory=list)
    gpu_memory: int = 0
    joules: float | None = None
    source: str = ""
    before: Conditions | None = None  # of the whole machine
    after: Conditions | None = None

    def measurements(self, load_seconds: float) -> list[Measurement]:
        """The figures that are known."""
        found = []
        if self.cpu_seconds is not None:
            # Over the load itself: what was watched before its first request and after its last answer was idle.
            found.append(Measurement.of_value(trace_metrics.CPU, 100.0 * self.cpu_seconds / load_seconds))
            found.append(Measurement.of_value(trace_metrics.HOST_MEMORY, float(self.memory)))
        if self.gpu_shares:
            found.append(Measurement.of_samples(trace_metrics.GPU, self.gpu_shares, statistic="mean"))
            found.append(Measurement.of_value(trace_metrics.DEVICE_MEMORY, float(self.gpu_memory)))
        return found

    def warnings(self) -> list[RecordWarning]:
        """What else went on; a server that is not ours may be what keeps this machine busy, and that is no warning."""
        if self.cpu_seconds is None or self.before is None or self.after is None:
            return []
        return conditions.warnings(self.before, self.after)

    def conditions(self) -> dict[str, Any]:
        """The machine before and after, for the record."""
        looks = {"before": self.before, "after": self.after}
        return {name: look.model_dump(mode="json") for name, look in looks.items() if look is not None}


@contextmanager
def watched(processes: Callable[[], list[int]], target: str) -> Iterator[Use]:
    """Look at the server's processes and its device until the end of the block."""
    use = Use()
    meter = kind_of(target).meter(target)
    before = meter.read() if meter is not None else 0.0
    looking = _Looking(processes, target, use)
    use.before = conditions.observe(target)
    looking.start()
    try:
        yield use
    finally:
        looking.stop()
        use.after = conditions.observe(target)
        if meter is not None:
            use.joules, use.source = _joules(meter, before), meter.source


def _joules(meter: EnergyMeter, before: float) -> float | None:
    used = meter.read() - before
    return None if meter.late else used


class _Looking:
    """Looks every now and then, on a thread of its own: processes come and go."""

    def __init__(self, processes: Callable[[], list[int]], target: str, use: Use) -> None:
        self._processes = processes
        self._use = use
        self._spent: dict[int, tuple[float, float]] = {}  # process: first and last seen processor time
        self._target = target
        self._kind = kind_of(target)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began = time.monotonic()

    def start(self) -> None:
        self._began = time.monotonic()
        self._look()
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        self._look()
        self._use.seconds = time.monotonic() - self._began
        if self._spent:
            self._use.cpu_seconds = sum(last - first for first, last in self._spent.values())

    def _run(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        resident = 0
        for pid in self._processes():
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                resident += process.memory_info().rss
            except psutil.Error:
                continue
            spent = times.user + times.system
            first, _ = self._spent.get(pid, (spent, spent))
            self._spent[pid] = (first, spent)
        self._use.memory = max(self._use.memory, resident)
        devices = self._kind.use(self._target)
        if not devices:
            return
        busy = [one.busy_percent for one in devices if one.busy_percent is not None]
        if len(busy) == len(devices):
            self._use.gpu_shares.append(sum(busy) / len(busy))
        self._use.gpu_memory = max(self._use.gpu_memory, sum(one.memory_used or 0 for one in devices))


STEADY = 0.1  # of the median: an answer this near to the later ones counts as steady
WARM_UP_USERS = 4
KEPT_ANSWERS = 1  # of each kind


@dataclass
class ServingSession:
    """A running server, and all that is needed to ask it."""

    parameters: ServeParameters
    context: Context
    server: Server
    endpoint: Endpoint
    requests: list[Prepared]
    streaming: bool
    place: CpuPlacement
    ceiling: GeneratorCeiling
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
            self.context.report(Progress(phase, trace_metrics.LATENCY.name, trace_metrics.LATENCY.unit, latencies))
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
def opened(parameters: ServeParameters, context: Context) -> Iterator[ServingSession]:
    """Everything up to the first measured request; the server ends with the block."""
    place = CpuPlacement.of_machine(parameters.workers)
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
            place = CpuPlacement.without_load()
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
            sent = RequestKind.of(endpoint, made.prepared)
            ceiling = _ceiling(clients, place, sent, _needed(parameters))
            session = ServingSession(
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
def _clients(
    parameters: ServeParameters, place: CpuPlacement, say: Callable[[str], None]
) -> Iterator[ClientHosts | None]:
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


def _ceiling(clients: ClientHosts | None, place: CpuPlacement, sent: RequestKind, needed: float) -> GeneratorCeiling:
    if clients is None:
        return calibrate((place.load[0], place.server[0]), sent, needed=needed)
    clients.calibrate(sent)
    return clients.weakest


def _warm_up(session: ServingSession, ready: float) -> None:
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
        Measurement.of_value(trace_metrics.COLD_START, seconds, at={"part": part}) for part, seconds in parts.items()
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


def _facts(session: ServingSession, source: str, sent: RequestKind) -> dict[str, Any]:
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

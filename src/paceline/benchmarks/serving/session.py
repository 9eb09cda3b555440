"""One server under test: started, warmed up, loaded in several ways, and stopped whatever happens."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from paceline.benchmarks.serving import server_metrics, trace_metrics
from paceline.benchmarks.serving.http_requests import facts as http_facts
from paceline.benchmarks.serving.http_requests import http_requests, try_request
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.prompts import PromptMaker
from paceline.benchmarks.serving.requests import Requests, prepare_requests
from paceline.benchmarks.serving.spending import REMOTE_WARM_UP, SendPlan, Spending, SpendLimits
from paceline.benchmarks.serving.texts import WORDS
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import CaseError, InputError
from paceline.core.record import Measurement
from paceline.devices import kind_of
from paceline.load.clients import ClientHosts
from paceline.load.generator import drive
from paceline.load.native_client import chosen
from paceline.load.parameters import LoadParameters
from paceline.load.processes import CpuPlacement, on_cores
from paceline.load.quality import GeneratorCeiling, RequestKind, calibrate
from paceline.load.request import Endpoint
from paceline.load.trace import Trace
from paceline.machine import conditions
from paceline.machine.conditions import Conditions
from paceline.servers import SERVERS
from paceline.servers._any_http import AnyHttpSettings
from paceline.servers.base import Server, ServerFailed

SAMPLE_SECONDS = 0.25


@dataclass
class Use:
    """The resources in use during a load, complete when the watch ends."""

    before: Conditions  # of the whole machine
    after: Conditions
    seconds: float = 0.0
    cpu_seconds: float | None = None  # None for a server whose processes are not ours to observe
    memory: int = 0
    gpu_shares: list[float] = field(default_factory=list)
    gpu_memory: int = 0
    joules: float | None = None
    source: str = ""


@contextmanager
def watched(processes: Callable[[], list[int]], target: str) -> Iterator[Use]:
    """Observe the server's processes and its device until the end of the block; processes come and go."""
    kind = kind_of(target)
    meter = kind.meter(target)
    spent: dict[int, tuple[float, float]] = {}  # process: first and last processor time
    end = threading.Event()

    def sample() -> None:
        resident = 0
        for pid in processes():
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                resident += process.memory_info().rss
            except psutil.Error:
                continue
            seconds = times.user + times.system
            spent[pid] = (spent.get(pid, (seconds, seconds))[0], seconds)
        use.memory = max(use.memory, resident)
        devices = kind.use(target)
        if not devices:
            return
        busy = [one.busy_percent for one in devices if one.busy_percent is not None]
        if len(busy) == len(devices):
            use.gpu_shares.append(sum(busy) / len(busy))
        use.gpu_memory = max(use.gpu_memory, sum(one.memory_used or 0 for one in devices))

    def sample_until_end() -> None:
        while not end.wait(SAMPLE_SECONDS):
            sample()

    energy = meter.read() if meter is not None else 0.0
    thread = threading.Thread(target=sample_until_end, daemon=True)
    before = conditions.observe(target)
    use = Use(before, after=before)
    began = time.monotonic()
    sample()
    thread.start()
    try:
        yield use
    finally:
        end.set()
        thread.join()
        sample()
        use.seconds = time.monotonic() - began
        if spent:
            use.cpu_seconds = sum(last - first for first, last in spent.values())
        use.after = conditions.observe(target)
        if meter is not None:
            joules = meter.read() - energy
            use.joules, use.source = None if meter.late else joules, meter.source


class LimitReached(CaseError):
    """A limit on what is sent leaves nothing more to send."""


STEADY = 0.1  # of the median: an answer this near to the later ones counts as steady
WARM_UP_USERS = 4


@dataclass
class ServingSession:
    """A running server, and all that is needed to load it."""

    parameters: ServeParameters
    context: Context
    server: Server
    endpoint: Endpoint
    requests: Requests
    placement: CpuPlacement
    ceiling: GeneratorCeiling
    clients: ClientHosts | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    cold_start: list[Measurement] = field(default_factory=list)
    first_rate: float = 1.0  # requests/s that a few users who wait for their answers got
    begun: float = field(default_factory=time.monotonic)  # when its time began to count, the calibration included
    spending: Spending = field(default_factory=lambda: Spending(SpendLimits()))
    metrics: Callable[[], str] | None = None  # asks the server for its own figures, where it has any
    first_load: float = 0.0  # when the first measured load began, on the monotonic clock
    _sends: int = 0

    @property
    def most_rate(self) -> float:
        """Requests per second that the load generator was able to send, on all cores that it has."""
        return self.clients.most if self.clients is not None else self.ceiling.rate * len(self.placement.load)

    def send(self, load: LoadParameters, phase: str, *, is_measured: bool = False, warms_up: bool = False) -> Trace:
        """One load; ServerFailed if the server died under it, LimitReached where nothing more may be sent."""
        requests = self.requests
        prepared = requests.warm_up if warms_up and requests.warm_up else requests.prepared
        lengths = (requests.prompt_lengths, requests.output_lengths)
        most = self.spending.allowed(*lengths)
        if most == 0:
            raise LimitReached(self.spending.reached)
        self.context.report(Progress(phase=phase))
        self._sends += 1
        answers = requests.answers
        trace = drive(
            self.endpoint,
            prepared,
            load,
            seed=self.parameters.seed + self._sends,  # or every load of a search would be the same one
            workers=self.parameters.workers,
            cpus=self.placement.load,
            hosts=self.clients,
            timeout=self.parameters.timeout_per_request,
            streaming=requests.is_streaming,
            in_turn=requests.in_turn,
            fresh=requests.fresh,
            outputs=requests.outputs,
            json_keys=requests.json_keys,
            tokenizer=self.parameters.requests.tokenizer,
            most=most,
            keep=1 if answers is not None else 0,  # answer of each kind
            on_answer=answers,
            go_on=self.server.is_alive,
            on_live=lambda figures: self.context.report(Progress(phase=phase, load=figures)),
            client=self.parameters.load.client if self.parameters.load is not None else None,
        )
        self.facts["client"] = trace.client
        self.spending.count(trace, *lengths)
        if trace.ok.any() and is_measured:
            latencies = tuple(float(one) for one in trace.latency[trace.ok])
            self.context.report(Progress(phase, trace_metrics.LATENCY.name, trace_metrics.LATENCY.unit, latencies))
        if self.clients is not None:
            self.clients.require_all(trace)
        if not self.server.is_alive():
            answered = int(trace.ok.sum())
            raise ServerFailed(
                f"the server ended under load: {answered} of {len(trace)} requests were answered, "
                f"{len(trace) - answered} were not",
                self.server.logs(),
            )
        return trace


@contextmanager
def opened(parameters: ServeParameters, context: Context) -> Iterator[ServingSession]:
    """Everything up to the first measured request; the server ends with the block."""
    placement = CpuPlacement.of_machine(parameters.workers)
    load = parameters.load
    kind = SERVERS.registry().get(parameters.server.kind)
    need = parameters.need(context.target, allow_import=context.case.origin == "local")

    def say(phase: str) -> None:
        context.report(Progress(phase=phase))

    with TemporaryDirectory(prefix="paceline-serve-") as folder, ExitStack() as stack:
        clients = None
        if parameters.clients.hosts:  # otherwise this machine sends
            say("entering the client hosts")
            hosts, shell = parameters.clients.hosts, parameters.clients.shell()
            clients = stack.enter_context(ClientHosts.reached(hosts, shell, placement))
            if not clients.is_on_this_machine:
                placement = CpuPlacement.without_load()
        settings = parameters.server.whole()
        server = kind(settings, need, Path(folder), say)
        try:
            say("preparing the model")
            server.prepare()
            say("starting the server")
            with on_cores(placement.server):
                seconds_to_ready = server.start()
            endpoint = server.endpoint(parameters.chosen_wire)
            if clients is not None:
                clients.require_reach(endpoint)
            if isinstance(settings, AnyHttpSettings) and endpoint.wire == "http":
                requests = http_requests(parameters, settings, endpoint)
                say("trying one request")
                try_request(endpoint, requests.prepared[0], parameters.timeout_per_request)
            elif endpoint.is_language:
                requests = _prompts(parameters, server, endpoint)
            else:
                requests = prepare_requests(parameters, server, endpoint, allow_import=need.allow_import)
            say("calibrating the load generator")
            begun = time.monotonic()
            wanted = load.client if load is not None else None
            client, why = chosen(
                wanted, endpoint, requests.prepared, streaming=requests.is_streaming, here=clients is None
            )
            sent = RequestKind.of(endpoint, requests.prepared, client)
            if clients is None:
                needed = math.inf  # requests per second: a search goes on until something gives way
                if load is not None and load.loop == "open":  # another draw has about the same peak
                    needed = load.schedule(np.random.default_rng(parameters.seed)).peak_rate
                elif load is not None:
                    needed = 0.0  # users who wait: what they sent is held against the ceiling afterwards
                ceiling = calibrate((placement.load[0], placement.server[0]), sent, needed=needed)
            else:
                clients.calibrate(sent)
                ceiling = clients.weakest
            session = ServingSession(parameters, context, server, endpoint, requests, placement, ceiling, clients)
            session.begun = begun
            session.spending = Spending(parameters.limits)
            session.spending.requests += endpoint.wire == "http"  # the one that was tried
            say(str(SendPlan.of(parameters)))
            session.metrics = server_metrics.source(endpoint, server.metrics_url)
            session.facts |= _facts(session, sent) | ({"client_is_python_because": why} if why else {})
            _warm_up(session, seconds_to_ready)
            yield session
        except (CaseError, InputError) as error:
            if not getattr(error, "detail", ""):
                error.detail = server.logs()  # type: ignore[union-attr]
            raise
        finally:
            server.stop()


def _prompts(parameters: ServeParameters, server: Server, endpoint: Endpoint) -> Requests:
    """What is sent to a language model."""
    load = parameters.load
    schedule = load.recorded() if load is not None and load.arrival == "trace" else None
    words = server.prompt_words or tuple(map(str, WORDS))
    planned = parameters.planned_requests
    return PromptMaker(parameters.effective_requests, endpoint, parameters.seed, planned, schedule, words).made()


def _warm_up(session: ServingSession, ready: float) -> None:
    """Send until answers are steady, or the time for it is over; how long that took is the rest of the cold start."""
    first = session.send(LoadParameters(arrival="single-stream", requests=1), "first answer", warms_up=True)
    if not first.ok.any():
        cause = next(iter(first.causes), "") or describe_status(int(first.status[0]))
        raise ServerFailed(f"the first request failed: {cause}", session.server.logs())
    latency = float(first.latency[0])
    session.first_rate = 1.0 / latency
    parts = {"process to ready": ready, "ready to first answer": latency}
    seconds = session.parameters.warm_up_seconds
    if seconds is None or seconds > 0:
        length = {"requests": REMOTE_WARM_UP} if seconds is None else {"duration": seconds}
        load = LoadParameters.model_validate({"arrival": "closed", "users": WARM_UP_USERS} | length)
        trace = session.send(load, "warming up", warms_up=True)
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


def _facts(session: ServingSession, sent: RequestKind) -> dict[str, Any]:
    placement, ceiling = session.placement, session.ceiling
    weakest = " of the weakest host" if session.clients is not None else ""
    least = "" if ceiling.is_undisturbed else "at least "  # others had the core meanwhile
    most = f"{least}{ceiling.rate:.0f} {sent} from one worker{weakest}"
    settings, own = session.server.settings, {}
    if isinstance(settings, AnyHttpSettings) and session.endpoint.wire == "http":
        own = {"http": http_facts(settings, session.requests.prepared)}
    return {
        "server": session.server.describe(),
        **own,
        "wire": session.endpoint.wire,
        "requests": session.requests.source,
        "different_requests": len(session.requests.prepared),
        **({"server_cores": list(placement.server)} if session.server.processes() else {}),
        **({"load_cores": list(placement.load)} if placement.load else {}),
        **({"client_hosts": list(session.parameters.clients.hosts)} if session.clients is not None else {}),
        "client_ceiling": f"{most} against a server that does nothing",
        "latency_counts_from": "the intended time of each request",
    }


def describe_status(status: int) -> str:
    """What became of a request, in words."""
    words = {0: "it was never sent", 1: "no connection", 2: "the connection broke", 3: "no answer in time"}
    words |= {4: "an answer that is not in the protocol", 5: "no free socket", 6: "an answer that is not good"}
    words |= {7: "closed on purpose"}
    return words.get(status, f"the server answered with status {status}")

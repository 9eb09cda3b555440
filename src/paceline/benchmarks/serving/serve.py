"""A model behind a server under load: latency, throughput, goodput within an SLO, and what it costs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.http_requests import HttpTemplate
from paceline.benchmarks.serving.parameters import ServeParameters, Slo
from paceline.benchmarks.serving.prompts import check_prompts
from paceline.benchmarks.serving.requests import Requests, check_batch
from paceline.benchmarks.serving.resource_use import add_use
from paceline.benchmarks.serving.search import (
    LONGEST_PART,
    SETTLING,
    SPREAD,
    RateTrial,
    SearchResult,
    find_capacity,
    requests_for,
)
from paceline.benchmarks.serving.server_metrics import ServerWatch, watching
from paceline.benchmarks.serving.session import LimitReached, ServingSession, describe_status, opened, watched
from paceline.benchmarks.serving.spending import SendPlan
from paceline.benchmarks.serving.sweep import MOST_ERRORS, SweepPoint, load_name, run_sweep, together
from paceline.core.benchmark import START_SECONDS, Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import CaseError, InputError, located
from paceline.core.quantity import show_duration
from paceline.core.record import Measurement, Record, RecordWarning, Result, Statistic
from paceline.core.stats import summarize
from paceline.core.subject import TAILS, Description, ServedLoad
from paceline.core.tails import NOT_DECIDABLE
from paceline.load import quality
from paceline.load.clients import is_for_others, is_of_this_machine_alone
from paceline.load.generator import require_known
from paceline.load.parameters import LoadParameters, Loop
from paceline.load.request import LANGUAGE_PATHS, TEXT_WIRES
from paceline.load.trace import CANCELLED, OK, Trace
from paceline.machine.profile import price_of
from paceline.models.base import Traits
from paceline.models.sources import check_model
from paceline.remote.hosts import LOCAL
from paceline.servers import SERVERS
from paceline.servers._any_http import AnyHttpSettings
from paceline.servers.base import Server, ServerFailed

LENGTHS = ("duration", "requests")  # of a load: how long it is
AMOUNTS = (*LENGTHS, "rate", "to_rate", "users", "points")  # how much of it, as opposed to of which kind
FIRST_PART = 0.5  # of what the few users of the warm-up got: where the search begins
LONGEST_CONFIRMATION = 30.0  # seconds
CONFIRMATION_PART = 0.15  # of the time for the search that its last load may take
LEAST_CONFIRMATION = 5.0
LEAST_SEARCH = 20.0  # seconds: of a shorter one little comes
BEYOND = 4.0  # times a disturbed ceiling, which is a lower bound, that a search may go: each load says if it went
SHOWN_CAUSES = 3  # of answers that were not good
_PRICE = re.compile(r"^[\d.e+-]+ USD per hour \((.*)\)$")
HELD, MISSED = "held", "missed: "  # what the facts of a record say of its SLO; a reason follows the second


class Serve(Benchmark[ServeParameters]):
    """Starts a server, sends it requests at times fixed beforehand, and measures the answers."""

    name = "serve"
    summary = "a model behind a server under load: latency percentiles, goodput under an slo, stages, batches, cost"
    category = "serving"
    metrics = tuple(trace_metrics.METRICS)
    primary = "capacity"

    @classmethod
    def title(cls, parameters: ServeParameters) -> str:
        """Model, server, load and SLO."""
        return parameters.label()

    @classmethod
    def written_out(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """With what a curl line or a document of the user's says of the server."""
        server = values.get("server")
        if not isinstance(server, Mapping) or not isinstance(server.get("kind"), str):
            return values
        settings = SERVERS.registry().get(server["kind"]).Settings
        with located(f"server '{server['kind']}'"):
            return {**values, "server": settings.written_out(server)}

    @classmethod
    def check(cls, parameters: ServeParameters, case: Case) -> None:
        """Refuse unknown models, instances and wires before anything starts."""
        server = SERVERS.registry().get(parameters.server.kind)
        if parameters.chosen_wire not in server.wires:
            message = f"server '{server.name}' speaks {', '.join(server.wires)}, not {parameters.wire}"
            raise InputError("wire-not-spoken", message, key="wire", value=parameters.wire)
        if parameters.instance is not None:
            try:
                price_of(parameters.instance)
            except InputError as error:
                raise error.within("", key="instance") from None
        is_local = case.origin == "local"
        if server.is_checkable:
            _check_traits(parameters, check_model(parameters.model, is_local=is_local, inputs=parameters.input))
        settings = parameters.server.whole()
        server.check(settings, parameters.need(case.target, allow_import=is_local))
        _check_wire(parameters, server, server.listens_at(settings))
        _check_files(parameters, is_local)
        _check_language(parameters)
        SendPlan.of(parameters).check(parameters.limits)
        check_batch(parameters.effective_requests.samples.highest, server.most_samples(settings))
        if isinstance(settings, AnyHttpSettings) and parameters.chosen_wire == "http" and is_local:
            HttpTemplate.of(parameters, settings)
        _check_clients(parameters, server, server.listens_at(settings), is_local)

    @classmethod
    def shortened(cls, parameters: ServeParameters, part: float) -> ServeParameters:
        """A shorter load; where the rate is searched, a shorter search."""
        load = parameters.load
        if part >= 1.0:
            return parameters
        if load is None:
            budget = min(parameters.search_budget, max(LEAST_SEARCH, part * parameters.search_budget))
            return parameters.model_copy(update={"search_budget": budget})
        length = {"duration": part * load.seconds}
        if load.arrival == "trace":
            schedule = load.recorded()
            length = {"duration": part * float(schedule.intended[-1])}
            if not length["duration"]:  # all at once
                length = {"requests": max(1, round(part * len(schedule)))}
        elif load.requests is not None:
            length = {"requests": max(1, round(part * load.requests))}
        return parameters.model_copy(update={"load": load.model_copy(update=length)})

    @classmethod
    def expected_seconds(cls, parameters: ServeParameters) -> float | None:
        seconds = parameters.planned_seconds
        return None if seconds is None else seconds + START_SECONDS

    @classmethod
    def sends(cls, parameters: ServeParameters) -> str:
        return str(SendPlan.of(parameters))

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """What the export and the check of answers need: a model without weights is asked by way of the compiler.

        A language model is neither exported nor asked here, and torch takes seconds to import.
        """
        own = {name: value for name, value in parameters.items() if name in ServeParameters.model_fields}
        if (wire := ServeParameters.read(own).chosen_wire) == "http" or wire in LANGUAGE_PATHS:
            return ()
        return ("torch", "torch._dynamo", "paceline.servers._exported_module")

    @classmethod
    def describe(cls, record: Record, parameters: ServeParameters, environment: Environment) -> Description:
        description = super().describe(record, parameters, environment)
        load = _served_load(record, parameters)
        # Where the rate of requests was chosen, throughput only repeats the choice: the tail is what came of it.
        is_chosen = load.loop == "open" and not load.sweep
        leaders = ["capacity", *(f"latency_{tail}" for tail in TAILS if is_chosen)]
        if record.measurement("token_throughput") is not None:  # requests differ in length: their rate says little
            is_chosen = is_chosen and record.measurement("capacity") is None
            leaders = [*(f"first_token_{tail}" for tail in TAILS if is_chosen), "token_throughput"]
        primary = next((name for name in leaders if record.measurement(name) is not None), "")
        # Records of earlier versions have the basis of a price only in the words for people.
        basis = description.economy.price_basis or _PRICE.sub(r"\1", str(record.facts.get("price", "")))
        economy = description.economy.model_copy(update={"price_basis": basis})
        subject = description.subject
        if parameters.served != parameters.model:  # how the model behind it computes is not known
            subject = subject.model_copy(update={"model": parameters.served, "scale": None, "precision": None})
        return Description(primary=primary, subject=subject, load=load, economy=economy)

    def measure(self, parameters: ServeParameters, context: Context) -> Result:
        with opened(parameters, context) as session:
            load = parameters.load
            if load is None:
                result = _searched(session)
            else:
                result = _swept(session, load) if load.arrival == "sweep" else _measured(session, load)[1]
            result.measurements += session.cold_start
            result.facts |= session.facts | {"sent": session.spending.facts()}
            try:
                statistics: object = session.server.statistics()
            except ServerFailed as error:  # what was measured does not depend on it
                statistics = str(error)
            if statistics:
                result.facts["server_statistics"] = statistics
            answers = session.requests.answers
            if answers is not None:
                result.facts["answers_checked"] = (
                    f"{answers.checked}, off by at most {answers.deviation:.1g} of the largest value"
                )
            if session.placement.is_shared(session.server.processes()):
                message = "the load generator and the server share a core: each slows the other"
                remedy = "use a machine with two cores or more"
                result.warnings.append(RecordWarning(kind="shared-core", message=message, remedy=remedy))
        return result


def _served_load(record: Record, parameters: ServeParameters) -> ServedLoad:
    """How the server was loaded, and by which SLO it was judged."""
    load, slo = parameters.load, parameters.slo
    verdict = str(record.facts.get("slo", ""))
    server = parameters.server.model_dump(mode="json")
    kind: dict[str, Any] = {"arrival": "poisson"}  # as a search does
    traffic = kind | {"slo": slo.model_dump(mode="json") if slo is not None else None, "search": True}
    if load is not None:
        given = load.model_dump(mode="json", exclude_none=True)
        kind = {key: value for key, value in given.items() if key not in AMOUNTS}
        traffic = {key: value for key, value in given.items() if key not in LENGTHS}
    served = parameters.model_dump(mode="json", include={"model", "scale", "precision", "wire", "requests"})
    case = record.case
    setting = [case.benchmark, case.target, case.ranks, served | {"server": server}, kind]
    return ServedLoad(
        loop=str(record.facts.get("loop") or (load.loop if load is not None else "open")),
        server=str(server.get("url") or ""),
        users=load.users if load is not None else None,
        rate=load.rate if load is not None else None,
        samples=parameters.effective_requests.samples.highest or 1,
        is_shared_memory=parameters.wire == "kserve-shm",
        slo=slo.limits if slo is not None else {},
        slo_errors=slo.errors if slo is not None else None,
        slo_met=True if verdict == HELD else False if verdict.startswith(MISSED) else None,
        slo_missed_because=verdict.removeprefix(MISSED) if verdict.startswith(MISSED) else "",
        slo_undecided=verdict if verdict.startswith(NOT_DECIDABLE) else "",
        kind=kind,
        traffic=traffic,
        requests=parameters.requests.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
        setting=json.dumps(setting, sort_keys=True, default=str),
        devices=parameters.devices or (None if parameters.is_remote or case.target == "cpu" else 1),
        sweep=(load.over or "users") if load is not None and load.arrival == "sweep" else "",
        loads=record.facts.get("loads", ()),
        headline_at=record.facts.get("headline_at", ""),
        series=record.facts.get("series", ()),
    )


def _check_traits(parameters: ServeParameters, traits: Traits) -> None:
    """Refuse a model that cannot answer requests in batches of any size, or in this precision."""
    what = f"the {traits.noun} {parameters.model}"
    if parameters.scale != "full" and not traits.has_scales:
        message = f"scale = {parameters.scale}: {what} has one size; leave it out"
        raise InputError("one-scale", message, key="scale", value=parameters.scale)
    if traits.batch_size is not None:
        message = f"{what} takes batches of {traits.batch_size} alone, and a server puts requests together: "
        message += "export it with a batch of any size"
        raise InputError("fixed-batch-size", message, key="model", value=parameters.model)
    if traits.precision not in ("", parameters.precision):
        message = f"precision = {parameters.precision}: {what} computes in {traits.precision}"
        raise InputError("fixed-precision", message, key="precision", value=parameters.precision)


def _check_wire(parameters: ServeParameters, server: type[Server], address: str) -> None:
    """Refuse requests, loads and objectives that do not go with the wire."""
    requests, load, wire = parameters.requests, parameters.load, parameters.chosen_wire
    if requests.form != "tensors" and not wire.startswith("kserve"):
        takes = "what server.body says" if wire == "http" else "prompts"
        message = f"requests.form = {requests.form} is not for {wire}, which takes {takes}: leave it out"
        raise InputError("key-does-not-apply", message, key="requests.form", value=requests.form)
    if wire == "http" and parameters.effective_requests.samples.highest != 1:
        message = "requests.samples and multi-stream are not for wire http: a request is what server.body says"
        raise InputError("key-does-not-apply", message, key="requests.samples")
    if requests.read_by_server is not None and requests.form not in server.reads:
        message = f"server '{server.name}' takes tensors, not {requests.form}: set requests.processing to client"
        raise InputError("form-not-taken", message, key="requests.processing", value="server", suggestion="client")
    if requests.read_by_server == "image" and wire == "kserve-json":
        message = "pictures do not travel as JSON: set wire to kserve-binary or kserve-grpc"
        raise InputError("needs-binary-wire", message, key="wire", value=wire, suggestion="kserve-binary")
    # What lies in shared memory does not travel: no other host, no network, and nothing but tensors.
    conflicts = {
        f"requests.form = {requests.form}": requests.form != "tensors",
        "clients.hosts": bool(parameters.clients.hosts),
        "load.network": load is not None and load.network is not None,
        f"server.host = {address}": not is_of_this_machine_alone(address),
    }
    for setting, is_conflict in conflicts.items():
        if wire == "kserve-shm" and is_conflict:
            message = f"{setting} does not go with wire kserve-shm, whose tensors do not travel: use kserve-binary"
            key = setting.partition(" ")[0]
            raise InputError("conflicting-keys", message, key=key, suggestion="wire: kserve-binary")
    is_streamed = requests.stream and wire in TEXT_WIRES
    if parameters.slo is not None and parameters.slo.is_about_tokens and not is_streamed:
        message = (
            "slo.first_token and slo.between_tokens need answers that come token by token: set wire to one of "
            f"{', '.join(TEXT_WIRES)} and leave requests.stream on, or set a latency objective like {{p99: 100ms}}"
        )
        raise InputError("needs-streamed-answers", message, key="slo")


def _check_files(parameters: ServeParameters, is_local: bool) -> None:
    requests, load = parameters.requests, parameters.load
    paths = {"requests.dataset": requests.dataset, "load.file": load.file if load is not None else None}
    for name, path in paths.items():
        if path is None:
            continue
        if not is_local:
            message = f"{name}: files are not taken from the network; leave it out"
            raise InputError("not-from-network", message, key=name, value=str(path))
        kind = "folder" if name == "requests.dataset" and requests.form == "image" else "file"
        if not (path.is_dir() if kind == "folder" else path.is_file()):
            raise InputError(f"missing-{kind}", f"{name} = {path}: there is no such {kind}", key=name, value=str(path))
    if load is not None and load.arrival == "trace":
        is_language = parameters.chosen_wire in LANGUAGE_PATHS
        schedule = load.recorded()
        conflicts = [name for name in ("turns", "images", "shared_prefix") if getattr(requests, name)]
        if schedule.prompt_tokens is not None and requests.dataset is None and is_language and conflicts:
            message = f"requests.{conflicts[0]} does not go with a trace that says how long prompts are: leave it out"
            raise InputError("conflicting-keys", message, key=f"requests.{conflicts[0]}")
        if schedule.kind is not None and requests.turns is not None:
            message = "requests.turns does not go with a trace that has a column 'kind': leave out one of them"
            raise InputError("conflicting-keys", message, key="requests.turns")
        if schedule.prompt_tokens is not None and parameters.chosen_wire == "rerank":
            message = "a trace that says how long prompts are has no documents to rank: use another trace or wire"
            raise InputError("conflicting-keys", message, key="wire", value="rerank")
        if not is_language or schedule.kind is not None:
            require_known(schedule, requests.different)


_OF_LANGUAGE_MODELS = (
    "ignore_eos", "min_tokens", "extra", "tokenizer", "system_tokens",
    "turns", "models", "json_schema", "cancel", "images",
)  # fmt: skip


def _check_language(parameters: ServeParameters) -> None:
    """Refuse prompts, lengths and tokenizers that cannot be used."""
    requests, load = parameters.requests, parameters.load
    if parameters.chosen_wire in LANGUAGE_PATHS:
        check_prompts(requests, parameters.chosen_wire)
        if requests.turns is not None and (load is None or load.over == "rate"):
            message = "with requests.turns a rate is of conversations: none of requests can be searched or swept; "
            message += "give a load like {arrival: poisson, rate: 2}, or a sweep over users"
            raise InputError("conflicting-keys", message, key="requests.turns")
        if requests.turns is not None and load is not None and load.network is not None:
            message = "load.network is for requests that follow no other; leave it out, or requests.turns"
            raise InputError("conflicting-keys", message, key="load.network")
        return
    for name in _OF_LANGUAGE_MODELS:
        if getattr(requests, name):
            message = f"requests.{name} is of language models, not of wire {parameters.chosen_wire}: leave it out"
            raise InputError("key-does-not-apply", message, key=f"requests.{name}")


def _check_clients(parameters: ServeParameters, server: type[Server], address: str, is_local: bool) -> None:
    hosts = parameters.clients.hosts
    if hosts and not is_local:
        message = "clients.hosts enters other hosts, which a job from the network may not do; leave it out"
        raise InputError("not-from-network", message, key="clients.hosts", value=list(hosts))
    if hosts and set(hosts) != {LOCAL} and not is_for_others(address):
        message = (
            f"the server would listen at {address}, where clients.hosts do not reach it: set server.host to the one "
            "address of this machine that they reach (only embedded and url can be reached from other hosts)"
        )
        raise InputError("unreachable-address", message, key="server.host", value=address)


def _measured(session: ServingSession, load: LoadParameters, phase: str = "measuring") -> tuple[Trace, Result]:
    """One load as the parameters describe it."""
    with watching(session.metrics) as server, watched(session.server.processes, session.context.target) as use:
        trace = session.send(load, phase, is_measured=True)
    quality.require_delivered(trace, load.loop)
    result = _result(session, trace, load.loop)
    if load.loop != "open":  # where the rate is a finding, not a choice
        result.warnings += trace_metrics.imprecise(result.measurements)
    add_use(result, session.parameters, use, trace)
    _add_course(session, result, trace, server)
    return trace, result


def _add_course(session: ServingSession, result: Result, trace: Trace, server: ServerWatch) -> None:
    """How latencies and what the server reports of itself went over time."""
    session.first_load = session.first_load or trace.begun
    result.measurements += server.measurements(trace.begun, trace.begun + float(np.nanmax(trace.done, initial=0.0)))
    series = trace_metrics.over_time(trace, trace.begun - session.first_load) + server.over_time(session.first_load)
    if series:
        result.facts["series"] = series


def _swept(session: ServingSession, load: LoadParameters) -> Result:
    """Load after load, as the parameters describe it."""
    slo = session.parameters.slo
    most_errors = slo.errors if slo is not None else MOST_ERRORS

    def measure(axis: str, amount: float, one: LoadParameters) -> SweepPoint:
        return SweepPoint.of(axis, amount, *_measured(session, one, f"measuring with {load_name(axis, amount)}"))

    points, stopped = run_sweep(load, measure, most_errors)
    return together(points, load.over or "users", stopped, most_errors)


def _searched(session: ServingSession) -> Result:
    """The largest rate that meets the SLO, then a load at that rate."""
    parameters, slo = session.parameters, session.parameters.slo
    assert slo is not None
    points: dict[float, list[Measurement]] = {}
    search = _search(session, slo, points)
    if search.rate is None:
        raise CaseError(f"the slo was not met, {search.reason}")
    safe = search.interval.low if search.interval is not None else search.rate
    safe = max(safe, search.rate * (1.0 - 2 * parameters.search_tolerance))
    needed = max(requests_for(slo.share), int(safe * LEAST_CONFIRMATION))
    count = max(1, min(needed, int(safe * _confirmation(parameters))))
    load = LoadParameters(arrival="poisson", rate=safe, requests=count)
    with watching(session.metrics) as server, watched(session.server.processes, session.context.target) as use:
        trace = session.send(load, f"measuring at {safe:.4g}/s", is_measured=True)
    result = _result(session, trace, "open")
    summary = summarize([search.rate])
    summary = summary.model_copy(update={"mean_interval": search.interval, "count": len(search.trials)})
    statistic: Statistic = "mean" if search.interval else "single"
    result.measurements.insert(0, Measurement(metric=trace_metrics.CAPACITY, statistic=statistic, summary=summary))
    result.measurements += [one for _, trial in sorted(points.items()) for one in trial]
    quieter = "give the search more time (search_budget), or let nothing else run on the machine"
    if search.verdict == "client":
        remedy = "send from more cores or machines: the server can do more"
        result.warnings.append(RecordWarning(kind="client-limited", message=search.reason, remedy=remedy))
    elif search.verdict in ("unsteady", "out of time"):
        result.warnings.append(RecordWarning(kind="imprecise", message=search.reason, remedy=quieter))
    part = quality.delivered(trace)
    if part < quality.LEAST_DELIVERED:  # only a warning: the rate comes from other loads
        message = (
            f"only {100 * part:.1f} % of the last load went in time, so that its latencies are not the server's alone: "
            f"{quality.cause(trace)[0]}"
        )
        remedy = "let nothing else run on the load generator's cores, and measure again"
        result.warnings.append(RecordWarning(kind="client-limited", message=message, remedy=remedy))
    verdict = str(result.facts["slo"])
    if verdict.startswith(MISSED):
        message = f"a last load at {safe:.4g}/s did not meet the SLO: {verdict.removeprefix(MISSED)}"
        result.warnings.append(RecordWarning(kind="unconfirmed", message=message, remedy=quieter))
    result.facts = {
        "slo": verdict,
        "confirmed_at": f"{safe:.4g} requests/s with {len(trace)} requests",
        "search": f"{len(search.trials)} trials, {sum(trial.requests for trial in search.trials)} requests, "
        f"{time.monotonic() - session.begun:.0f} s with the calibration and the last load, "
        f"of {parameters.search_budget:g} s",
    } | result.facts
    add_use(result, parameters, use, trace)
    _add_course(session, result, trace, server)
    return result


def _confirmation(parameters: ServeParameters) -> float:
    """Seconds that the last load of a search may take."""
    return min(LONGEST_CONFIRMATION, CONFIRMATION_PART * parameters.search_budget)


def _result(session: ServingSession, trace: Trace, loop: Loop) -> Result:
    """What a load came to; CaseError if nothing was answered, because there is no latency then."""
    is_lost = ~trace.ok & ~trace.shed & (trace.status != CANCELLED)
    statuses, counts = np.unique(trace.status[is_lost], return_counts=True)
    if not trace.ok.any():
        statuses, counts = np.unique(trace.status, return_counts=True)
        most = int(statuses[np.argmax(counts)])
        cause = next(iter(trace.causes), "") or describe_status(most)
        raise CaseError(f"none of {len(trace)} requests was answered well; mostly: {cause}")
    slo = session.parameters.slo
    result = Result(measurements=[*trace_metrics.traffic(trace, slo), *trace_metrics.details(trace)])
    result.measurements += trace_metrics.by_group(trace, _groups(session.requests))
    result.warnings = quality.warnings(trace, loop, session.ceiling)
    if counts.size:
        worst = sorted(zip(counts.tolist(), statuses.tolist(), strict=True), reverse=True)[:3]
        reasons = "; ".join(f"{count} times {describe_status(status)}" for count, status in worst)
        reasons += "".join(f"; {count} times {cause}" for cause, count in list(trace.causes.items())[:SHOWN_CAUSES])
        message = f"{counts.sum()} of {len(trace)} requests failed: {reasons}"
        remedy = "read the server's log; latencies are of the answered requests, percentiles count all of them"
        result.warnings.append(RecordWarning(kind="errors", message=message, remedy=remedy))
    requests, sent = session.requests, session.parameters.requests
    is_fresh = sent.distinct is None and sent.dataset is None
    prompts = requests.prompt_lengths if not sent.images else []  # how many tokens a picture has is the server's matter
    result.warnings += trace_metrics.lengths(trace.kept, prompts, requests.output_lengths, is_fresh=is_fresh)
    if trace.retried:
        result.facts["sent_again"] = (
            f"{trace.retried} requests, on a new connection: the server had closed the one that they were sent on"
        )
    result.facts["loop"] = loop
    if session.clients is not None:
        result.facts["clients"] = session.clients.facts(trace)
    if loop == "closed":
        result.facts["closed_loop"] = "each user waits for its answer: a stall of the server hides requests"
    if slo is not None:
        decision = slo.decide(trace)
        result.facts["slo"] = (
            HELD if decision.is_met else f"{MISSED if decision.is_met is False else ''}{decision.reason}"
        )
    return result


def _groups(requests: Requests) -> dict[str, list[Any]]:
    """By what requests differ within a load: the value of each kind."""
    depths = [one.turn.depth for one in requests.prepared]
    return ({"turn": depths} if max(depths, default=1) > 1 else {}) | (
        {"model": requests.models} if requests.models else {}
    )


def _search(session: ServingSession, slo: Slo, points: dict[float, list[Measurement]]) -> SearchResult:
    """Try rates; `points` gets the measurements of the longest trial of each."""
    parameters = session.parameters
    if session.most_rate <= 0:
        raise quality.LoadNotDelivered(
            "the load generator did not keep to its times even towards a server that does nothing, so that no rate "
            "can be searched: let nothing else run on its cores, or send from another machine"
        )
    deadline = session.begun + parameters.search_budget - SPREAD * _confirmation(parameters)
    left = max(0.0, deadline - time.monotonic())
    session.context.report(Progress(phase=f"searching the largest rate, for {show_duration(left)} at most"))

    def probe(rate: float, requests: int) -> RateTrial:
        extra = int(SETTLING * requests) + 1
        load = LoadParameters(arrival="poisson", rate=rate, requests=requests + extra)
        trace = session.send(load, f"trying {rate:.4g}/s")
        if not len(settled := trace.after(extra)):
            raise LimitReached(session.spending.reached)
        verdict = slo.judge(settled)
        points[round(rate, 3)] = trace_metrics.traffic(settled, slo, at={"rate": round(rate, 3)})
        limited = "" if quality.delivered(trace) >= quality.LEAST_DELIVERED else quality.cause(trace)[0]
        missed = min(1.0, verdict.used * (1.0 - slo.share)) * len(settled)
        answered = np.isin(trace.status, (OK, CANCELLED)).sum() / trace_metrics.seconds_of(trace)
        return RateTrial(rate, len(settled), missed, answered, verdict.holds, verdict.reason, limited)

    limit = slo.bounds[-1].limit if slo.bounds else slo.first_token or slo.between_tokens or 1.0
    return find_capacity(
        probe,
        slo.share,
        limit,
        first=FIRST_PART * session.first_rate,
        ceiling=quality.SAFE_PART * session.most_rate * (1.0 if session.ceiling.is_undisturbed else BEYOND),
        tolerance=parameters.search_tolerance,
        longest=LONGEST_PART * parameters.search_budget,
        left=lambda: deadline - time.monotonic(),
    )

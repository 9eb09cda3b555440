"""Puts a peer beside the cases of a run: another benchmark that takes the same parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.benchmark import Benchmark
from paceline.core.case import Case
from paceline.core.errors import InputError


def with_peer(cases: Sequence[Case], peer: str, known: Mapping[str, type[Benchmark[Any]]]) -> list[Case]:
    """After each case that the peer can measure, the same under the peer: what drifts in a run hits both alike."""
    if peer not in known or not any(_fits(case, peer, known) for case in cases):
        raise _refusal(cases, peer, known)
    together: list[Case] = []
    for case in cases:
        together.append(case.model_copy(update={"index": len(together)}))
        if _fits(case, peer, known):
            together.append(_as_peer(case, known[peer]).model_copy(update={"index": len(together)}))
    return together


def _fits(case: Case, peer: str, known: Mapping[str, type[Benchmark[Any]]]) -> bool:
    return case.benchmark != peer and known[case.benchmark].Parameters is known[peer].Parameters


def _as_peer(case: Case, peer: type[Benchmark[Any]]) -> Case:
    parameters = peer.Parameters.model_validate(case.parameters)
    title = peer.title(parameters) + (f" x{case.ranks}" if case.ranks > 1 else "")
    other = case.model_copy(update={"benchmark": peer.name, "title": title, "category": peer.category})
    if case.repeat == 1:
        peer.check(parameters, other)
    return other


def _refusal(cases: Sequence[Case], peer: str, known: Mapping[str, type[Benchmark[Any]]]) -> InputError:
    measured = list(dict.fromkeys(case.benchmark for case in cases))
    fitting = [
        f"{', '.join(names)} for {benchmark}"
        for benchmark in measured
        if (names := [name for name in known if name != benchmark and _same(known[name], known[benchmark])])
    ]
    shown = ", ".join(measured)
    if peer in measured:
        code, reason = "peer-of-itself", "it is measured already, and nothing else here takes its parameters"
    elif peer in known:
        code, reason = "peer-does-not-fit", f"it takes other parameters than {shown}"
    else:
        code, reason = "unknown-benchmark", f"there is no such benchmark to compare with {shown}"
    message = f"{reason}; " + (f"these fit: {'; '.join(fitting)}" if fitting else "none fits")
    return InputError(code, message, where=f"--peer {peer}", key="--peer", value=peer)


def _same(one: type[Benchmark[Any]], other: type[Benchmark[Any]]) -> bool:
    return one.Parameters is other.Parameters

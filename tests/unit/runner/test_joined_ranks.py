"""Processes that a launcher started, as threads around a real store: what each measures, and what the first gathers."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core import network, registry
from paceline.core.network import free_port
from paceline.core.record import Cause, CauseKind, Outcome
from paceline.runner import launcher_ranks
from paceline.runner.execute import CaseEnd, rank_environment
from paceline.runner.launcher_ranks import JoinedRanks, World
from support.probing import PROVIDER, probing_case
from support.refused import refused
from support.scripted_ranks import Play, ScriptedRank, scripted

distributed: Any = pytest.importorskip("torch.distributed", reason="install it with: pip install '.[torch]'")

SIZE = 2
Ranks = Sequence[ScriptedRank]


def world(rank: int, port: int, *, size: int = SIZE, local_size: int = SIZE, agent_store: bool = False) -> World:
    return World(rank, size, rank % local_size, local_size, "127.0.0.1", port, agent_store)


def together(*works: Callable[[], Any]) -> list[Any]:
    """All of them at the same time, each in a thread."""
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            results[place] = works[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    return results


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "providers", lambda: ("paceline", PROVIDER))
    monkeypatch.setattr(launcher_ranks, "JOIN_SECONDS", 10.0)
    monkeypatch.setattr(launcher_ranks, "PATIENCE_SECONDS", 10.0)
    monkeypatch.setattr(launcher_ranks, "GATHER_SECONDS", 5.0)


@pytest.fixture
def pair() -> Iterator[list[JoinedRanks]]:
    port = free_port()
    yield together(*(lambda rank=rank: JoinedRanks(world(rank, port)) for rank in range(SIZE)))


def executed(joined: JoinedRanks, play: Play, size: int = SIZE, index: int = 0) -> tuple[CaseEnd | None, list[Any]]:
    """This process's part of a case, and what was ordered of its server."""
    with scripted(1, play) as server:
        case = probing_case(index, ranks=size, timeout=20.0)
        end = joined.execute(server.warm, case, lambda _progress: None)
        return end, [rank.order for rank in server.ranks]


def measures(ranks: Ranks) -> None:
    ranks[0].measured(0.5)
    ranks[0].exit()


def fails(message: str, at: float = 0.0) -> Play:
    def play(ranks: Ranks) -> None:
        cause = Cause(kind=CauseKind.ERROR, message=message).model_dump(mode="json")
        ranks[0].tell(failed={"outcome": "failed", "cause": cause, "at": at})
        ranks[0].exit()

    return play


def words(joined: JoinedRanks, rank: int, index: int = 0) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(bytes(joined._store.get(f"paceline/case/{index}/rank/{rank}")))
    return read


def test_every_process_measures_its_rank_and_the_first_has_all_results(pair: list[JoinedRanks]) -> None:
    (end, (first,)), (nothing, (second,)) = together(*(lambda one=one: executed(one, measures) for one in pair))
    assert nothing is None
    assert end is not None
    assert (sorted(end.results), end.failure) == ([0, 1], None)
    assert (first["rank"], second["rank"], first["world_size"]) == (0, 1, 2)
    port = first["environment"]["MASTER_PORT"]
    for rank, order in ((0, first), (1, second)):
        shape = rank_environment(rank, rank, SIZE, SIZE, "127.0.0.1", port)
        assert order["environment"] == shape | {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert [words(pair[0], rank)["turn"] for rank in range(SIZE)] == [0, 0]
    assert not pair[0]._store.check(["paceline/case/0/failed"])


def test_a_case_of_one_rank_is_the_first_processs_alone(pair: list[JoinedRanks]) -> None:
    end, orders = executed(pair[0], measures, size=1)
    assert end is not None
    assert (list(end.results), len(orders)) == ([0], 1)
    assert executed(pair[1], measures, size=1) == (None, [])


def test_who_took_the_first_turn_failed_first_whatever_its_clock_says(
    monkeypatch: pytest.MonkeyPatch, pair: list[JoinedRanks]
) -> None:
    monkeypatch.setattr(launcher_ranks, "ABORT_LOOK_SECONDS", 1e9)  # otherwise the first may be ended, and not fail

    def second() -> None:
        executed(pair[1], fails("the cause", at=1e9))
        is_over.set()

    def later(ranks: Ranks) -> None:
        assert is_over.wait(10)
        fails("a later one")(ranks)

    is_over = threading.Event()
    (end, _), _ = together(lambda: executed(pair[0], later), second)
    assert end is not None
    assert end.failure is not None
    assert (end.failure.rank, end.failure.at, end.failure.cause.message) == (1, 1, "the cause")
    assert end.failure.cause.rank == 1
    assert [words(pair[0], rank)["turn"] for rank in range(SIZE)] == [2, 1]


def test_a_failure_ends_the_rank_of_another_process(monkeypatch: pytest.MonkeyPatch, pair: list[JoinedRanks]) -> None:
    monkeypatch.setattr(launcher_ranks, "ABORT_LOOK_SECONDS", 0.0)
    plays: list[Play] = [lambda _ranks: None, fails("the cause")]
    (end, _), _ = together(*(lambda rank=rank: executed(pair[rank], plays[rank]) for rank in range(SIZE)))
    assert end is not None
    assert end.failure is not None
    assert (end.failure.cause.message, end.results) == ("the cause", {})


@pytest.mark.parametrize(("now", "looks"), [([1.2], 1), ([10.0, 10.25, 10.5, 10.75, 11.0], 3)])
def test_failures_elsewhere_are_looked_for_twice_a_second(
    monkeypatch: pytest.MonkeyPatch, pair: list[JoinedRanks], now: list[float], looks: int
) -> None:
    class Counted:
        """The store, and how often it was looked into."""

        def __init__(self, store: Any) -> None:
            self.store = store
            self.checks = 0

        def check(self, keys: list[str]) -> bool:
            self.checks += 1
            return bool(self.store.check(keys))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

    class Execution:
        """Only asks whether it should stop."""

        def __init__(self, *_: Any, abort: Callable[[], bool], **__: Any) -> None:
            self.abort = abort

        def run(self, _imports: tuple[str, ...]) -> CaseEnd:
            for one in now:
                monkeypatch.setattr(launcher_ranks, "time", SimpleNamespace(monotonic=lambda one=one: one))
                answers.append(self.abort())
            return CaseEnd()

    answers: list[bool] = []
    monkeypatch.setattr(launcher_ranks, "CaseExecution", Execution)
    pair[0]._store.set("paceline/case/0/port", "1")
    pair[0]._store.set("paceline/case/0/failed", "1")
    pair[1]._store = counted = Counted(pair[1]._store)
    pair[1].execute(None, probing_case(ranks=SIZE), lambda _progress: None)  # type: ignore[arg-type]
    assert counted.checks == looks
    assert answers == [number % 2 == 0 for number in range(len(now))]


def test_a_rank_that_was_ended_without_a_word_is_missed(pair: list[JoinedRanks]) -> None:
    pair[1]._store.set("paceline/case/0/rank/1", json.dumps(CaseEnd().words() | {"turn": 0}))
    end, _ = executed(pair[0], measures)
    cause = Cause(kind=CauseKind.ERROR, message="some ranks were ended before they had a result")
    assert end is not None
    assert end.failure is not None
    assert (end.failure.rank, end.failure.outcome, end.failure.cause) == (0, Outcome.FAILED, cause)
    assert end.failure.at == 0.0


class Silent:
    """The store, in which some ranks are never heard of; and how long each is waited for."""

    def __init__(self, store: Any, clock: list[float]) -> None:
        self.store = store
        self.clock = clock
        self.waits: list[float] = []

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.waits.append(timeout.total_seconds())
        if not self.store.check(keys):
            self.clock[0] += timeout.total_seconds()
            raise distributed.DistStoreError("not there")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def test_a_process_that_is_gone_is_the_cause_and_no_later_case_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    joined = together(*(lambda rank=rank: JoinedRanks(world(rank, port, size=3)) for rank in range(3)))
    clock = [100.0]
    monkeypatch.setattr(launcher_ranks, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=None))
    joined[0]._store = silent = Silent(joined[0]._store, clock)
    end, _ = executed(joined[0], fails("Connection reset by peer"), size=3)
    assert silent.waits == [5.0, 5.0, pytest.approx(0.1)]
    assert end is not None
    assert end.failure is not None
    message = "rank 1 was not heard of again: its process or its host is gone"
    assert end.failure.cause == Cause(kind=CauseKind.INTERRUPTED, message=message, rank=1)
    assert (end.failure.rank, end.failure.outcome, end.failure.at) == (1, Outcome.FAILED, math.inf)
    again, orders = executed(joined[0], measures, size=3, index=1)
    assert (again, orders) == (CaseEnd(failure=end.failure), [])
    assert executed(joined[1], measures, size=3, index=1) == (None, [])
    # It has gone already: only the third process is missing, and it comes while this one sleeps.
    joined[0]._lost.pop(2)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            assert joined[2].leave(9) == 3

    monkeypatch.setattr(launcher_ranks, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=nap))
    assert joined[0].leave(3) == 3
    assert naps == [0.05, 0.05]
    assert joined[0]._store.add("paceline/left", 0) == 2


def test_the_first_waits_for_those_that_leave_until_its_patience_ends(
    monkeypatch: pytest.MonkeyPatch, pair: list[JoinedRanks]
) -> None:
    def nap(_seconds: float) -> None:
        naps.append(clock[0])
        clock[0] += 2.5

    clock, naps = [100.0], list[float]()
    monkeypatch.setattr(launcher_ranks, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=nap))
    assert pair[0].leave(4) == 4
    assert naps == [100.0, 102.5]
    assert pair[1].leave(7) == 4, "all leave with the first one's code"


def test_the_first_announcement_of_cases_counts(pair: list[JoinedRanks]) -> None:
    pair[0].announce([probing_case(3)])
    pair[0].announce([])
    assert pair[1].hear_cases() == [probing_case(3)]


def test_what_is_shared_is_made_by_the_first(pair: list[JoinedRanks]) -> None:
    made = together(lambda: pair[0].share("x", lambda: "zero"), lambda: pair[1].share("x", lambda: "one"))
    assert made == ["zero", "zero"]


def test_where_torchrun_serves_the_store_nobody_else_does() -> None:
    store = distributed.TCPStore("127.0.0.1", 0, SIZE, is_master=True, wait_for_workers=False)
    joined = JoinedRanks(world(0, store.port, agent_store=True))
    joined.announce([])
    assert store.check(["paceline/cases"])


def test_processes_that_do_not_meet_say_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_ranks, "JOIN_SECONDS", 0.05)
    port = free_port()
    with refused("ranks-did-not-meet", key="MASTER_ADDR", value="127.0.0.1", says=f"rank 1 .* other 1 .*:{port}"):
        JoinedRanks(world(1, port))


@pytest.mark.parametrize(
    ("local_size", "addresses", "expected"),
    [
        (1, ["127.0.0.1", "10.0.0.2"], [{"IF": "10.0.0.2 from outside"}, {"IF": "10.0.0.2"}]),
        (1, ["10.0.0.1", "10.0.0.2"], [{"IF": "10.0.0.1"}, {"IF": "10.0.0.2"}]),
        (1, ["127.0.0.1", "127.0.0.1"], [{}, {}]),
        (2, ["10.0.0.1", "10.0.0.2"], [{}, {}]),
    ],
)
def test_ranks_of_several_hosts_take_the_interface_between_them(
    monkeypatch: pytest.MonkeyPatch, local_size: int, addresses: list[str], expected: list[dict[str, str]]
) -> None:
    place = threading.local()

    def own_address(towards: str) -> str:
        return addresses[place.rank] if towards == "127.0.0.1" else f"{towards} from outside"

    def join(rank: int) -> JoinedRanks:
        place.rank = rank
        return JoinedRanks(world(rank, port, local_size=local_size))

    port = free_port()
    monkeypatch.setattr(network, "own_address", own_address)
    for module in (network, launcher_ranks):
        monkeypatch.setattr(module, "is_loopback", lambda address: address.startswith("127."))
    monkeypatch.setattr(launcher_ranks, "bound_to", lambda address: {"IF": address})
    joined = together(*(lambda rank=rank: join(rank) for rank in range(SIZE)))
    assert [one._network for one in joined] == expected

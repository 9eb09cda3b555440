"""One load is drawn from one seed, and workers share it out whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.load.arrivals import Schedule
from paceline.load.generator import LoadPlan, cost_of
from paceline.load.parameters import LoadParameters
from paceline.load.request import Prepared
from paceline.load.worker import WorkerTask
from support.refused import refused

KINDS = [Prepared(b"a"), Prepared(b"b" * 100), Prepared(b"c")]
POISSON = LoadParameters(arrival="poisson", rate=100, duration=5)
TASK = WorkerTask(parent=1, transport="http", host="h", port=1, path="/", tls=False, payloads=[], metadata=[])


def test_a_seed_settles_times_and_kinds_and_workers_change_neither() -> None:
    plan, again = LoadPlan.of(POISSON, KINDS, 3), LoadPlan.of(POISSON, KINDS, 3)
    assert np.array_equal(plan.intended, again.intended)
    assert np.array_equal(plan.kinds, again.kinds)
    tasks = plan.divided(TASK, 3)
    together = np.concatenate([task.intended for task in tasks])
    kinds = np.concatenate([task.kinds for task in tasks])[np.argsort(together)]
    assert np.array_equal(np.sort(together), plan.intended)
    assert np.array_equal(kinds, plan.kinds)
    assert len(np.unique(together)) == len(together)


def test_a_network_changes_neither_times_nor_kinds() -> None:
    plain = LoadPlan.of(POISSON, KINDS, 3)
    over = LoadPlan.of(LoadParameters(arrival="poisson", rate=100, duration=5, network="4g"), KINDS, 3)
    assert np.array_equal(plain.intended, over.intended)
    assert np.array_equal(plain.kinds, over.kinds)
    assert over.up is not None and over.up.min() > 0 and plain.up is None


def test_what_users_machines_do_holds_their_own_requests_back() -> None:
    kinds = [Prepared(b"a"), Prepared(b"b", before=0.5, after=0.25)]
    plan = LoadPlan.of(POISSON, kinds, 3)
    assert plan.up is not None and plan.down is not None
    assert np.array_equal(plan.up, np.where(plan.kinds == 1, 0.5, 0.0))
    assert np.array_equal(plan.down, np.where(plan.kinds == 1, 0.25, 0.0))
    load = LoadParameters(arrival="poisson", rate=100, duration=5, network="4g")
    bare, over = LoadPlan.of(load, KINDS, 3), LoadPlan.of(load, [replace(one, before=0.5) for one in KINDS], 3)
    assert bare.up is not None and over.up is not None and np.allclose(over.up, bare.up + 0.5)


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with refused("unknown-kind", key="requests.distinct", value=len(KINDS), suggestion="8"):
        LoadPlan.of(Schedule(np.zeros(2), np.array([0, 7], np.int32)), KINDS, 3)


def test_a_load_without_requests_is_refused() -> None:
    with refused("no-requests", key="load.rate"):
        LoadPlan.of(LoadParameters(arrival="poisson", rate=0.001, duration=0.001), KINDS, 3)


def test_there_are_as_many_workers_as_the_rate_needs() -> None:
    slow = LoadPlan.of(POISSON, KINDS, 3)
    fast = LoadPlan.of(LoadParameters(arrival="constant", rate=19_000, duration=1), KINDS, 3)
    assert (slow.workers(64), fast.workers(64), fast.workers(2)) == (1, 5, 2)


def test_large_requests_and_calls_of_grpc_need_more_workers() -> None:
    four = LoadPlan.of(LoadParameters(arrival="closed", users=4, duration=1), KINDS, 3)
    small, large = [Prepared(b"x" * 100)], [Prepared(b"x" * 5_000_000)]
    assert cost_of(small) == pytest.approx(1.0, abs=1e-2)
    assert four.workers(64, cost_of(small)) == 1
    assert (four.workers(64, cost_of(large)), four.workers(2, cost_of(large))) == (4, 2)
    assert cost_of(small, is_grpc=True) > 4 * cost_of(small)


def test_users_and_counts_of_a_closed_loop_are_shared_out() -> None:
    plan = LoadPlan.of(LoadParameters(arrival="closed", users=5, requests=12), KINDS, 3)
    tasks = plan.divided(TASK, 3)
    assert [task.users for task in tasks] == [2, 2, 1]
    assert sum(task.requests or 0 for task in tasks) == 12
    assert len(plan.divided(TASK, 9)) == 5

"""What tests of every kind share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.registry import FILE, providers
from support.cli import Sandbox, sandbox_in
from support.postgres import PostgresServer, postgres_server

# Tests that run beside each other share the processors. Threads of several torches on one of them wait for each other
# in loops that take its time, so that a step takes twice to three times as much of it.
_BESIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _BESIDE > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _BESIDE)))

# Files that take longest in `make test`, the longest first: what starts last should be short, or all wait for it.
LONGEST = (
    "test_serve",
    "test_parallel_parity",
    "test_one_file_plugin",
    "test_network_and_disk",
    "test_my_model",
    "test_scripted_device",
    "test_leader_command",
    "test_ab",
    "test_language_load",
    "test_serve_language",
    "test_browser_report",
    "test_language_workloads",
    "test_collectives",
    "test_run_options",
    "test_list",
    "test_load_faults",
    "test_browser_leader",
    "test_completion_shells",
    "test_profile_option",
    "test_kill",
    "test_history",
    "test_shared_memory",
    "test_embedded_server",
    "test_hosts",
    "test_bad_days",
    "test_any_http",
    "test_io_faults",
    "test_leader_kill",
    "test_export_processes",
    "test_flashlight",
    "test_libai",
    "test_postgres",
    "test_data_parallel",
    "test_ab_trials",
    "test_machine_measure",
    "test_fleet",
    "test_worker",
    "test_compare_significance",
    "test_pytest_plugin",
    "test_docs",
    "test_zoo",
    "test_trend",
    "test_trends",
    "test_store",
    "test_native_client",
    "test_flops",
    "test_select_fleets",
    "test_tune_search",
    "test_export",
    "test_batch_size",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first; the order of all others, and of the tests in a file, stays."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(autouse=True)
def _no_file_of_another_test() -> Iterator[None]:
    """A file of benchmarks that a test used in this process stays used, as `paceline run ./bench.py` wants it."""
    yield
    if os.environ.pop(FILE, None) is not None:
        providers.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _out_of_the_collectors_sight() -> None:
    """Before each file, collect garbage and let the collector leave alone whatever else is there by then.

    It would go through all modules and collected tests again and again: a third of the time of many unit tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def with_long(request: pytest.FixtureRequest) -> bool:
    """Whether long tests of this file run too: what they share with the others must then be whole."""
    return any(item.path == request.path and item.get_closest_marker("long") for item in request.session.items)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A place to start real processes in; whatever they leave running ends with the test."""
    with sandbox_in(tmp_path / "sandbox") as made:
        yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of our own, for as long as the tests run."""
    with postgres_server() as server:
        yield server

"""The pytest plug-in: `def test_speed(paceline): paceline.measure(f, x)` measures within a test, and keeps the result.

It imports nothing heavy until a test measures. Where pytest-benchmark is not installed, its names of options work too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from paceline.api.pytest_session import MeasuringSession
    from paceline.api.result import CaseResult

FIXTURE = "paceline"
LAST = "last"
_SESSION: pytest.StashKey[MeasuringSession] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options under our own names, and under those of pytest-benchmark where that is not installed."""
    group = parser.getgroup("paceline", "measuring with Paceline")
    has_other = importlib.util.find_spec("pytest_benchmark") is not None

    def add(name: str, **settings: Any) -> None:
        names = [f"--paceline-{name}"] + ([] if has_other else [f"--benchmark-{name}"])
        group.addoption(*names, dest=f"paceline_{name.replace('-', '_')}", **settings)

    add("skip", action="store_true", help="Skip the tests that measure.")
    add("only", action="store_true", help="Run only the tests that measure.")
    add("disable", action="store_true", help="Call what would be measured once, and keep nothing.")
    add("compare", nargs="?", const=LAST, metavar="RUN", help="Compare with a run or tag; alone, with the run before.")
    add(
        "compare-fail",
        action="append",
        default=[],
        metavar="LIMIT",
        help="With --paceline-compare: fail where a test is significantly slower than this, as in 5%% or time>1.05.",
    )
    group.addoption("--paceline-store", metavar="PATH|URL", help="Where results go; unset is the store of `paceline`.")
    group.addoption("--paceline-tag", metavar="NAME", help="Name the run of this session.")
    group.addoption("--paceline-budget", default="1s", metavar="TIME", help="Time to measure each test, at most.")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot be meant before a test runs."""
    option = config.option
    if option.paceline_skip and option.paceline_only:
        raise pytest.UsageError("--paceline-skip and --paceline-only exclude each other")
    if option.paceline_compare_fail and option.paceline_compare is None:
        raise pytest.UsageError("--paceline-compare-fail goes with --paceline-compare")
    if option.paceline_compare_fail or option.paceline_compare or option.paceline_tag:
        from paceline.api.pytest_session import check_options
        from paceline.core.errors import InputError

        try:
            check_options(option)
        except InputError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out those that measure, or the others."""
    option = config.option
    if option.paceline_skip:
        for item in filter(_measures, items):
            item.add_marker(pytest.mark.skip(reason="--paceline-skip"))
    if option.paceline_only:
        others = [item for item in items if not _measures(item)]
        items[:] = filter(_measures, items)
        config.hook.pytest_deselected(items=others)


class Measuring:
    """What a test gets: it measures a function, once."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._is_used = False

    def measure(self, function: Callable[..., Any], /, *arguments: Any, **more: Any) -> CaseResult | None:
        """Time calls of a function until the figure is precise or the budget is spent, in the process of the test.

        The figure is `result["time"]`, with its interval and warnings. None where measuring is disabled, as it is under
        pytest-xdist: tests next to each other would take each other's time. The function is then called once.
        """
        if self._is_used:
            raise pytest.UsageError("a test measures once: write another test for the other function")
        self._is_used = True
        config = self._request.config
        if config.option.paceline_disable or hasattr(config, "workerinput"):
            function(*arguments, **more)
            return None
        session = _session_of(self._request.session)
        return session.measure(self._request.node.nodeid, partial(function, *arguments, **more))


@pytest.fixture(name=FIXTURE)
def _paceline(request: pytest.FixtureRequest) -> Measuring:
    """Measures a function: `paceline.measure(f, *arguments)`."""
    return Measuring(request)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the run; compare it, and let the session fail where it should."""
    measuring = session.config.stash.get(_SESSION, None)
    if measuring is not None and measuring.finish() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """The figures with their intervals, and what a comparison came to."""
    measuring = config.stash.get(_SESSION, None)
    if measuring is not None:
        terminalreporter.section("paceline")
        terminalreporter.write_line(measuring.text(terminalreporter._tw.fullwidth))


def _measures(item: pytest.Item) -> bool:
    return FIXTURE in getattr(item, "fixturenames", ())


def _session_of(session: pytest.Session) -> MeasuringSession:
    """The run of this session, begun with the first test that measures."""
    stash = session.config.stash
    if _SESSION not in stash:
        from paceline.api.pytest_session import MeasuringSession

        tests = [item.nodeid for item in session.items if _measures(item)]
        stash[_SESSION] = MeasuringSession(session.config.option, tests)
    return stash[_SESSION]

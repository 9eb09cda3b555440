"""What a user names as cases on this machine: a suite, a benchmark, or the benchmarks of a Python file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError, unknown

if TYPE_CHECKING:
    from paceline.api.running import Others
    from paceline.core.benchmark import Benchmark
    from paceline.core.case import Case
    from paceline.core.suite import Here, Suite


def find_suite(what: str) -> Suite:
    """A suite file, a suite that ships, or a benchmark as a suite of one case."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.core.suite import Suite
    from paceline.runner.suite_file import load_suite, shipped

    if "/" in what or what.endswith((".yaml", ".yml")) or what in shipped():
        return load_suite(what)
    with suppress(InputError):
        return Suite.of_benchmark(BENCHMARKS.get(what).name)
    benchmarks = BENCHMARKS.registry()
    if any(what in failure.module for failure in benchmarks.broken):
        benchmarks.get(what)
    raise unknown("suite or benchmark", what, [*shipped(), *benchmarks.entries])


def suite_of_file(what: str) -> Suite:
    """Every benchmark of a Python file, one case each, its parameters still to come."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.core.registry import use_file
    from paceline.core.suite import Suite

    path = Path(what).expanduser()
    if not path.is_file():
        message = f"the file {what} does not exist; paths begin at {Path.cwd()}"
        raise InputError("missing-file", message, value=what)
    module = use_file(path)
    registry = BENCHMARKS.registry()
    for failure in registry.broken:
        if failure.module == module:
            raise InputError("failing-import", f"{what} cannot be used: {failure.reason}", value=what)
    names = [name for name, benchmark in registry.entries.items() if benchmark.__module__ == module]
    if not names:
        message = (
            f"{what} has no benchmark: expected is a function like this, or a subclass of Benchmark\n"
            "  import paceline\n"
            "  @paceline.benchmark\n"
            "  def mine(size: int = 100):\n"
            "      return sum(range(size))"
        )
        raise InputError("no-benchmark", message, value=what)
    return Suite(name=path.stem, cases=[{"benchmark": name} for name in names], is_written=False)


def expand_here(
    suite: Suite,
    overrides: dict[str, Any],
    world: Others = None,
    peer: str | None = None,
    filters: Sequence[str] = (),  # what the name of a case must have in it
) -> list[Case]:
    """The suite's cases on this machine, or where its ranks will be; each also under the peer."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.core.suite import expand, only

    cases = only(expand(suite, BENCHMARKS.get, here_of(world), overrides), filters, suite.name)
    return with_peer(cases, peer, BENCHMARKS.registry().entries) if peer is not None else cases


def here_of(world: Others) -> Here:
    """What expansion must know of this machine, or of where the ranks will be."""
    from paceline.core.suite import Here
    from paceline.devices import counts
    from paceline.machine.inventory import parts
    from paceline.runner.launcher_ranks import JoinedRanks

    is_here = world is None or isinstance(world, JoinedRanks)
    devices = counts() if world is None or isinstance(world, JoinedRanks) else world.devices
    size, nodes = (world.size, world.nodes) if world is not None else (1, 1)
    of_machine = parts() if is_here else getattr(world, "parts", {})
    return Here(devices=devices, world=size, nodes=nodes, parts=of_machine)


def left_out(suite: Suite, world: Others = None) -> list[str]:
    """What of another tool's file has no counterpart where it is measured, each with why."""
    from paceline.runner.superbench_modes import not_as_asked

    return [*suite.notes, *(not_as_asked(suite, here_of(world)) if suite.asked else [])]


def left_out_of_each(suite: Suite) -> list[str]:
    """The same for hosts that measure by themselves, as far as it is known before they are entered."""
    from paceline.core.suite import Here
    from paceline.runner.superbench_modes import not_as_asked

    return [*suite.notes, *not_as_asked(suite, Here(), ["hosts"])]


def left_out_there(suite: Suite, world: Others) -> list[str]:
    """The rest of it, on a host that has been entered."""
    from paceline.runner.superbench_modes import not_as_asked

    return not_as_asked(suite, here_of(world), ["ranks", "each"])


def with_peer(cases: Sequence[Case], peer: str, benchmarks: Mapping[str, type[Benchmark[Any]]]) -> list[Case]:
    """After each case that the peer can measure, the same under the peer: what drifts in a run hits both alike."""
    from paceline.core.case import RENAMED

    fitting = {}  # the other benchmarks that take the same parameters
    for name in dict.fromkeys(case.benchmark for case in cases):
        taken = benchmarks[name].Parameters
        fitting[name] = [one for one in benchmarks if one != name and benchmarks[one].Parameters is taken]
    if not any(peer in names for names in fitting.values()):
        shown = ", ".join(fitting)
        if peer in fitting:
            code, reason = "peer-of-itself", "it is measured already, and nothing else here takes its parameters"
        elif peer in benchmarks:
            code, reason = "peer-does-not-fit", f"it takes other parameters than {shown}"
        else:
            code, reason = "unknown-benchmark", f"there is no such benchmark to compare with {shown}"
        allowed = "; ".join(f"{', '.join(names)} for {name}" for name, names in fitting.items() if names)
        message = f"{reason}; " + (f"these fit: {allowed}" if allowed else "none fits")
        if flags := sorted({new.replace("_", "-") for one in fitting if (new := RENAMED.get(one, {}).get("peer"))}):
            message += f"; another host is named with --{flags[0]}"
        raise InputError(code, message, where=f"--peer {peer}", key="--peer", value=peer)
    other = benchmarks[peer]
    together: list[Case] = []
    for case in cases:
        together.append(case.model_copy(update={"index": len(together)}))
        if peer in fitting[case.benchmark]:
            parameters = other.Parameters.model_validate(case.parameters)
            title = other.title(parameters) + (f" x{case.ranks}" if case.ranks > 1 else "")
            update = {"benchmark": other.name, "title": title, "category": other.category, "index": len(together)}
            together.append(case.model_copy(update=update))
            if case.repeat == 1:
                other.check(parameters, together[-1])
    return together

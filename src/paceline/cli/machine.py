"""Say what this machine is, and measure what it can do at most."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.environment import Cpu, Environment, EnvironmentPart, Gpu, Inventory

Row = tuple[str, str | None]


@click.command("machine")
@click.option("--measure", is_flag=True, help="Measure what this machine can do at most, and store it as its profile.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="With --measure: override a parameter of the suite."
)
@click.option("--store", metavar="PATH|URL", help="With --measure: where results go.")
@click.option("--json", "as_json", is_flag=True, help="Print everything, for programs.")
def command(measure: bool, settings: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Say what this machine is: hardware, software and settings that bear on a number.

    With --measure, also what it can do at most: the suite 'ceilings' is run, which takes some minutes.
    """
    if measure:
        from paceline.cli import _profile
        from paceline.cli._flags import read_settings

        sys.exit(_profile.measure(read_settings(settings), store, as_json=as_json))
    if settings or store is not None:
        from paceline.core.errors import InputError

        flag = "--set" if settings else "--store"
        raise InputError("option-without-measure", f"{flag} goes with --measure", key=flag)
    from paceline.core.errors import PacelineError
    from paceline.machine import describe
    from paceline.machine.profile import identity_of, load_profile

    environment = describe()
    profile, problem = None, ""
    try:
        profile = load_profile(identity_of(environment))
    except PacelineError as error:
        problem = str(error)
    if as_json:
        document = environment.model_dump(mode="json")
        document["profile"] = profile.model_dump(mode="json") if profile else None
        click.echo(json.dumps(document, indent=2))
    else:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console()
        for title, rows in sections(environment):
            table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE, pad_edge=False)
            table.add_column(style="dim", no_wrap=True, min_width=15)
            table.add_column(overflow="fold")
            for name, value in rows:
                if value:
                    table.add_row(name, Text(value))  # as text, since a value's square brackets are not markup
            console.print(table)
        if profile is not None:
            from paceline.cli import _profile
            from paceline.report.render import terminal

            terminal.show(_profile.document(profile, environment), console)
        else:
            console.print("What it can do at most was not measured yet: paceline machine --measure", style="dim")
    if problem:
        click.echo(f"paceline: {problem}", err=True)


def sections(environment: Environment) -> Iterator[tuple[str, list[Row]]]:
    """What is shown, as rows of a name and a value; a row without a value is left out."""
    from paceline.core.quantity import show_size

    kinds = (environment.container, environment.virtualization)
    around = ", ".join(kind for kind in kinds if kind and kind != "none")
    yield (
        "system",
        [
            ("host", environment.host),
            ("system", _join(environment.distribution, environment.system, environment.kernel)),
            ("runs in", around or None),
            ("load", " ".join(f"{value:.2f}" for value in environment.load) if environment.load else None),
        ],
    )
    memory = environment.memory
    total = show_size(memory.total) if memory.total is not None else None
    left = f"{show_size(memory.available)} available" if memory.available is not None else None
    limit = f"limited to {show_size(memory.limit)}" if memory.limit is not None else None
    swap = f"{show_size(memory.swap_used or 0)} of {show_size(memory.swap_total)}" if memory.swap_total else None
    yield "processor", [*_cpu_rows(environment.cpu), ("memory", _join(total, left, limit)), ("swap in use", swap)]
    for gpu in environment.gpus:
        yield f"gpu {gpu.index}", _gpu_rows(gpu)
    yield from _inventory(environment.inventory)
    software, driver, git = environment.software, environment.driver, environment.git
    versions: list[str | None] = []
    if driver is not None:
        cuda, rocm = f"CUDA {driver.cuda}" if driver.cuda else None, f"ROCm {driver.rocm}" if driver.rocm else None
        versions = [driver.version, cuda, rocm]
    torch = "CPU only" if "torch" in software.packages else None
    if software.torch_cuda or software.torch_hip:
        torch = f"CUDA {software.torch_cuda}" if software.torch_cuda else f"ROCm {software.torch_hip}"
    commit = None
    if git is not None and git.commit is not None:
        commit = git.commit[:12] + (" with changes" if git.dirty else "")
    yield (
        "software",
        [
            ("paceline", software.paceline),
            ("python", f"{software.implementation} {software.python}"),
            ("driver", _join(*versions)),
            ("torch built for", torch),
            *software.packages.items(),
            ("git", commit),
        ],
    )
    if environment.variables:
        yield "variables", list(environment.variables.items())


def _inventory(inventory: Inventory) -> Iterator[tuple[str, list[Row]]]:
    if inventory.board or inventory.bios:
        yield "board", [("board", inventory.board), ("bios", inventory.bios)]
    lists: dict[str, Sequence[EnvironmentPart]] = {
        "memory modules": inventory.modules or (),
        "networks": inventory.nics,
        "disks": inventory.disks,
        "pci": inventory.cards,
    }
    for title, parts in lists.items():
        if parts:
            yield title, [(name, ", ".join(words)) for name, *words in map(_words_of, parts)]


def _words_of(part: EnvironmentPart) -> Iterator[str]:
    """Every field that is known; the first one names it."""
    from paceline.core.quantity import show_size

    for name, value in part:
        if value is not None:
            shown = show_size(value) if name == "size" else str(value)
            is_clear = isinstance(value, str) and name not in ("firmware", "parent")
            yield shown if is_clear or name == "size" else f"{name.replace('_', ' ')} {shown}"


def _cpu_rows(cpu: Cpu) -> list[Row]:
    from paceline.core.quantity import show_size

    letters = {"Data": "d", "Instruction": "i"}
    caches = [f"L{c.level}{letters.get(c.kind, '')} {show_size(c.size)}" for c in cpu.caches if c.size]
    counts = (("socket", cpu.sockets), ("core", cpu.physical_cores), ("thread", cpu.logical_cores))
    cores = [f"{count} {noun}{'s' if count != 1 else ''}" for noun, count in counts if count is not None]
    usable = f"{cpu.usable:g} usable" if cpu.usable is not None else None
    return [
        ("cpu", _join(cpu.model, cpu.architecture)),
        ("cores", _join(*cores, usable)),
        ("clock", _pair(cpu.frequency_mhz, cpu.max_frequency_mhz, "MHz")),
        ("governor", cpu.governor),
        ("boost", _switch(cpu.boost)),
        ("instructions", " ".join(cpu.flags) or None),
        ("caches", ", ".join(caches) or None),
        ("numa nodes", ", ".join(f"{node.index}: cores {node.cpus}" for node in cpu.numa_nodes if node.cpus) or None),
    ]


def _gpu_rows(gpu: Gpu) -> list[Row]:
    from paceline.core.quantity import show_size

    processes = gpu.processes
    used = f"{show_size(gpu.memory_used)} used" if gpu.memory_used is not None else None
    pcie = f"gen {gpu.pcie_generation} x{gpu.pcie_width}" if gpu.pcie_generation and gpu.pcie_width else None
    capability = f"compute capability {gpu.compute_capability}" if gpu.compute_capability else None
    hidden = f"not visible to {gpu.kind.upper()} here"
    return [
        ("name", _join(gpu.name, gpu.architecture, capability)),
        ("target", f"{gpu.kind}:{gpu.cuda_index}" if gpu.cuda_index is not None else hidden),
        ("uuid", gpu.uuid),
        ("memory", _join(show_size(gpu.memory_total) if gpu.memory_total else None, used)),
        ("sm clock", _pair(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, "MHz")),
        ("memory clock", _pair(gpu.memory_clock_mhz, gpu.memory_clock_max_mhz, "MHz")),
        ("power", _pair(gpu.power_watts, gpu.power_limit_watts, "W")),
        ("temperature", f"{gpu.temperature_celsius} °C" if gpu.temperature_celsius is not None else None),
        ("clocks held by", ", ".join(gpu.throttle_reasons) if gpu.throttle_reasons else None),
        ("ecc", _switch(gpu.ecc.enabled)),
        ("mig", _switch(gpu.mig)),
        ("persistence", _switch(gpu.persistence)),
        ("pcie", pcie),
        ("processes", ", ".join(f"{one.name or 'unseen'} ({one.pid})" for one in processes) if processes else None),
    ]


def _join(*parts: str | None) -> str | None:
    return ", ".join(part for part in parts if part) or None


def _pair(now: float | None, most: float | None, unit: str) -> str | None:
    if now is None:
        return f"at most {most:.0f} {unit}" if most is not None else None
    return f"{now:.0f} {unit}" + (f" of {most:.0f} {unit}" if most is not None else "")


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"

"""What a machine is: the models that are stored with every run; None means unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.core.quantity import show_size


class EnvironmentPart(BaseModel):
    """Base of everything that describes a machine; fields of another version are kept, not refused."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Cache(EnvironmentPart):
    """One cache as the first usable core sees it."""

    level: int
    kind: str  # Data, Instruction, Unified
    size: int | None = None  # bytes
    shared_by: int | None = None  # logical cores


class NumaNode(EnvironmentPart):
    """One node of memory and the cores next to it."""

    index: int
    cpus: str | None = None  # as the kernel writes it: 0-15,32-47
    memory: int | None = None  # bytes


class Cpu(EnvironmentPart):
    """The processor and how much of it this process may use."""

    model: str | None = None
    architecture: str | None = None
    sockets: int | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    affinity: int | None = None  # logical cores this process may be scheduled on
    # The logical cores that the run was pinned to, as the kernel writes them: 0-3,8; None where it was not
    pinned: str | None = None
    quota: float | None = None  # cores' worth of time that the control group grants; None where there is no quota
    usable: float | None = None  # the smaller of affinity and quota
    frequency_mhz: float | None = None
    max_frequency_mhz: float | None = None
    governor: str | None = None
    boost: bool | None = None
    # Instruction sets that matter to deep learning, in the kernel's words
    flags: list[str] = Field(default_factory=list)
    caches: list[Cache] = Field(default_factory=list)
    numa_nodes: list[NumaNode] = Field(default_factory=list)


class Memory(EnvironmentPart):
    """Host memory, in bytes."""

    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None
    limit: int | None = None  # what the control group grants; None where that is all of it
    limit_used: int | None = None  # how much of the limit is taken and cannot be reclaimed at once


class GpuProcess(EnvironmentPart):
    """A process that computes on a GPU."""

    pid: int
    name: str | None = None  # None where the process is outside this process's view
    memory: int | None = None  # bytes


class Ecc(EnvironmentPart):
    """Error correction of GPU memory; volatile counts since the driver was loaded, aggregate for the card's life."""

    enabled: bool | None = None
    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_aggregate: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None


class Gpu(EnvironmentPart):
    """One GPU as its driver describes it."""

    kind: str = "cuda"  # the device kind; records of a time when there was one do not say
    index: int = 0  # place in the driver's order
    # N of KIND:N in this process; None where it is hidden, or where the order cannot be known
    cuda_index: int | None = None
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    compute_capability: str | None = None  # of NVIDIA's GPUs
    architecture: str | None = None  # of AMD's GPUs, such as gfx942
    memory_total: int | None = None
    memory_used: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    power_limit_default_watts: float | None = None
    power_limit_max_watts: float | None = None
    temperature_celsius: int | None = None
    ecc: Ecc = Ecc()
    mig: bool | None = None
    persistence: bool | None = None
    throttle_reasons: list[str] | None = None  # why the clocks are not at their maximum just now
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    processes: list[GpuProcess] | None = None


class Driver(EnvironmentPart):
    """The driver of the GPUs."""

    version: str | None = None
    cuda: str | None = None  # newest CUDA version that the driver runs
    rocm: str | None = None


class Software(EnvironmentPart):
    """What the numbers were computed with."""

    python: str | None = None
    implementation: str | None = None
    paceline: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    torch_cuda: str | None = None  # CUDA version torch was built for; None for a build without CUDA
    torch_hip: str | None = None


class Git(EnvironmentPart):
    """The repository that the run was started in."""

    commit: str | None = None
    dirty: bool | None = None


class Nic(EnvironmentPart):
    """A network interface of a card; an InfiniBand port is one, too."""

    name: str  # eth0, mlx5_0/1
    driver: str | None = None
    firmware: str | None = None
    speed: str | None = None  # as the driver says it
    state: str | None = None
    pci: str | None = None  # address of its card


class Disk(EnvironmentPart):
    """A disk that is not made of others."""

    name: str
    model: str | None = None
    size: int | None = None  # bytes
    firmware: str | None = None
    pci: str | None = None


class PciCard(EnvironmentPart):
    """A GPU, a network card or a storage controller, and the link that it hangs on."""

    address: str
    kind: str  # gpu, network, storage
    device: str | None = None  # the numbers of its maker and model
    driver: str | None = None
    parent: str | None = None  # address of the bridge above it
    numa_node: int | None = None
    width: int | None = None
    width_max: int | None = None
    speed: str | None = None  # an idle link may slow down
    speed_max: str | None = None


class MemoryModule(EnvironmentPart):
    """One module of host memory, from the firmware's table."""

    slot: str | None = None
    size: int | None = None  # bytes
    kind: str | None = None  # DDR5
    speed: int | None = None  # millions of transfers in a second
    part: str | None = None  # number of the maker's


class Inventory(EnvironmentPart):
    """What is built into a machine."""

    board: str | None = None  # maker and name
    bios: str | None = None  # maker, version and date
    nics: list[Nic] = Field(default_factory=list)
    disks: list[Disk] = Field(default_factory=list)
    cards: list[PciCard] = Field(default_factory=list)
    modules: list[MemoryModule] | None = None  # None where only root may read them

    @property
    def facts(self) -> dict[str, str]:
        """What two machines of one kind have in common, in words; what is not known is left out."""
        nics = [(nic.driver, nic.firmware and f"firmware {nic.firmware}", nic.speed) for nic in self.nics]
        disks = [(disk.model, disk.firmware and f"firmware {disk.firmware}") for disk in self.disks]
        links = [(one.kind, one.width and f"x{one.width}", one.speed_max) for one in self.cards if one.width]
        sizes = [(one.kind, one.size and show_size(one.size), one.part) for one in self.modules or ()]
        facts = {
            "board": self.board,
            "BIOS": self.bios,
            "NICs": _counted(nics),
            "disks": _counted(disks),
            "PCIe links": _counted(links),
            "memory modules": _counted(sizes),
        }
        return {name: value for name, value in facts.items() if value}


class Reached(EnvironmentPart):
    """How the machine was reached by the one that kept the records."""

    host: str  # by its name there: an alias of ssh's, an address, with a user
    shell: str | None = None  # --remote-shell and --remote-python; None where these were the usual ones
    python: str | None = None


def _counted(things: Sequence[tuple[object, ...]]) -> str:
    counts = Counter(" ".join(str(part) for part in thing if part) for thing in things)
    return ", ".join(f"{count} x {text}" for text, count in sorted(counts.items()) if text)


class Environment(EnvironmentPart):
    """Everything one needs to believe or repeat a number."""

    host: str | None = None
    reached: Reached | None = None  # None where it kept the records itself
    system: str | None = None  # Linux
    kernel: str | None = None
    boot: str | None = None  # the kernel's name for the time since the machine was started
    distribution: str | None = None
    architecture: str | None = None
    container: str | None = None  # docker, podman, kubernetes, lxc; "none" where nothing speaks for one
    virtualization: str | None = None  # kvm, firecracker, gvisor, ...; "none" where nothing speaks for one
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    driver: Driver | None = None
    gpus: list[Gpu] = Field(default_factory=list)
    inventory: Inventory = Inventory()
    software: Software = Software()
    git: Git | None = None
    load: tuple[float, float, float] | None = None
    variables: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Environment:
        """What was stored, by whichever version: a part of another shape is kept as it is, and is known to nobody."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            places = [one["loc"] for one in error.errors()]
            if not all(places):  # a name that is no text: nobody wrote that, it is damaged
                raise
            odd = {str(place[0]) for place in places}
            rest = {name: value for name, value in document.items() if name not in odd}
            return cls.model_validate(rest | {"unread": {name: document[name] for name in odd}})

    @property
    def usable_gpus(self) -> list[Gpu]:
        """Those that a target can name here."""
        return [gpu for gpu in self.gpus if gpu.cuda_index is not None]

    @property
    def is_known(self) -> bool:
        """Whether anything is; a published table has no environment."""
        return bool(self.model_fields_set)

    @property
    def host_name(self) -> str:
        """The name of the machine that measured."""
        return self.host or "unknown"

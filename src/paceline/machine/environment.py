"""What a machine is: the models that are stored with every run; None means that nobody could tell."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    """Base of everything that describes a machine; a later version's extra fields are kept out, not refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Cache(Part):
    """One cache as the first usable core sees it."""

    level: int
    kind: str  # Data, Instruction, Unified
    size: int | None = None  # bytes
    shared_by: int | None = None  # logical cores


class NumaNode(Part):
    """One node of memory and the cores beside it."""

    index: int
    cpus: str | None = None  # as the kernel writes it: 0-15,32-47
    memory: int | None = None  # bytes


class Cpu(Part):
    """The processor and how much of it this process may use."""

    model: str | None = None
    architecture: str | None = None
    sockets: int | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    affinity: int | None = None
    """Logical cores this process may be scheduled on"""
    quota: float | None = None
    """Cores' worth of time that the control group grants; None where there is no quota"""
    usable: float | None = None
    """The smaller of affinity and quota"""
    frequency_mhz: float | None = None
    max_frequency_mhz: float | None = None
    governor: str | None = None
    boost: bool | None = None
    flags: list[str] = Field(default_factory=list)
    """Instruction sets that matter to deep learning, in the kernel's words"""
    caches: list[Cache] = Field(default_factory=list)
    numa_nodes: list[NumaNode] = Field(default_factory=list)


class Memory(Part):
    """Host memory, in bytes."""

    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None
    limit: int | None = None
    """What the control group grants; None where that is all of it"""
    limit_used: int | None = None
    """How much of the limit is taken and cannot be reclaimed at once"""


class GpuProcess(Part):
    """A process that computes on a GPU."""

    pid: int
    name: str | None = None  # None where the process is outside this process's view
    memory: int | None = None  # bytes


class Ecc(Part):
    """Error correction of GPU memory; volatile counts since the driver was loaded, aggregate for the card's life."""

    enabled: bool | None = None
    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_aggregate: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None


class Gpu(Part):
    """One NVIDIA GPU as its driver describes it."""

    index: int
    """Place in the driver's order"""
    cuda_index: int | None = None
    """N of cuda:N in this process; None where it is hidden, or where the order cannot be known"""
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    compute_capability: str | None = None
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
    throttle_reasons: list[str] | None = None
    """Why the clocks are not at their maximum just now"""
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    processes: list[GpuProcess] | None = None


class Driver(Part):
    """The NVIDIA driver."""

    version: str | None = None
    cuda: str | None = None
    """Newest CUDA version that the driver runs"""


class Software(Part):
    """What the numbers were computed with."""

    python: str
    implementation: str
    paceline: str
    packages: dict[str, str] = Field(default_factory=dict)
    torch_cuda: str | None = None
    """CUDA version torch was built for; None for a build without CUDA"""
    torch_hip: str | None = None


class Git(Part):
    """The repository that the run was started in."""

    commit: str
    dirty: bool | None = None


class Environment(Part):
    """Everything one needs to believe or repeat a number."""

    host: str | None = None
    system: str | None = None  # Linux
    kernel: str | None = None
    distribution: str | None = None
    architecture: str | None = None
    container: str | None = None
    """docker, podman, kubernetes, lxc; "none" where nothing speaks for one"""
    virtualization: str | None = None
    """kvm, firecracker, gvisor, ...; "none" where nothing speaks for one"""
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    driver: Driver | None = None
    gpus: list[Gpu] = Field(default_factory=list)
    software: Software
    git: Git | None = None
    load: tuple[float, float, float] | None = None
    variables: dict[str, str] = Field(default_factory=dict)

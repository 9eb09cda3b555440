"""Ten kinds of slowness, each planted in a step and looked for as `explain` does, all in one process.

`python -m bench planted --target cuda:0` prints for each whether it is named, and as which candidate.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from paceline.analysis.explain import PADDED, Candidate, candidates, traced_case
from paceline.analysis.roofline import KnownCeilings
from paceline.api.sources import known_ceilings
from paceline.benchmarks._model.measuring import STEP_TIME, StepSession, add_trace
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Measurement, Outcome, Record, Result
from paceline.core.run import Run, RunRecords
from paceline.core.subject import Precision, StepTrace, Subject
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from torch import Tensor, nn

MEASURED_STEPS = 3
PACED = 0.1  # seconds of steps one behind the other, for each of these
LARGER = 4  # times the tiny batch
NAMED = 3  # candidates among which a planted kind has to be
LEAST_FOUND = 9


@dataclass(frozen=True)
class Training:
    """A step forward and backward, of the mean of a model's output; `entries` are its numbers without padding."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    entries: int | None = None

    def __call__(self) -> Tensor:
        self.model.zero_grad(set_to_none=True)
        output: Tensor = self.model(*self.inputs)
        loss = output.float().sum() / (self.entries or output.numel())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def computed(self) -> tuple[float, float]:
        """The loss of a step, and the norm of its first gradient."""
        loss = float(self())
        gradient = next(self.model.parameters()).grad
        assert gradient is not None
        return loss, float(gradient.double().norm())


@dataclass(frozen=True)
class Plant:
    """A slow step, the beginning of the candidate that names what is slow, and the same step without it."""

    kind: str
    expected: str
    make: Callable[[Bed], Training]
    batch: int = 16
    grown: int = 1  # times the batch, where that is the remedy
    needs_gpu: bool = False
    settings: tuple[str, ...] = ()  # further ones that could be switched


@dataclass(frozen=True)
class Bed:
    """Where a slow step is planted: larger on a GPU, so that its kernels take time."""

    device: Device
    mended: bool = False  # whether the step is to be without what is slow

    @property
    def on_gpu(self) -> bool:
        return self.device.kind.is_accelerator

    @property
    def precision(self) -> Precision:
        """Of a step: 16 bits where the device computes in them natively."""
        return "bf16" if self.on_gpu else "fp32"

    def size(self, cpu: int, gpu: int) -> int:
        return gpu if self.on_gpu else cpu

    def draw(self, *sizes: int) -> Tensor:
        import torch

        return torch.randn(*sizes, device=self.device.torch(), dtype=self.dtype)

    @property
    def dtype(self) -> Any:
        import torch

        return torch.bfloat16 if self.on_gpu else torch.float32

    def training(self, model: nn.Module, *inputs: Tensor, entries: int | None = None) -> Training:
        """A step forward and backward."""
        return Training(model.to(self.device.torch()), inputs, entries)

    def between(self, something: Callable[[Tensor], Tensor], cpu_rows: int = 64) -> Training:
        """Two layers with something between them."""
        from torch import nn

        width = self.size(128, 2048)

        class Planted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

            def forward(self, inputs: Tensor) -> Tensor:
                output: Tensor = self.second(something(self.first(inputs)))
                return output

        return self.training(Planted().to(self.dtype), self.draw(self.size(cpu_rows, 4096), width))


def unaligned_vocabulary(bed: Bed) -> Training:
    import torch
    from torch import nn

    width, words, rows = bed.size(128, 1024), bed.size(5003, 50257), bed.size(64, 2048)
    inputs, head = bed.draw(rows, width), nn.Linear(width, words)
    if bed.mended:
        head, exact = nn.Linear(width, -(-words // PADDED) * PADDED), head
        with torch.no_grad():
            for padded, one in zip(head.parameters(), exact.parameters(), strict=True):
                padded.zero_()[:words] = one
    # Drawn apart from the head, so that both steps begin alike.
    torch.manual_seed(1)
    return bed.training(nn.Sequential(nn.Linear(width, width), head).to(bed.dtype), inputs, entries=rows * words)


def needless_cast(bed: Bed) -> Training:
    import torch

    def back_and_forth(hidden: Tensor) -> Tensor:
        for _ in range(0 if bed.mended else 20):
            hidden = hidden.to(torch.float64 if hidden.dtype == torch.float32 else torch.float32).to(hidden.dtype)
        return hidden

    return bed.between(back_and_forth, cpu_rows=2048)


def synchronisation(bed: Bed) -> Training:
    def scaled(hidden: Tensor) -> Tensor:
        most = hidden.detach().abs().max()
        return hidden / ((most if bed.mended else most.item()) + 1.0)

    return bed.between(scaled)


def slow_data_loader(bed: Bed) -> Training:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Tensor:
            time.sleep(0.2)
            return torch.zeros(bed.size(128, 2048), dtype=bed.dtype)

    loader = DataLoader(Slow(), batch_size=1)
    ahead = next(iter(loader)).to(bed.device.torch())
    return bed.between(lambda hidden: hidden + (ahead if bed.mended else next(iter(loader)).to(hidden.device)))


def host_copy(bed: Bed) -> Training:
    import torch

    onto = torch.zeros(bed.size(64, 4096), bed.size(128, 2048), dtype=bed.dtype)
    onto = onto.to(bed.device.torch()) if bed.mended else onto
    return bed.between(lambda hidden: hidden + onto.to(hidden.device))


def channels_apart(bed: Bed) -> Training:
    import torch
    from torch import nn

    channels, edge = bed.size(16, 64), bed.size(16, 56)
    model = nn.Sequential(nn.Conv2d(channels, channels, 3), nn.ReLU(), nn.Conv2d(channels, channels, 3)).to(bed.dtype)
    layout = torch.channels_last if bed.mended else torch.contiguous_format
    images = bed.draw(bed.size(4, 64), channels, edge, edge).to(memory_format=layout)
    return bed.training(model.to(memory_format=layout), images)  # type: ignore[call-overload]


def attention_by_formula(bed: Bed) -> Training:
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(width, 3 * width)

        def forward(self, inputs: Tensor) -> Tensor:
            query, key, value = (
                one.unflatten(-1, (heads, width // heads)).transpose(1, 2)
                for one in self.project(inputs).chunk(3, dim=-1)
            )
            if bed.mended:
                return functional.scaled_dot_product_attention(query, key, value)
            scores = query @ key.transpose(-2, -1) / (width // heads) ** 0.5
            output: Tensor = scores.softmax(dim=-1) @ value
            return output

    width, heads = bed.size(64, 1024), bed.size(4, 16)
    return bed.training(Attention().to(bed.dtype), bed.draw(bed.size(4, 8), bed.size(96, 1024), width))


def products_in_fp32(bed: Bed) -> Training:
    import torch
    from torch import nn

    def cast(*, enabled: bool) -> AbstractContextManager[object]:
        return torch.autocast(bed.device.torch().type, dtype=torch.bfloat16, enabled=enabled)

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Linear(bed.size(256, 2048), bed.size(32, 1024))
            self.wide = nn.Linear(bed.size(32, 1024), bed.size(4096, 8192))

        def forward(self, inputs: Tensor) -> Tensor:
            with cast(enabled=True):
                hidden = self.narrow(inputs)
                with cast(enabled=bed.mended):
                    output: Tensor = self.wide(hidden if bed.mended else hidden.float())
            return output

    return bed.training(Wide(), torch.randn(bed.size(64, 2048), bed.size(256, 2048), device=bed.device.torch()))


def tiny_batch(bed: Bed) -> Training:
    from torch import nn

    width = bed.size(512, 4096)
    layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(bed.dtype)
    return bed.training(layers, bed.draw(LARGER if bed.mended else 1, width))


def recompilation(bed: Bed) -> Training:
    import torch

    calls = [0]

    def counted(hidden: Tensor, number: int) -> Tensor:
        return hidden * number

    compiled: Callable[[Tensor, int], Tensor] = torch.compile(counted, backend="eager", dynamic=False)

    def again(hidden: Tensor) -> Tensor:
        calls[0] += 1
        return hidden * calls[0] if bed.mended else compiled(hidden, calls[0])

    return bed.between(again)


PLANTS = (
    Plant("unaligned vocabulary", "pad the size", unaligned_vocabulary),
    Plant("needless cast", "remove the cast", needless_cast),
    Plant("synchronisation", "remove the synchronisation", synchronisation),
    Plant("slow data loader", "remove the wait for data", slow_data_loader),
    Plant("host-to-device copy", "remove the host-to-device copy", host_copy, needs_gpu=True),
    Plant("NCHW", "channels last", channels_apart, settings=("channels_last=on",)),
    Plant("math attention", "use fused attention", attention_by_formula),
    Plant("fp32 in autocast", "compute the products left in fp32", products_in_fp32),
    Plant("tiny batch", "a batch of", tiny_batch, batch=1, grown=LARGER),
    Plant("recompilation", "remove the recompilation", recompilation),
)


def found_in(plant: Plant, device: Device, ceilings: KnownCeilings | None = None) -> list[Candidate]:
    """What `explain` names of a planted step, best first."""
    bed = Bed(device)
    step = plant.make(bed)
    step()
    count = max(1, round(PACED / max(device.seconds_of(step), 1e-6)))
    seconds = median(device.seconds_of(lambda: [step() for _ in range(count)]) / count for _ in range(MEASURED_STEPS))
    session = StepSession(device, MeasuringParameters(), compiled=False, in_flight=2 if bed.on_gpu else 1)
    target = device.torch().type if not bed.on_gpu else str(device.torch())
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "trace.json.gz")
        case = Case(index=0, benchmark="train", parameters={}, title=plant.kind, target=target, trace=file)
        result = Result(measurements=[Measurement.of_samples(STEP_TIME, [seconds] * MEASURED_STEPS)])
        add_trace(result, session, step, Context(case=case))
    trace = StepTrace.model_validate(result.facts["trace"])
    switchable = ["compile=on", f"batch_size={LARGER * plant.batch}", *plant.settings]
    switchable += ["graph=on", "precision=fp8_hybrid"] if bed.on_gpu else []
    precision: Precision = "bf16" if plant.make is products_in_fp32 else bed.precision
    record = Record(
        run_id="planted",
        case=case,
        outcome=Outcome.OK,
        started_at=datetime.now(UTC),
        seconds=seconds,
        measurements=result.measurements,
        subject=Subject(model=plant.kind, precision=precision, batch=plant.batch, device=device.name),
        trace=trace.model_copy(update={"alternatives": tuple(switchable)}),
    )
    run = Run(id="planted", name="planted", status="finished", started_at=record.started_at, version="", cases=[case])
    records = RunRecords(run=run, records=[record])
    return candidates(traced_case(records, ceilings or known_ceilings(records), record))


@click.command()
@click.option("--target", default="cpu", show_default=True, help="the device")
@click.option("--only", multiple=True, help="a kind; may be given again")
def main(target: str, only: tuple[str, ...]) -> None:
    """A line for each kind; the exit code is 1 where fewer than nine are among the first three candidates."""
    device = open_device(target)
    click.echo(f"planted on {device.name}, looked for among the first {NAMED} candidates")
    plants = [plant for plant in PLANTS if not only or plant.kind in only]
    if not device.kind.is_accelerator and any(plant.needs_gpu for plant in plants):
        plants = [plant for plant in plants if not plant.needs_gpu]
        click.echo("left out on a CPU, where nothing is copied to a device: host-to-device copy")
    if not plants:
        raise click.BadParameter(f"{', '.join(only)}: known are {', '.join(plant.kind for plant in PLANTS)}")
    found = 0
    for plant in plants:
        since = time.monotonic()
        try:
            names = [one.what for one in found_in(plant, device)]
        except Exception as error:  # one kind must not cost the others
            names = [f"failed: {type(error).__name__}: {str(error)[:200]}"]
        rank = next((place for place, name in enumerate(names, start=1) if name.startswith(plant.expected)), None)
        is_found = rank is not None and rank <= NAMED
        found += is_found
        shown = f"yes, rank {rank}" if is_found else "no" if rank is None else f"no, rank {rank}"
        click.echo(f"{plant.kind:22} {shown:12} {'; '.join(names[:NAMED])}  [{time.monotonic() - since:.1f} s]")
        device.release_memory()
    click.echo(f"found {found} of {len(plants)}")
    raise SystemExit(0 if found >= min(LEAST_FOUND, len(plants)) else 1)

"""Ten kinds of slowness are planted in steps, and each is named among the first three candidates."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from paceline.analysis.explain import Candidate, Traced, candidates
from support.explained import explained_gpu, launched, traced_on_cpu

torch = pytest.importorskip("torch", reason="install it with: pip install '.[torch]'")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

SETTINGS = ("compile=on", "batch_size=64")


def first_three(case: Traced) -> dict[str, Candidate]:
    return {one.what: one for one in candidates(case)[:3]}


def training(model: nn.Module, *inputs: Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        output = model(*inputs)
        output.float().mean().backward()

    return step


class Planted(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], width: int = 128) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.between = between

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.between(self.first(inputs))
        output: Tensor = self.second(hidden)
        return output


def planted(between: Callable[[Tensor], Tensor], rows: int = 64) -> dict[str, Candidate]:
    step = training(Planted(between), torch.randn(rows, 128))
    return first_three(traced_on_cpu(step, batch=16, alternatives=SETTINGS))


def test_an_unaligned_vocabulary_is_named_with_its_size() -> None:
    step = training(nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 5003)), torch.randn(64, 128))
    found = first_three(traced_on_cpu(step, batch=16, alternatives=SETTINGS))
    assert "5,003" in found["pad the size 5,003 to 5,056"].reason


def test_a_needless_cast_is_named_with_its_place() -> None:
    def back_and_forth(hidden: Tensor) -> Tensor:
        for _ in range(20):
            hidden = hidden.double().float()
        return hidden

    found = planted(back_and_forth, rows=2048)["remove the cast"]
    assert "fp32 to fp64" in found.reason
    assert "test_planted_slowness.py" in found.where
    assert "back_and_forth" in found.where


def test_a_synchronisation_is_named_with_its_place() -> None:
    def asking(hidden: Tensor) -> Tensor:
        return hidden / (hidden.detach().abs().max().item() + 1.0)

    found = planted(asking)["remove the synchronisation with the host"]
    assert found.reason.startswith("1 a step")
    assert "asking" in found.where


def test_a_slow_data_loader() -> None:
    class Slow(Dataset[Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Tensor:
            time.sleep(0.2)
            return Tensor([0.0] * 128)

    loader = DataLoader(Slow(), batch_size=1)
    found = planted(lambda hidden: hidden + next(iter(loader)))
    assert "DataLoader" in found["remove the wait for data"].reason
    assert "test_planted_slowness.py" in found["remove the wait for data"].where
    assert "remove the synchronisation with the host" not in found


def test_images_whose_channels_lie_apart() -> None:
    step = training(nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)), torch.randn(4, 16, 16, 16))
    found = first_three(traced_on_cpu(step, batch=4, alternatives=(*SETTINGS, "channels_last=on")))
    assert found["channels last (NHWC)"].setting == "channels_last=on"


def test_images_whose_channels_lie_together_are_not_named() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(4, 16, 16, 16).to(memory_format=torch.channels_last)

    def step() -> None:
        with torch.no_grad():
            model(images)

    found = first_three(traced_on_cpu(step, batch=4, alternatives=SETTINGS))
    assert "channels last (NHWC)" not in found


class Attention(nn.Module):
    """Attention as the formula has it, or fused."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.project = nn.Linear(64, 3 * 64)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = (
            one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.project(inputs).chunk(3, dim=-1)
        )
        if self.fused:
            return F.scaled_dot_product_attention(query, key, value)
        scores = query @ key.transpose(-2, -1) / 4.0
        output: Tensor = scores.softmax(dim=-1) @ value
        return output


FUSED = "use fused attention (scaled_dot_product_attention)"


def test_attention_by_formula() -> None:
    found = first_three(
        traced_on_cpu(training(Attention(fused=False), torch.randn(4, 96, 64)), batch=4, alternatives=SETTINGS)
    )
    assert "96 x 96" in found[FUSED].reason


def test_fused_attention_is_not_named() -> None:
    case = traced_on_cpu(training(Attention(fused=True), torch.randn(4, 96, 64)), batch=4, alternatives=SETTINGS)
    assert FUSED not in {one.what for one in candidates(case)}


def test_products_left_in_fp32() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = nn.Linear(256, 32), nn.Linear(32, 4096)

        def forward(self, inputs: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = self.narrow(inputs)
                with torch.autocast("cpu", enabled=False):
                    output: Tensor = self.wide(hidden.float())
            return output

    step = training(Wide(), torch.randn(64, 256))
    found = first_three(traced_on_cpu(step, precision="bf16", batch=64, alternatives=SETTINGS))
    assert "fp32" in found["compute the products left in fp32 in bf16"].reason


def test_a_tiny_batch() -> None:
    layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    found = first_three(traced_on_cpu(training(layers, torch.randn(1, 512)), batch=1, alternatives=("batch_size=4",)))
    assert found["a batch of 4"].setting == "batch_size=4"
    assert (found["a batch of 4"].gain or 0.0) > 1.0


@pytest.mark.long
def test_a_needless_recompilation_is_named_with_its_place() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils._compilation_metrics.clear()
    calls = [0]

    def counted(hidden: Tensor, number: int) -> Tensor:
        return hidden * number

    compiled: Callable[[Tensor, int], Tensor] = torch.compile(counted, backend="eager", dynamic=False)

    def between(hidden: Tensor) -> Tensor:
        calls[0] += 1
        return compiled(hidden, calls[0])

    found = planted(between)["remove the recompilation"]
    assert "counted" in found.where
    torch._dynamo.reset()
    torch._dynamo.utils._compilation_metrics.clear()


MATRIX = {"Input_Dims": [[512, 512], [512, 512]], "Input_type": ["c10::BFloat16", "c10::BFloat16"]}
GPU_SETTINGS = ("compile=on", "graph=on", "batch_size=64")


def test_a_copy_from_the_host_in_the_step() -> None:
    case = explained_gpu(
        *launched(1, "aten::copy_", "Memcpy HtoD (Pageable -> Device)", 1_010, 300, bytes=3_000_000),
        *launched(2, "aten::mm", "nvjet_hsh_128x256", 1_030, 400, **MATRIX),
        precision="bf16",
        alternatives=GPU_SETTINGS,
    )
    found = first_three(case)["remove the host-to-device copy"]
    assert "pageable memory" in found.reason
    assert found.saved == pytest.approx(300e-6)


def test_a_synchronisation_on_a_gpu_costs_the_idle_time() -> None:
    wait = {"name": "cudaStreamSynchronize", "cat": "cuda_runtime", "ts": 1_450, "dur": 50}
    case = explained_gpu(
        *launched(2, "aten::mm", "nvjet_hsh_128x256", 1_030, 400, **MATRIX),
        wait,
        precision="bf16",
        alternatives=GPU_SETTINGS,
    )
    found = first_three(case)["remove the synchronisation with the host"]
    assert found.saved == pytest.approx(500e-6)  # 900 us of a step, of which 400 compute


def test_layouts_that_kernels_convert_on_a_gpu() -> None:
    image = {"Input_Dims": [[8, 64, 56, 56], [64, 64, 3, 3]], "Input_type": ["c10::Half", "c10::Half"]}
    ids = {"correlation": 1}
    conversion = {"name": "nchwToNhwcKernel", "cat": "kernel", "ts": 1_400, "dur": 90, "tid": 7, "args": ids}
    strides = {"Input_Strides": [[200704, 3136, 56, 1], [576, 9, 3, 1]]}
    case = explained_gpu(
        *launched(1, "aten::cudnn_convolution", "sm90_xmma_fprop_implicit_gemm", 1_010, 300, **image, **strides),
        conversion,
        precision="fp16",
        alternatives=(*GPU_SETTINGS, "channels_last=on"),
    )
    assert first_three(case)["channels last (NHWC)"].saved == pytest.approx(90e-6)

"""A step as a budget that adds up, what its operations are bound by, and gains predicted by formula."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.explain import Candidate, Traced, budget, candidates, operations, traced_case
from paceline.analysis.roofline import KnownCeilings
from paceline.core.errors import InputError
from paceline.core.profile import Ceiling
from paceline.core.subject import DEVICE_MEMORY, StepTrace, Work
from paceline.core.trace_events import TimeSpent
from paceline.core.trace_signs import Operation, Sign, StepDetails, step_details
from support.explained import gpu_events, launched, traced
from support.records import case, record, run_of

SHARES = {"compute": 0.5, "memory": 0.2, "communication": 0.05, "other": 0.05, "idle": 0.2}


def spent(step: float = 0.1, **shares: float) -> TimeSpent:
    return TimeSpent(
        on_device=True,
        steps=3,
        step_seconds=step,
        shares=SHARES | shares,
        hidden_communication=0.0,
        groups={"matrix products": 0.5, "elementwise work": 0.2, "the optimizer": 0.1},
        kernels=[],
        kernel_names=0,
    )


def ceilings(*, measured: bool = True) -> KnownCeilings:
    at = {"device": "cuda:0", "device_name": "GPU"}
    found = (
        Ceiling(**at, kind="compute", name="bf16", value=100e12, unit="FLOP/s"),
        Ceiling(**at, kind="compute", name="fp32", value=25e12, unit="FLOP/s"),
        Ceiling(**at, kind="compute", name="fp8", value=200e12, unit="FLOP/s"),
        Ceiling(**at, kind="memory", name=DEVICE_MEMORY, value=1e12, unit="B/s"),
    )
    return KnownCeilings(measured=found, source="profile") if measured else KnownCeilings(datasheet=found)


# 3 TFLOP in 0.03 s at the ceiling, 10 GB in 0.01 s.
WORK = Work(flops=3e12, bytes=10e9, rate=3e13, unit="FLOP/s", number_format="bf16", formula="by hand")


def on_gpu(details: StepDetails | None = None, **more: Any) -> Traced:
    given: dict[str, Any] = {
        "precision": "bf16",
        "target": "cuda:0",
        "work": WORK,
        "ceilings": ceilings(),
        "step": 0.1,
    } | more
    return traced(given.pop("spent", spent()), details or StepDetails(), **given)


def seconds(one: Traced, clock: float | None = None) -> dict[str, float]:
    return {part.name: part.seconds for part in budget(one, clock)}


def test_the_parts_of_a_step_add_up_to_it() -> None:
    parts = seconds(on_gpu(step=0.104))
    assert parts == pytest.approx(
        {
            "products at the ceiling": 0.03,
            "products beyond the ceiling": 0.02,
            "memory at the ceiling": 0.01,
            "memory beyond the ceiling": 0.01,
            "exposed communication": 0.005,
            "other work": 0.005,
            "launch and host gaps": 0.02,
            "unexplained": 0.004,
        }
    )
    assert sum(parts.values()) == pytest.approx(0.104)


def test_a_traced_step_that_is_longer_leaves_less_than_nothing_unexplained() -> None:
    *_, rest = budget(on_gpu(step=0.095))
    assert rest.seconds == pytest.approx(-0.005)
    assert "longer than the measured" in rest.why


def test_gaps_that_tracing_makes_in_a_graph_are_no_gaps_of_the_step() -> None:
    case = on_gpu(spent=spent().model_copy(update={"launches": 1000.0}), step=0.085, launch_cost=15e-6)
    parts = {part.name: part for part in budget(case)}
    assert parts["launch and host gaps"].seconds == pytest.approx(0.02 - 1000 * 15e-6)
    assert "15 ms of tracing, 15 us before each kernel" in parts["launch and host gaps"].why.replace("µs", "us")
    assert parts["unexplained"].seconds == pytest.approx(0.0)


def test_a_slower_trace_of_a_host_counts_as_much_as_it_is_longer() -> None:
    sign = Sign(kind="cast", calls=1, seconds=0.1, detail="fp32 to fp64")
    details = StepDetails(signs=(sign,), fusible_seconds=0.05, step_seconds=0.2)
    host = spent().model_copy(update={"on_device": False})
    (cast,) = candidates(traced(host, details, step=0.1))
    assert cast.saved == pytest.approx(0.05)
    (cast,) = candidates(on_gpu(details))  # a device's kernels are as long in either trace
    assert cast.saved == pytest.approx(0.1)


@pytest.mark.parametrize("longer", [1.0, 2.0, 20.0])
def test_how_much_tracing_slows_a_host_changes_no_prediction(longer: float) -> None:
    """Whichever of its two traces is the slower one."""
    cast = Sign(kind="cast", calls=1, seconds=0.04, detail="fp32 to fp64")
    wide = product(1024, 1024, 1024, 0.045, format="fp32")
    details = StepDetails(operations=(wide,), signs=(cast,), step_seconds=0.1)
    host = spent(0.1 * longer).model_copy(update={"on_device": False})
    alternatives = ("batch_size=4", "precision=bf16", "compile=on")
    case = traced(host, details, step=0.1, precision="bf16", alternatives=alternatives, work=WORK)
    found = {one.what: one.saved for one in candidates(case)}
    assert found["remove the cast"] == pytest.approx(0.04)
    assert found["a batch of 4"] == pytest.approx(0.75 * (0.1 * 0.2 + 0.1 * 0.1))
    assert "compute the products left in fp32 in bf16" in found
    assert [one.name for one in operations(case)] == ["mm 1024 x 1024 x 1024 fp32"]


def test_measured_steps_that_are_longer_than_traced_ones_leave_a_rest_that_says_so() -> None:
    *_, rest = budget(on_gpu(step=0.2))
    assert rest.seconds == pytest.approx(0.1)
    assert rest.why == "traced steps took only 100 ms: the trace does not show the rest"


def test_what_is_computed_beyond_the_formula_is_a_part_of_its_own_where_all_products_are_seen() -> None:
    seen = product(1000, 1000, 1000, 0.05).model_copy(update={"flops": 4e12})
    parts = {part.name: part for part in budget(on_gpu(StepDetails(operations=(seen,))))}
    assert parts["products at the ceiling"].seconds == pytest.approx(0.03)
    assert parts["products beyond the formula"].seconds == pytest.approx(0.01)
    assert parts["products beyond the ceiling"].seconds == pytest.approx(0.01)
    assert parts["products beyond the ceiling"].why == "tiles, waves, shapes"
    half = seen.model_copy(update={"seconds": 0.025})
    parts = {part.name: part for part in budget(on_gpu(StepDetails(operations=(half,))))}
    assert "products beyond the formula" not in parts
    assert "beyond the formula" in parts["products beyond the ceiling"].why


def test_an_operation_that_beats_its_ceiling_is_given_no_bound() -> None:
    cached = Operation(
        name="aten::add",
        group="elementwise work",
        sizes=((9,),),
        format="bf16",
        where="",
        calls=1,
        seconds=0.06,
        bytes=1e11,
    )
    (one,) = operations(on_gpu(StepDetails(operations=(cached,))))
    assert (one.bound, one.best) == ("", None)


def test_a_lower_clock_is_a_part_of_its_own_under_a_datasheet_alone() -> None:
    parts = seconds(on_gpu(ceilings=ceilings(measured=False)), clock=0.8)
    assert parts["power: the clock below its maximum"] == pytest.approx(0.01)
    assert parts["products beyond the ceiling"] == pytest.approx(0.01)
    assert "power: the clock below its maximum" not in seconds(on_gpu(), clock=0.8)


def test_small_steps_and_slow_devices_are_told_in_units_of_their_size() -> None:
    work = WORK.model_copy(update={"flops": 1.05e6, "bytes": 2.1e4})
    whys = [part.why for part in budget(on_gpu(work=work)) if part.name.endswith("at the ceiling")]
    assert whys == ["1.05 MFLOP at 100 TFLOP/s, profile", "21 kB by formula at 1 TB/s, profile"]


def test_without_ceilings_parts_are_whole_and_say_how_to_know_more() -> None:
    parts = {part.name: part for part in budget(on_gpu(ceilings=KnownCeilings()))}
    assert parts["products"].seconds == pytest.approx(0.05)
    assert "paceline machine --measure" in parts["products"].why
    assert "paceline machine --measure" in parts["memory"].why


@pytest.mark.parametrize(("flops", "name"), [(5.2e12, "products at the ceiling"), (5.4e12, "products")])
def test_products_that_are_faster_than_their_ceiling_are_not_said_to_be_at_it(flops: float, name: str) -> None:
    parts = {part.name: part for part in budget(on_gpu(work=WORK.model_copy(update={"flops": flops})))}
    assert parts[name].seconds == pytest.approx(0.05)
    assert ("would take 54 ms: the ceiling is too low" in parts[name].why) is (name == "products")


def product(rows: int, columns: int, inner: int, seconds: float, **more: Any) -> Operation:
    given = {"name": "aten::mm", "group": "matrix products", "format": "bf16", "where": "model.py:7 (forward)"} | more
    moved = 2.0 * (rows * inner + inner * columns + rows * columns)
    flops = 2.0 * rows * columns * inner
    return Operation(**given, sizes=((1, rows, columns, inner),), calls=1, seconds=seconds, flops=flops, bytes=moved)


def test_operations_have_their_bound_and_their_distance() -> None:
    large, flat = product(4096, 4096, 4096, 0.0275), product(8, 4096, 4096, 0.0001)
    first, second = operations(on_gpu(StepDetails(operations=(large, flat)), spent=spent(0.03)))
    assert (first.bound, first.where) == ("compute", "model.py:7 (forward)")
    assert first.best == pytest.approx(2 * 4096**3 / 100e12)
    assert second.bound == "memory"
    assert second.best == pytest.approx((flat.bytes or 0.0) / 1e12)


@pytest.mark.parametrize(
    ("name", "sizes", "concrete", "flops"),
    [
        ("_scaled_dot_product_cudnn_attention", [[2, 8, 64, 16]] * 3, ["", "", "", "", "True", "0.", "True"], 1),
        ("_scaled_dot_product_cudnn_attention", [[2, 8, 64, 16]] * 3, ["", "", "", "", "True", "0.", "False"], 2),
        ("_flash_attention_forward", [[2, 64, 8, 16]] * 3, ["", "", "", "", "", "64", "64", "0.", "True"], 1),
        ("_cudnn_attention_backward", [[2, 8, 64, 16]] * 5, ["", "", "", "", "", "64", "64", "0.", "True"], 2.5),
    ],
)
def test_fused_attention_is_held_against_its_products(name: str, sizes: Any, concrete: Any, flops: float) -> None:
    kinds = {"Input_Dims": sizes, "Input_type": ["c10::BFloat16"] * len(sizes), "Concrete_Inputs": concrete}
    details = step_details(gpu_events(*launched(1, f"aten::{name}", "fmha", 1_100, 100, **kinds)), on_device=True)
    (found,) = details.operations
    assert found.flops == pytest.approx(flops * 2 * 2 * 8 * 64 * 64 * 16)


@pytest.mark.parametrize(
    ("name", "sizes", "concrete", "flops", "numbers"),
    [
        ("cudnn_convolution", [[4, 8, 15, 15], [16, 8, 3, 3]], ["", "", "[1, 1]", "[2, 2]"], 1, 1),
        ("convolution", [[4, 8, 15, 15], [16, 8, 3, 3], [16]], ["", "", "", "[2, 2]", "[1, 1]"], 1, 1),
        ("convolution_backward", [[4, 16, 8, 8], [4, 8, 15, 15], [16, 8, 3, 3]], [], 2, 2),
    ],
)
def test_a_convolution_is_held_against_its_formula(
    name: str, sizes: Any, concrete: Any, flops: float, numbers: float
) -> None:
    kinds = {"Input_Dims": sizes, "Input_type": ["c10::Half"] * len(sizes), "Concrete_Inputs": concrete}
    details = step_details(gpu_events(*launched(1, f"aten::{name}", "fprop", 1_100, 100, **kinds)), on_device=True)
    (found,) = details.operations
    assert found.flops == pytest.approx(flops * 2 * 4 * 16 * 8 * 8 * 8 * 9)
    assert found.bytes == pytest.approx(numbers * 2 * (4 * 8 * 15 * 15 + 16 * 8 * 9 + 4 * 16 * 8 * 8))


def test_a_compiled_kernel_moves_all_its_inputs_once() -> None:
    kinds = {"Input_Dims": [[64, 32], [32], [64, 32], []], "Input_type": ["c10::Half", "float", "c10::Half", "Scalar"]}
    name = "triton_poi_fused_add_convolution_relu_8"
    details = step_details(gpu_events(*launched(1, name, name, 1_100, 100, **kinds)), on_device=True)
    (found,) = details.operations
    assert (found.group, found.bytes) == ("elementwise work", 2 * 64 * 32 + 4 * 32 + 2 * 64 * 32)


def test_compiled_code_is_not_the_place_of_an_operation() -> None:
    def call(name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"name": name, "cat": "python_function", "ts": ts, "dur": dur}

    outer, inner = call("model.py(7): forward", 1_050, 300), call(f"c{'k5' * 25}x.py(1374): call", 1_060, 200)
    kinds = {"Input_Dims": [[64, 64], [64, 64]], "Input_type": ["c10::BFloat16"] * 2}
    events = gpu_events(outer, inner, *launched(1, "aten::mm", "gemm", 1_100, 100, **kinds))
    (found,) = step_details(events, on_device=True).operations
    assert found.where == "model.py:7 (forward)"


def test_a_trace_that_shows_few_operators_shows_kernels() -> None:
    assert operations(on_gpu(StepDetails(operations=(product(8, 8, 8, 0.0001),)))) == []  # this trace kept no kernel


def by_name(one: Traced) -> dict[str, Candidate]:
    return {found.what: found for found in candidates(one)}


def test_an_odd_size_would_run_at_the_rate_of_the_even_ones() -> None:
    even = product(1024, 4096, 4096, 0.001)
    odd = product(1024, 50257, 4096, 0.02)
    (found,) = candidates(on_gpu(StepDetails(operations=(odd, even))))
    rate = (even.flops or 0.0) / even.seconds
    assert found.what == "pad the size 50,257 to 50,304"
    assert found.saved == pytest.approx(0.02 - (odd.flops or 0.0) * 50304 / 50257 / rate)
    assert found.where == "model.py:7 (forward)"


def test_the_gradient_of_an_odd_weight_is_as_odd() -> None:
    forward, gradient = product(1024, 50257, 4096, 0.02), product(50257, 4096, 1024, 0.02)
    even, batch = product(1024, 4096, 4096, 0.001), product(1001, 4096, 4096, 0.001)
    (found,) = candidates(on_gpu(StepDetails(operations=(forward, gradient, even, batch))))
    rate = ((even.flops or 0.0) + (batch.flops or 0.0)) / 0.002
    assert found.saved == pytest.approx(0.04 - 2 * (forward.flops or 0.0) * 50304 / 50257 / rate)
    (bound,) = candidates(on_gpu(StepDetails(operations=(forward, gradient, even)), issue_seconds=0.09))
    assert bound.saved == pytest.approx(0.1 - 0.09)
    assert "then the host is the bound" in bound.reason


def test_8_bit_products_want_multiples_of_16() -> None:
    eight = product(1024, 4104, 4096, 0.02, format="fp8")
    assert "pad the size 4,104 to 4,160" in by_name(on_gpu(StepDetails(operations=(eight,)), precision="fp8_hybrid"))
    assert not candidates(on_gpu(StepDetails(operations=(product(1024, 4104, 4096, 0.02),))))


def test_what_a_setting_gains() -> None:
    products = product(8192, 8192, 8192, 0.04)
    details = StepDetails(operations=(products,), fusible_seconds=0.005, fusible_calls=0.5)
    settings = ("compile=on", "graph=on", "precision=fp8_hybrid", "batch_size=128")
    found = {one.setting: one for one in candidates(on_gpu(details, alternatives=settings, batch=32))}
    assert found["compile=on"].saved == pytest.approx(0.005 + 0.5 * 0.02)
    assert found["graph=on"].saved == pytest.approx(0.02)
    converted = 2 * 8192**2 * (2 + 2 + 1) / 1e12  # both inputs: read twice in 16 bits, written in 8
    assert found["precision=fp8_hybrid"].saved == pytest.approx(0.04 * (1 - 100 / 200) - converted)
    assert found["batch_size=128"].saved == pytest.approx((0.02 + 0.01) * 3 / 4)
    assert [one.setting for one in candidates(on_gpu(details, alternatives=settings, batch=32))] == [
        "batch_size=128",
        "graph=on",
        "precision=fp8_hybrid",
        "compile=on",
    ]


def test_idle_time_that_tracing_adds_is_not_gained() -> None:
    (found,) = candidates(on_gpu(step=0.085, alternatives=("graph=on",)))
    assert found.saved == pytest.approx(0.085 - 0.08)


def test_a_setting_that_gains_next_to_nothing_is_left_out() -> None:
    assert not candidates(on_gpu(spent=spent(idle=0.0), alternatives=("graph=on", "compile=on")))


def test_no_precision_gains_more_than_the_host_allows() -> None:
    given: dict[str, Any] = {"precision": "fp32", "alternatives": ("precision=bf16",)}
    given["work"] = WORK.model_copy(update={"number_format": "fp32"})
    (free,) = candidates(on_gpu(**given))
    assert free.saved == pytest.approx(0.05 * (1 - 25 / 100) + 0.02 / 2)
    (bound,) = candidates(on_gpu(**given, issue_seconds=0.08))
    assert bound.saved == pytest.approx(0.1 - 0.08)
    assert "then the host is the bound, which takes 80 ms to issue a step" in bound.reason
    waiting = StepDetails(signs=(Sign(kind="synchronisation", calls=1, seconds=0.05),))
    assert on_gpu(waiting, issue_seconds=0.09).host_bound == 0.0


@pytest.mark.parametrize(("precision", "is_named"), [("bf16", True), ("fp32", False)])
def test_channels_last_is_for_formats_whose_units_want_it(precision: str, is_named: bool) -> None:
    sign = Sign(kind="layout", calls=50, bytes=1e9)
    found = by_name(on_gpu(StepDetails(signs=(sign,)), precision=precision, work=None))
    assert ("channels last (NHWC)" in found) is is_named


@pytest.mark.parametrize(("seconds", "is_named"), [(0.0005, False), (0.002, True)])
def test_a_setting_that_gains_next_to_nothing_is_left_out_although_a_sign_asks_for_it(
    seconds: float, is_named: bool
) -> None:
    sign = Sign(kind="layout", calls=50, bytes=1e9, seconds=seconds)
    found = by_name(on_gpu(StepDetails(signs=(sign,)), work=None, alternatives=("channels_last=on",)))
    assert ("channels last (NHWC)" in found) is is_named


def test_signs_stand_before_settings() -> None:
    sign = Sign(kind="cast", calls=4, seconds=0.004, detail="fp32 to bf16", where="model.py:3 (forward)")
    first, second = candidates(on_gpu(StepDetails(signs=(sign,)), alternatives=("graph=on",)))
    assert (first.what, second.setting) == ("remove the cast", "graph=on")
    assert first.gain == pytest.approx(0.1 / 0.096)


def test_a_case_without_a_trace_says_how_to_take_one() -> None:
    plain = record(case(0, "train", "resnet50 bf16"), trace=StepTrace(missing="MemoryError: no more"))
    with pytest.raises(InputError, match=r"MemoryError: no more; take one with: paceline run train \.\.\. --explain"):
        traced_case(run_of([plain]), KnownCeilings(), plain)


def test_without_checkpointing_the_second_forward_pass_is_saved() -> None:
    (found,) = candidates(on_gpu(alternatives=("checkpointing=false",)))
    assert found.saved == pytest.approx((0.05 + 0.02 - 0.01) / 4)

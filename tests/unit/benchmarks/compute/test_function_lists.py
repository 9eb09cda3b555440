"""Lists of functions: what tracing finds in models, and what a user's file may say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.benchmarks.compute._function_lists import largest, read_list, trace, work_share
from paceline.benchmarks.compute.blas_functions import BlasFunctions, BlasFunctionsParameters, GemmFunction
from paceline.benchmarks.compute.dnn_functions import ConvolutionFunction, DnnFunctions, DnnFunctionsParameters
from paceline.core.case import Case
from paceline.core.errors import Unsupported
from paceline.models import MODELS
from paceline.models.base import Batch, ModelSpec, Workload
from paceline.models.flops import count_flops
from support.refused import refused


def case(origin: Any = "local") -> Case:
    return Case(index=0, benchmark="blas-functions", parameters={}, title="", target="cpu", origin=origin)


@pytest.mark.parametrize("name", ["gpt2-small", "bert-large"])
@pytest.mark.parametrize("scale", ["full", "tiny"])
def test_the_products_of_a_transformer_are_all_of_its_work(name: str, scale: Any) -> None:
    """The list is complete: its work is what counting the model's operators gives."""
    spec = MODELS.registry().get(name)
    found = trace(spec, scale, 1, BlasFunctions().recognise)
    assert sum(count * function.work for function, count in found.items()) == count_flops(spec, scale)


@pytest.mark.parametrize("name", ["resnet50", "resnext50_32x4d", "mobilenet_v2"])
def test_the_convolutions_and_products_of_a_classifier_are_all_of_its_work(name: str) -> None:
    spec = MODELS.registry().get(name)
    found = {
        **trace(spec, "tiny", 1, BlasFunctions().recognise),
        **trace(spec, "tiny", 1, DnnFunctions().recognise),
    }
    assert sum(count * function.work for function, count in found.items()) == count_flops(spec, "tiny")


def test_equal_calls_are_one_function_that_is_counted() -> None:
    found = trace(MODELS.registry().get("gpt2-small"), "full", 1, BlasFunctions().recognise)
    head = GemmFunction(m=1024, n=50257, k=768, transpose_b=True)
    expand = GemmFunction(m=1024, n=4 * 768, k=768, transpose_b=True)
    scores = GemmFunction(m=1024, n=1024, k=64, batch=12, transpose_b=True)
    assert (found[head], found[expand], found[scores]) == (1, 12, 12)


def test_a_larger_batch_makes_the_products_of_its_samples_one_taller_product() -> None:
    alone, together = (
        trace(MODELS.registry().get("bert-large"), "tiny", batch, BlasFunctions().recognise) for batch in (1, 3)
    )
    assert max(function.m for function in together) == 3 * max(function.m for function in alone)
    total = [sum(count * function.work for function, count in found.items()) for found in (alone, together)]
    assert total[1] == 3 * total[0]


def test_a_convolution_is_read_with_all_that_makes_it() -> None:
    def build(scale: Any) -> Workload:
        layer = nn.Conv2d(6, 9, (3, 5), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=3)
        return Workload(
            module=layer,
            make_batch=lambda n, generator: Batch((torch.randn(n, 6, 20, 30, generator=generator),), ()),
            loss=lambda output, batch: output.sum(),
        )

    spec = ModelSpec(name="one", family="one", task="custom", summary="", build=build)
    [(found, count)] = trace(spec, "full", 4, DnnFunctions().recognise).items()
    assert found == ConvolutionFunction(
        batch=4,
        in_channels=6,
        out_channels=9,
        image=(20, 30),
        kernel=(3, 5),
        stride=(2, 1),
        padding=(1, 0),
        dilation=(1, 2),
        groups=3,
    )
    assert count == 1
    assert found.output == (10, 22)
    assert found.work == count_flops(spec) * 4
    assert found.label == "4 of 6x20x30 to 9, 3x5 stride 2x1 padding 1x0 dilation 1x2 groups 3"


def test_a_recurrent_model_is_refused() -> None:
    with pytest.raises(Unsupported, match="recurrent layer is one kernel"):
        trace(MODELS.registry().get("lstm"), "tiny", 1, BlasFunctions().recognise)


def test_the_functions_with_the_most_work_in_all_their_calls_are_kept() -> None:
    often, big, small = (GemmFunction(m=size, n=1, k=1) for size in (10, 50, 1))
    found = {small: 1, often: 9, big: 1}
    assert largest(found, 2) == {often: 9, big: 1}
    assert list(largest(found, 2)) == [often, big]
    assert list(largest(found, None)) == list(largest(found, 3)) == [small, often, big]
    assert work_share(largest(found, 2), found) == pytest.approx(140 / 141)


def test_a_file_is_read_in_its_order_and_equal_entries_add_up(tmp_path: Path) -> None:
    entries = [{"m": 1, "n": 2, "k": 3}, {"m": 4, "n": 5, "k": 6, "name": "mine"}, {"m": 1, "n": 2, "k": 3, "count": 4}]
    (tmp_path / "list.json").write_text(json.dumps(entries))
    found = read_list(tmp_path / "list.json", GemmFunction)
    assert {function.label: count for function, count in found.items()} == {"1x2x3 nn": 5, "mine": 1}


def test_a_single_number_stands_for_both_axes(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- {in_channels: 3, out_channels: 4, image: [8, 9], kernel: 3}\n")
    [found] = read_list(tmp_path / "list.yaml", ConvolutionFunction)
    assert found.kernel == (3, 3)
    assert found.image == (8, 9)


@pytest.mark.parametrize(
    ("text", "entry", "code"),
    [
        ("", None, "empty-list"),
        ("m: 3", None, "not-a-list"),
        ("- 7", 1, "not-a-function"),
        ("- {m: 1, n: 1, k: 1}\n- {m: 1, n: 1}", 2, "missing-key"),
        ("- {m: 1, n: 1, k: 0}", 1, "invalid-value"),
        ("- {m: 1, n: many, k: 1}", 1, "invalid-value"),
        ("- {m: 1, n: 1, k: 1, count: 0}", 1, "invalid-count"),
        ("- {m: 1, n: 1, k: 1, count: true}", 1, "invalid-count"),
        ("- {m: 1, n: 1, k: 1, name: x}\n- {m: 2, n: 1, k: 1, name: x}", 2, "duplicate-name"),
    ],
)
def test_a_mistake_in_a_file_is_refused_before_anything_runs(
    text: str, entry: int | None, code: str, tmp_path: Path
) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(text)
    with refused(code, key="file", where=f"{file}, entry {entry}" if entry else ""):
        BlasFunctions.check(BlasFunctionsParameters(file=file), case())


def test_a_mistake_in_a_file_is_refused_with_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("- {m: 1, n: 1, k: 1, transpos_b: true}")
    words = "entry 1: unknown key 'transpos_b': did you mean 'transpose_b'?; write it like {m: 512"
    with refused("unknown-key", suggestion="transpose_b", says=re.escape(words)):
        BlasFunctions.check(BlasFunctionsParameters(file=file), case())
    file.write_text("- {m: 1, n: 1, k: [")
    with refused("not-yaml", key="file", where=f"{file}, line 1"):
        BlasFunctions.check(BlasFunctionsParameters(file=file), case())


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ("{in_channels: 6, out_channels: 4, image: 8, kernel: 3, groups: 4}", "impossible-function"),
        ("{in_channels: 4, out_channels: 6, image: 8, kernel: 3, groups: 4}", "impossible-function"),
        ("{in_channels: 4, out_channels: 6, image: 2, kernel: 5, padding: 1}", "impossible-function"),
        ("{in_channels: 4, out_channels: 6, image: 8, kernel: [3, 3, 3]}", "invalid-value"),
        ("{in_channels: 4, out_channels: 6, image: 8, kernel: 3, padding: -1}", "invalid-value"),
    ],
)
def test_a_convolution_that_cannot_be_is_refused(entry: str, code: str, tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(f"- {entry}\n")
    with refused(code, key="file", where=f"{file}, entry 1"):
        DnnFunctions.check(DnnFunctionsParameters(file=file), case())


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with refused("missing-file", key="file"):
        BlasFunctions.check(BlasFunctionsParameters(file=tmp_path / "none.yaml"), case())
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00\x81")
    with refused("not-text", key="file"):
        BlasFunctions.check(BlasFunctionsParameters(file=tmp_path / "noise"), case())
    with refused("unreadable-file", key="file"):
        BlasFunctions.check(BlasFunctionsParameters(file=tmp_path), case())


def test_a_file_and_models_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- {m: 1, n: 1, k: 1}\n")
    with refused("conflicting-keys", key="file"):
        BlasFunctions.check(BlasFunctionsParameters(file=tmp_path / "list.yaml", models=["resnet50"]), case())


def test_a_job_from_the_network_reads_no_file_and_imports_no_model(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- {m: 1, n: 1, k: 1}\n")
    with refused("not-from-network", key="file"):
        BlasFunctions.check(BlasFunctionsParameters(file=tmp_path / "list.yaml"), case("network"))
    with refused("not-from-network", key="models", value="mine:model"):
        BlasFunctions.check(BlasFunctionsParameters(models=["mine:model"]), case("network"))


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with refused("unknown-model", key="models", suggestion="resnet50"):
        BlasFunctions.check(BlasFunctionsParameters(models=["resnet5O"]), case())


def test_one_model_needs_no_list() -> None:
    assert BlasFunctionsParameters.model_validate({"models": "resnet50"}).models == ["resnet50"]

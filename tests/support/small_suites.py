"""A few small benchmarks, and the suites of them that tests expand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from paceline.core.benchmark import Benchmark, Context
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.parameters import EachPart, Parameters
from paceline.core.quantity import Size
from paceline.core.record import Result
from paceline.core.registry import Registry
from paceline.core.suite import Here, Suite, expand


class Load(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rate: int = 1
    arrival: Literal["poisson", "constant"] = "poisson"


class Kind(Parameters):
    """What further fields it has depends on its name."""

    model_config = ConfigDict(extra="allow")

    name: str = "plain"

    @classmethod
    def more_fields(cls, values: Mapping[str, Any]) -> Mapping[str, FieldInfo]:
        return GemmParameters.model_fields if values.get("name") == "gemm" else {}


class GemmParameters(Parameters):
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    size: int = 64
    buffer: Size = 0
    shape: list[int] = [1]
    axes: tuple[int, ...] | None = None
    load: Load = Load()
    spare: Load | None = None
    kind: Kind = Kind()
    steps: int | None = None
    node: Annotated[int | None, EachPart("nodes")] = None


class Gemm(Benchmark[GemmParameters]):
    name = "gemm"
    summary = "multiplies"
    Parameters = GemmParameters
    metrics = ()
    primary = ""

    def measure(self, parameters: GemmParameters, context: Context) -> Result:
        raise AssertionError("expansion runs nothing")

    @classmethod
    def check(cls, parameters: GemmParameters, case: Case) -> None:
        if parameters.size == 13 or case.target == "cuda:9":
            raise InputError("unlucky-size", "an unlucky size", key="size", value=parameters.size)


class TrainParameters(Parameters):
    model: str
    size: int = 8


class Train(Benchmark[TrainParameters]):
    name = "train"
    summary = "trains"
    Parameters = TrainParameters
    metrics = ()
    primary = ""
    distributed: ClassVar[bool] = True

    def measure(self, parameters: TrainParameters, context: Context) -> Result:
        raise AssertionError("expansion runs nothing")


class TwoWords(Gemm):
    name = "two-words"

    @classmethod
    def within_device(cls, parameters: GemmParameters) -> bool:
        return parameters.size > 8


KNOWN: Registry[type[Benchmark[Any]]] = Registry("benchmark", {"gemm": Gemm, "train": Train, "two-words": TwoWords})


def cases(*entries: dict[str, Any], gpus: int = 0, set: dict[str, Any] | None = None) -> list[Case]:
    suite = Suite.read({"name": "mine", "cases": list(entries)}, "mine.yaml")
    return expand(suite, KNOWN.get, Here(devices={"cuda": gpus}), set)


def refusal(*entries: dict[str, Any], **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        cases(*entries, **more)
    return str(caught.value)

"""A suite as it was written becomes cases in order; bad input is refused before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from paceline.core.benchmark import Benchmark, Context
from paceline.core.case import Case, measuring_order
from paceline.core.errors import InputError
from paceline.core.parameters import EachPart, Parameters
from paceline.core.quantity import Size
from paceline.core.record import Result
from paceline.core.registry import Registry
from paceline.core.suite import Here, Suite, expand, only
from support.refused import refused


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


# ---- the matrix


def test_lists_expand_to_a_matrix_whose_last_list_varies_fastest() -> None:
    found = cases({"benchmark": "gemm", "precision": ["fp32", "fp16"], "size": [1, 2, 3]})
    assert [(case.parameters["precision"], case.parameters["size"]) for case in found] == [
        ("fp32", 1),
        ("fp32", 2),
        ("fp32", 3),
        ("fp16", 1),
        ("fp16", 2),
        ("fp16", 3),
    ]
    assert [case.index for case in found] == list(range(6))


def test_the_order_of_the_axes_is_the_order_in_which_they_were_written() -> None:
    found = cases({"benchmark": "gemm", "size": [1, 2], "precision": ["fp32", "fp16"]})
    assert [(case.parameters["size"], case.parameters["precision"]) for case in found] == [
        (1, "fp32"),
        (1, "fp16"),
        (2, "fp32"),
        (2, "fp16"),
    ]


def test_entries_stay_in_their_order() -> None:
    found = cases({"benchmark": "train", "model": "a"}, {"benchmark": "gemm"}, {"benchmark": "train", "model": "b"})
    assert [(case.benchmark, case.parameters.get("model")) for case in found] == [
        ("train", "a"),
        ("gemm", None),
        ("train", "b"),
    ]


def test_a_case_carries_every_parameter_after_defaults_and_units() -> None:
    (found,) = cases({"benchmark": "gemm", "buffer": "1KiB"})
    assert found.parameters["buffer"] == 1024
    assert set(found.parameters) == set(GemmParameters.model_fields)


def test_a_parameter_that_is_a_list_itself_does_not_expand() -> None:
    (found,) = cases({"benchmark": "gemm", "shape": [2, 3, 4], "axes": [0, 1]})
    assert found.parameters["shape"] == [2, 3, 4]
    assert found.parameters["axes"] == [0, 1]


def test_a_field_that_depends_on_others_may_be_a_list_too() -> None:
    (found,) = cases({"benchmark": "gemm", "kind": {"name": "gemm", "axes": [0, 1]}})
    assert found.parameters["kind"] == {"name": "gemm", "axes": [0, 1]}
    expanded = cases({"benchmark": "gemm", "kind": {"name": "plain", "axes": [0, 1]}})
    assert [case.parameters["kind"]["axes"] for case in expanded] == [0, 1]


def test_a_list_of_lists_expands_a_parameter_that_is_a_list_itself() -> None:
    assert [case.parameters["shape"] for case in cases({"benchmark": "gemm", "shape": [[2, 3], [4]]})] == [[2, 3], [4]]


def test_an_empty_list_is_a_value_of_a_list_and_refused_elsewhere() -> None:
    assert cases({"benchmark": "gemm", "shape": []})[0].parameters["shape"] == []
    with refused("empty-list", key="precision", case=1):
        cases({"benchmark": "gemm", "precision": []})
    with refused("empty-list", key="steps", case=1):
        cases({"benchmark": "gemm", "steps": []})


@pytest.mark.parametrize("field", ["load", "spare"])
def test_lists_inside_a_mapping_expand_too(field: str) -> None:
    found = cases({"benchmark": "gemm", field: {"rate": [50, 100], "arrival": ["poisson", "constant"]}, "size": [1, 2]})
    assert len(found) == 8
    assert [case.parameters[field]["rate"] for case in found] == [50] * 4 + [100] * 4
    assert [case.parameters["size"] for case in found] == [1, 2] * 4


def test_keys_of_the_case_expand_as_well() -> None:
    found = cases({"benchmark": "train", "model": "m", "target": ["cpu", "cuda:*"], "ranks": [1, 2]}, gpus=2)
    assert [(case.target, case.ranks) for case in found] == [("cpu", 1), ("cpu", 2), ("cuda:*", 1), ("cuda:*", 2)]


def test_one_gpu_is_not_several() -> None:
    with refused("one-device-for-several-ranks", key="target", value="cuda:1"):
        cases({"benchmark": "train", "model": "m", "target": "cuda:1", "ranks": 2})


def test_repetitions_follow_one_another_with_the_same_key() -> None:
    found = cases({"benchmark": "gemm", "size": [1, 2], "repeat": 3})
    assert [(case.parameters["size"], case.repeat) for case in found] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    assert len({case.key for case in found}) == 2
    assert [case.index for case in found] == list(range(6))


def test_repetitions_are_measured_with_the_other_cases_in_between() -> None:
    entry = {"benchmark": "gemm", "size": list(range(1, 9)), "repeat": 4}
    order = measuring_order(cases(entry))
    assert [case.position for case in order] == list(range(32))
    assert [case.repeat for case in order] == [1] * 8 + [2] * 8 + [3] * 8 + [4] * 8
    rounds = [[case.parameters["size"] for case in order[first : first + 8]] for first in range(0, 32, 8)]
    assert all(sorted(sizes) == list(range(1, 9)) for sizes in rounds)
    assert len({tuple(sizes) for sizes in [*rounds, range(1, 9)]}) == 5  # no two alike, and none as it is written
    assert measuring_order(cases(entry)) == order  # who expands it again gets the same


def test_cases_that_are_not_repeated_are_measured_as_they_are_written() -> None:
    found = cases({"benchmark": "gemm", "size": [3, 1, 2]})
    assert {case.position for case in found} == {None}
    assert [case.parameters["size"] for case in measuring_order(found)] == [3, 1, 2]


def test_a_case_that_is_repeated_more_often_goes_on_alone() -> None:
    order = measuring_order(cases({"benchmark": "gemm", "repeat": 3}, {"benchmark": "gemm", "size": 7}))
    assert [(case.parameters["size"] == 7, case.repeat) for case in order[2:]] == [(False, 2), (False, 3)]


def test_a_title_says_what_was_changed_and_how_many_ranks() -> None:
    (found,) = cases({"benchmark": "train", "model": "m", "ranks": 4})
    assert found.title == "model=m x4"


def test_timeouts_are_read_as_people_write_them() -> None:
    assert cases({"benchmark": "gemm", "timeout": "2min"})[0].timeout == 120.0


# ---- where to run


@pytest.mark.parametrize(("gpus", "target"), [(0, "cpu"), (4, "cuda:0")])
def test_auto_is_the_first_gpu_or_else_the_cpu(gpus: int, target: str) -> None:
    assert cases({"benchmark": "gemm"}, gpus=gpus)[0].target == target


@pytest.mark.parametrize(
    ("written", "target"),
    [("cuda", "cuda:0"), ("cuda:", "cuda:0"), ("cuda:3", "cuda:3"), ("cpu", "cpu"), ("cpu:", "cpu")],
)
def test_targets_are_brought_to_one_spelling(written: str, target: str) -> None:
    assert cases({"benchmark": "gemm", "target": written}, gpus=8)[0].target == target


@pytest.mark.parametrize("target", ["gpu", "cpu:0", "cuda:x", "cuda:-1", "auto:1", "", "CUDA:0"])
def test_other_targets_are_refused_with_the_known_ones(target: str) -> None:
    says = re.escape(f"'{target}' is not a target; write auto, cpu, cuda:0, cuda:* or cuda:each")
    with refused("invalid-value", says=says, key="target", value=target, where="mine, case 1 (gemm)", case=1):
        cases({"benchmark": "gemm", "target": target})


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 1), (1, 1), (4, 4)])
def test_all_gpus_are_as_many_ranks(gpus: int, ranks: int) -> None:
    assert cases({"benchmark": "train", "model": "m", "target": "cuda:*"}, gpus=gpus)[0].ranks == ranks


def test_several_ranks_are_refused_where_only_one_can_measure() -> None:
    with refused("not-distributed", key="ranks", value=2):
        cases({"benchmark": "gemm", "ranks": 2})
    with refused("not-distributed", key="ranks", value=4):
        cases({"benchmark": "gemm", "target": "cuda:*"}, gpus=4)
    assert cases({"benchmark": "train", "model": "m", "ranks": 2})[0].ranks == 2


def test_a_case_for_another_kind_of_machine_is_left_out() -> None:
    entries = [{"benchmark": "gemm", "only_on": "cuda", "size": 1}, {"benchmark": "gemm", "only_on": "cpu", "size": 2}]
    assert [case.parameters["size"] for case in cases(*entries)] == [2]
    assert [case.parameters["size"] for case in cases(*entries, gpus=1)] == [1]
    assert [case.index for case in cases(*entries)] == [0]


def test_a_suite_of_which_nothing_is_left_is_refused() -> None:
    with refused("no-case-left", says="has no GPU", where="mine"):
        cases({"benchmark": "gemm", "only_on": "cuda"})


# ---- refusals


def test_an_unknown_benchmark_names_the_nearest() -> None:
    assert refusal({"benchmark": "gem"}) == "mine, case 1: unknown benchmark 'gem': did you mean 'gemm'?"
    with refused("unknown-benchmark", case=1, value="gem", suggestion="gemm"):
        cases({"benchmark": "gem"})


def test_a_misspelt_benchmark_key_is_recognised() -> None:
    assert (
        refusal({"benchmrk": "gemm"}) == "mine, case 1: 'benchmark' is missing; did you mean 'benchmark' by 'benchmrk'?"
    )


def test_an_entry_without_a_benchmark_is_told_what_to_write() -> None:
    found = refusal({"benchmark": "gemm"}, {"size": 3})
    assert found == "mine, case 2: 'benchmark' is missing; write '- benchmark: NAME'"


@pytest.mark.parametrize("name", [["gemm", "train"], 3, {"a": 1}])
def test_a_benchmark_is_one_name(name: object) -> None:
    with refused("not-a-name", key="benchmark", value=name, case=1):
        cases({"benchmark": name})


def test_an_unknown_key_names_the_place_and_the_nearest() -> None:
    found = refusal({"benchmark": "gemm"}, {"benchmark": "gemm", "precison": "fp16"})
    assert found == "mine, case 2 (gemm): unknown key 'precison': did you mean 'precision'?"
    with refused("unknown-key", key="timout", suggestion="timeout", case=1):
        cases({"benchmark": "gemm", "timout": 3})
    with refused("unknown-key", key="load.raet", suggestion="rate", case=2):
        cases({"benchmark": "gemm"}, {"benchmark": "gemm", "load": {"raet": 3}})


def test_a_bad_value_anywhere_in_the_matrix_is_refused() -> None:
    with refused("invalid-value", key="precision", value="fp61"):
        cases({"benchmark": "gemm", "precision": ["fp32", "fp61"]})
    with refused("invalid-value", key="ranks", value=0):
        cases({"benchmark": "train", "model": "m", "ranks": 0})
    with refused("invalid-value", key="repeat", value=0):
        cases({"benchmark": "gemm", "repeat": 0})
    with refused("missing-key", key="model"):
        cases({"benchmark": "train"})


def test_what_the_benchmark_itself_refuses_is_refused_with_the_place() -> None:
    assert refusal({"benchmark": "gemm", "size": [1, 13]}) == "mine, case 1 (gemm): an unlucky size"
    with refused("unlucky-size", key="size", value=13, case=2):
        cases({"benchmark": "gemm"}, {"benchmark": "gemm", "size": [1, 13]})
    with refused("unlucky-size", case=1):
        cases({"benchmark": "gemm", "target": "cuda:9"}, gpus=1)


# ---- --set

BOTH = ({"benchmark": "gemm", "size": [1, 2]}, {"benchmark": "train", "model": "m"})


def test_an_override_goes_to_every_case_that_has_the_key() -> None:
    found = cases(*BOTH, set={"size": 5})
    assert [(case.benchmark, case.parameters["size"]) for case in found] == [("gemm", 5), ("train", 5)]


def test_an_override_leaves_cases_without_the_key_alone() -> None:
    found = cases(*BOTH, set={"precision": "bf16"})
    assert [case.parameters.get("precision") for case in found] == ["bf16", "bf16", None]


def test_a_scoped_override_goes_to_its_benchmark_alone() -> None:
    found = cases(*BOTH, set={"train.size": 5})
    assert [case.parameters["size"] for case in found] == [1, 2, 5]


@pytest.mark.parametrize("path", ["two-words.size", "two_words.size"])
def test_a_scope_of_two_words_is_known_with_either_sign_between_them(path: str) -> None:
    found = cases({"benchmark": "gemm"}, {"benchmark": "two-words"}, set={path: 5})
    assert [case.parameters["size"] for case in found] == [64, 5]


def test_an_override_may_be_a_list_and_a_key_of_the_case() -> None:
    found = cases(*BOTH, set={"train.model": ["a", "b"], "repeat": 2})
    assert len(found) == 2 * 2 + 2 * 2


def test_an_override_does_not_change_the_suite() -> None:
    suite = Suite.read({"name": "mine", "cases": [{"benchmark": "gemm"}]}, "mine.yaml")
    expand(suite, KNOWN.get, Here(), {"size": 5})
    assert suite.cases == [{"benchmark": "gemm"}]


@pytest.mark.parametrize(
    ("path", "code", "where", "suggestion"),
    [
        ("sizee", "unknown-key", "--set sizee", "size"),
        ("train.precision", "unknown-key", "--set train.precision", None),
        ("trian.size", "unknown-benchmark", "", "train"),
        ("benchmark", "unknown-key", "--set benchmark", None),
    ],
)
def test_an_override_that_fits_nowhere_is_refused(path: str, code: str, where: str, suggestion: str | None) -> None:
    with refused(code, key=path, where=where, suggestion=suggestion):
        cases(*BOTH, set={path: 5})


def test_an_override_with_a_dot_changes_a_part_of_a_parameter() -> None:
    entry = {"benchmark": "gemm", "load": {"rate": 7, "arrival": "constant"}}
    (one,) = cases(entry, set={"load.rate": 9})
    assert one.parameters["load"] == {"rate": 9, "arrival": "constant"}
    (one,) = cases({"benchmark": "gemm"}, set={"gemm.load.rate": 9})
    assert one.parameters["load"] == {"rate": 9, "arrival": "poisson"}
    both = cases(entry, set={"load.rate": [1, 2]})
    assert [case.parameters["load"]["rate"] for case in both] == [1, 2]


def test_a_part_of_what_has_no_parts_is_refused() -> None:
    with refused("unknown-key", key="load.rat", suggestion="rate"):
        cases({"benchmark": "gemm"}, set={"load.rat": 9})
    with refused("no-parts", key="load.rate", value=3):
        cases({"benchmark": "gemm", "load": 3}, set={"load.rate": 9})


def test_where_a_suite_came_from_is_told_to_its_cases() -> None:
    suite = Suite.read({"name": "x", "cases": [{"benchmark": "gemm"}]}, "x", origin="network")
    assert [case.origin for case in expand(suite, KNOWN.get, Here())] == ["network"]


# ---- the machine


@pytest.mark.parametrize(
    ("devices", "device", "belongs"),
    [
        ({}, None, True),
        ({}, "cpu", True),
        ({"cuda": 1}, "cpu", False),
        ({}, "gpu", False),
        ({"cuda": 1}, "gpu", True),
        ({"cuda": 1}, "layout", True),
        ({}, "layout", False),
        ({"cuda": 1}, "gpus", False),
        ({"cuda": 2}, "gpus", True),
        ({"cuda": 1}, "cuda", True),
        ({"cuda": 1}, "rocm", False),
        ({"cuda": 0, "rocm": 1}, "rocm", True),
        ({"cuda": 0, "rocm": 1}, "cuda", False),
    ],
)
def test_where_a_case_belongs(devices: dict[str, int], device: str | None, belongs: bool) -> None:
    assert Here(devices=devices).offers(device) is belongs


@pytest.mark.parametrize(
    ("here", "ranks", "nodes", "fits"),
    [
        (Here(devices={"cuda": 2}), 2, None, True),
        (Here(devices={"cuda": 2}), 3, None, False),
        (Here(devices={"cuda": 1}), None, None, True),
        (Here(), None, None, False),
        (Here(devices={"cuda": 2}), 2, 1, True),
        (Here(devices={"cuda": 2}), 2, 2, False),
        (Here(world=2, nodes=2), 2, 2, True),
        (Here(world=2, nodes=2), None, None, True),
        (Here(world=2, nodes=2), 2, 1, False),
        (Here(world=2, nodes=1), 4, 1, False),
    ],
)
def test_whether_a_layout_fits(here: Here, ranks: int | None, nodes: int | None, fits: bool) -> None:
    assert here.fits(ranks, nodes) is fits


def test_a_machine_of_so_many_devices() -> None:
    here = Here.with_devices(2, None, world=4, nodes=2)
    assert (here.devices, here.world, here.nodes, here.gpus, here.kind) == ({"cuda": 2}, 4, 2, 2, "cuda")
    assert Here.with_devices(1, "rocm", world=1, nodes=1).resolve("auto") == ["rocm:0"]
    none = Here.with_devices(0, None, world=1, nodes=1)
    assert (none.devices, none.gpus, none.kind, none.resolve("auto"), none.resolve("cuda:1")) == (
        {}, 0, "cpu", ["cpu"], ["cuda:1"],
    )  # fmt: skip


class Laid(Train):
    """Its size says how many ranks it takes, two for each host."""

    name = "laid"

    @classmethod
    def ranks(cls, parameters: TrainParameters) -> int | None:
        return parameters.size

    @classmethod
    def nodes(cls, parameters: TrainParameters) -> int | None:
        return parameters.size // 2 or None


def laid(here: Here, benchmark: type[Benchmark[Any]] = Laid, **keys: Any) -> list[Case]:
    entry = {"benchmark": benchmark.name, "model": "m"} | keys
    suite = Suite(name="mine", cases=[{name: value for name, value in entry.items() if value is not None}])
    return expand(suite, lambda _: benchmark, here)


def test_parameters_may_call_for_ranks() -> None:
    assert [case.ranks for case in laid(Here(), size=2)] == [2]
    assert [case.ranks for case in laid(Here(world=2), size=2)] == [2]
    with refused("wrong-number-of-ranks", key="ranks", value=3):
        laid(Here(), size=2, ranks=3)
    with refused("wrong-number-of-ranks", key="ranks", value=4):
        laid(Here(world=4), size=2)
    with refused("wrong-number-of-nodes", value=2, says="name the hosts with --hosts"):
        laid(Here(), size=4)
    with refused("wrong-number-of-nodes", value=1, says="change the layout, or name other hosts"):
        laid(Here(world=2, nodes=2), size=2)
    assert [case.ranks for case in laid(Here(nodes=2, world=4), size=4)] == [4]


def test_a_layout_that_does_not_fit_may_be_left_out() -> None:
    here = Here(devices={"cuda": 2})
    assert [case.ranks for case in laid(here, size=[1, 2, 4], only_on="layout")] == [1, 2]
    assert [case.ranks for case in laid(here, size=[1, 2], only_on="gpu")] == [1, 2]


def test_processes_that_were_started_together_measure_together_where_the_benchmark_can() -> None:
    assert [case.ranks for case in laid(Here(world=2), Train)] == [2]
    assert [case.ranks for case in laid(Here(world=2), Train, ranks=2)] == [2]
    assert [case.ranks for case in laid(Here(world=2), Gemm, model=None)] == [1]
    with refused("wrong-number-of-ranks", key="ranks", value=3):
        laid(Here(world=2), Train, ranks=3)


@pytest.mark.parametrize("target", ["cuda:0", "cuda:*", "cpu"])
def test_several_ranks_begin_at_the_first_device(target: str) -> None:
    assert [case.ranks for case in laid(Here(devices={"cuda": 1}), Train, target=target, ranks=2)] == [2]
    assert laid(Here(devices={"cuda": 4}), Train, target="cuda:3")[0].ranks == 1


def test_a_suite_has_so_many_cases_at_most() -> None:
    suite = Suite(name="mine", cases=[{"benchmark": "gemm", "size": [1, 2, 3]}])
    assert len(expand(suite, KNOWN.get, Here(), most_cases=3)) == 3
    with refused("too-many-cases", case=1):
        expand(suite, KNOWN.get, Here(), most_cases=2)


def test_a_list_of_which_only_some_are_lists_is_one_value() -> None:
    with refused("invalid-value", key="shape.1"):
        cases({"benchmark": "gemm", "shape": [2, [3]]})


# ---- --only


def named(*titles: str) -> list[Case]:
    return [Case(index=place, benchmark="gemm", title=title, parameters={}) for place, title in enumerate(titles)]


@pytest.mark.parametrize(
    ("filters", "titles"),
    [
        ([], ["fp16 8", "fp32 8", "fp32 9"]),
        (["FP32"], ["fp32 8", "fp32 9"]),
        (["8 fp32"], ["fp32 8"]),
        (["fp32 9", "fp16"], ["fp16 8", "fp32 9"]),
        (["gemm cpu"], ["fp16 8", "fp32 8", "fp32 9"]),
    ],
)
def test_cases_are_chosen_by_all_words_of_one_filter(filters: list[str], titles: list[str]) -> None:
    chosen = only(named("fp16 8", "fp32 8", "fp32 9"), filters, "mine")
    assert [(case.index, case.title) for case in chosen] == list(enumerate(titles))


@pytest.mark.parametrize(
    ("filters", "titles"),
    [
        (["resnet50 bf16"], ["resnet50 bf16"]),
        (["resnet50"], ["resnet50 bf16"]),
        (["wide"], ["wide_resnet50_2 bf16"]),
        (["resnet50_2"], ["wide_resnet50_2 bf16"]),
        (["gpt2"], ["gpt2-small bf16", "gpt2-large bf16"]),
    ],
)
def test_a_whole_word_of_a_name_is_not_looked_for_within_others(filters: list[str], titles: list[str]) -> None:
    names = ("resnet50 bf16", "wide_resnet50_2 bf16", "gpt2-small bf16", "gpt2-large bf16")
    assert [case.title for case in only(named(*names), filters, "mine")] == titles


def test_a_filter_that_chooses_nothing_is_refused_with_a_name_that_would() -> None:
    with refused("no-such-case", key="--only", value="bf16", says="the first one is 'gemm fp16 8 on cpu'"):
        only(named("fp16 8", "fp32 8"), ["fp16", "bf16"], "mine")
    with refused("no-such-case", says="there are none here"):
        only([], ["bf16"], "mine")


def test_a_benchmark_that_was_named_alone_is_a_suite_that_nobody_wrote() -> None:
    suite = Suite.of_benchmark("gemm")
    assert (suite.name, suite.cases, suite.is_written) == ("gemm", [{"benchmark": "gemm"}], False)
    assert Suite.read({"name": "x", "cases": [{"benchmark": "gemm"}]}, "x").is_written


@pytest.mark.parametrize(
    ("target", "gpus", "expected"),
    [
        ("cuda:each", 3, ["cuda:0", "cuda:1", "cuda:2"]),
        ("auto:each", 2, ["cuda:0", "cuda:1"]),
        ("auto:each", 0, ["cpu"]),
        ("cuda:each", 0, ["cuda:0"]),  # which is not here, and says so
        ("auto:*", 0, ["cpu"]),
        ("auto", 2, ["cuda:0"]),
    ],
)
def test_each_device_is_a_case_of_its_own(target: str, gpus: int, expected: list[str]) -> None:
    found = cases({"benchmark": "gemm", "target": target}, gpus=gpus)
    assert [case.target for case in found] == expected
    assert {case.ranks for case in found} == {1}
    assert [case.index for case in found] == list(range(len(expected)))


def test_all_devices_of_any_kind_are_one_case() -> None:
    (case,) = cases({"benchmark": "train", "model": "m", "target": "auto:*"}, gpus=4)
    assert (case.target, case.ranks) == ("cuda:*", 4)


@pytest.mark.parametrize(
    ("size", "more", "gpus", "at_once"),
    [
        (16, {}, 2, True),
        (8, {}, 2, False),
        (8, {"at_once": True}, 2, True),
        (16, {"at_once": False}, 2, False),
        (16, {}, 1, False),
    ],
)
def test_devices_are_measured_at_once_where_the_benchmark_stays_within_one_or_the_suite_says_so(
    size: int, more: dict[str, Any], gpus: int, at_once: bool
) -> None:
    found = cases({"benchmark": "two-words", "target": "cuda:each", "size": size, **more}, gpus=gpus)
    assert {case.at_once for case in found} == {at_once}


def test_the_same_work_is_known_on_other_devices_and_only_in_the_same_repetition() -> None:
    found = cases({"benchmark": "gemm", "target": "cuda:each", "size": [8, 16], "repeat": 2}, gpus=2)
    assert len({case.work_key for case in found}) == 4
    assert len({case.key for case in found}) == 4  # two sizes on two devices, whichever repetition


def test_each_device_by_itself_takes_one_rank() -> None:
    with refused("one-device-for-several-ranks", key="target"):
        cases({"benchmark": "train", "model": "m", "target": "cuda:each", "ranks": 2}, gpus=2)


@pytest.mark.parametrize(("nodes", "expected"), [([0, 2], [0, 2]), ([0], [None]), ([], [None])])
def test_each_part_of_the_machine_is_a_case_where_there_are_several(
    nodes: list[int | str], expected: list[int | None]
) -> None:
    suite = Suite(name="s", cases=[{"benchmark": "gemm", "node": "each", "size": 8}])
    found = expand(suite, KNOWN.get, Here(parts={"nodes": nodes, "others": [7, 8]}))
    assert [case.parameters["node"] for case in found] == expected


def test_only_a_part_of_the_machine_can_be_each() -> None:
    assert "steps" in refusal({"benchmark": "gemm", "steps": "each"})

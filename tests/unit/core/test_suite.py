"""A suite as it was written becomes cases in order; bad input is refused before anything runs."""

from __future__ import annotations

import pytest

from paceline.core.case import Case, measuring_order
from paceline.core.suite import Here, Suite, command_line, expand, only
from support.refused import refused
from support.small_suites import KNOWN, GemmParameters, cases, refusal

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
    with refused("no-such-case", says="the first one is 'gemm on cpu', and `paceline run` with --dry-run shows"):
        only(named(""), ["bf16"], "mine")
    with refused("no-such-case", says="there are none here"):
        only([], ["bf16"], "mine")


def test_a_benchmark_that_was_named_alone_is_a_suite_that_nobody_wrote() -> None:
    suite = Suite.of_benchmark("gemm")
    assert (suite.name, suite.cases, suite.is_written) == ("gemm", [{"benchmark": "gemm"}], False)
    assert Suite.read({"name": "x", "cases": [{"benchmark": "gemm"}]}, "x").is_written


# ---- as a command


def test_a_command_has_what_was_set() -> None:
    given = {"batch_size": [1, 8], "compile": True, "load": {"rate": 100, "arrival": "poisson"}, "model": "resnet50"}
    assert command_line("submit", "serve", given, ["resnet"]) == [
        *("paceline", "submit", "serve", "--batch-size", "1,8", "--compile", "true"),
        *("--load", '{"rate": 100, "arrival": "poisson"}', "--model", "resnet50", "--only", "resnet"),
    ]

"""What a user wrote is validated, and refused in words that name the place, the value and the remedy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.network import shorten
from paceline.core.parameters import MeasuringParameters, Parameters
from paceline.core.quantity import Size
from support.refused import refused


class Load(BaseModel):
    model_config = ConfigDict(extra="forbid")

    arrival: Literal["poisson", "constant"] = "poisson"
    duration: float = 1.0


class Example(MeasuringParameters):
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = "fp32"
    batch_size: Literal["auto"] | Annotated[int, Field(ge=1)] | None = None
    buffer: Size = 0
    shape: list[int] = []
    load: Load = Load()
    spare: Load | None = None
    phases: list[Load] = []


class Needs(Parameters):
    model: str


def refusal(values: dict[str, Any], model: type[Parameters] = Example) -> str:
    with pytest.raises(InputError) as caught:
        model.read(values)
    return str(caught.value)


def test_quantities_are_read_as_people_write_them() -> None:
    found = Example.read({"budget": "500ms", "interval": "2%", "buffer": "1KiB", "warm_up": "1min"})
    assert (found.budget, found.interval, found.buffer, found.warm_up) == (0.5, 0.02, 1024, 60.0)


def test_parameters_cannot_be_changed_once_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Example.read({}).budget = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "near"),
    [("budgt", "budget"), ("warmup", "warm_up"), ("Precision", "precision"), ("batchsize", "batch_size")],
)
def test_an_unknown_key_names_the_nearest(key: str, near: str) -> None:
    with refused("unknown-key", says=f"unknown key '{key}': did you mean '{near}'?", key=key, suggestion=near):
        Example.read({key: 1})


def test_an_unknown_key_near_nothing_lists_what_is_known() -> None:
    assert refusal({"model": "x", "zzzzzz": 1}, Needs) == "unknown key 'zzzzzz': known are model"


@pytest.mark.parametrize("field", ["load", "spare"])
def test_an_unknown_key_of_an_inner_mapping_names_the_nearest_there(field: str) -> None:
    with refused("unknown-key", key=f"{field}.duratoin", suggestion="duration"):
        Example.read({field: {"duratoin": 3}})


def test_an_unknown_key_in_a_list_of_mappings_names_its_place() -> None:
    with refused("unknown-key", key="phases.1.arival", suggestion="arrival"):
        Example.read({"phases": [{}, {"arival": "poisson"}]})


def test_a_bad_unit_names_value_and_known_units() -> None:
    found = refusal({"budget": "3 parsecs"})
    assert found == (
        "'budget': '3 parsecs' has the unknown unit 'parsecs'; a duration takes ns, us, µs, ms, s, m, min, h, d"
    )


def test_a_wrong_choice_lists_the_choices_and_the_nearest() -> None:
    assert refusal({"precision": "fp61"}) == (
        "'precision' = 'fp61': must be one of 'fp32', 'tf32', 'fp16' or 'bf16'; did you mean 'fp16'?"
    )
    assert refusal({"precision": "quadruple"}) == (
        "'precision' = 'quadruple': must be one of 'fp32', 'tf32', 'fp16' or 'bf16'"
    )
    with refused("invalid-value", key="load.arrival", value="poison", suggestion="poisson"):
        Example.read({"load": {"arrival": "poison"}})


@pytest.mark.parametrize(("value", "word"), [(0, "or equal to 1"), ("many", "whole number"), (1.5, "whole number")])
def test_where_several_types_are_allowed_each_is_explained_under_the_key_that_was_written(
    value: object, word: str
) -> None:
    found = refusal({"batch_size": value})
    assert found.startswith(f"'batch_size' = {value!r}: must be 'auto'; or ")
    assert word in found


def test_where_several_types_are_allowed_a_near_miss_is_recognised() -> None:
    assert refusal({"batch_size": "atuo"}) == "'batch_size' = 'atuo': must be 'auto'; did you mean 'auto'?"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"budget": 0}, "'budget' = 0.0: must be greater than 0"),
        ({"interval": "100%"}, "'interval' = 1.0: must be less than 1"),
        ({"steps": 0}, "'steps' = 0: must be greater than or equal to 1"),
        ({"seed": "one"}, "'seed' = 'one': must be a whole number"),
        ({"shape": [1, "x"]}, "'shape.1' = 'x': must be a whole number"),
        ({"budget": -1}, "'budget': '-1' must be finite and not negative"),
        ({"budget": float("inf")}, "must be finite"),
    ],
)
def test_a_refused_value_is_named_with_its_key(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


def test_a_missing_key_is_named() -> None:
    with refused("missing-key", says="'model' is missing", key="model"):
        Needs.read({})


# ---- a case's key


def case(**values: Any) -> Case:
    return Case(**({"index": 0, "benchmark": "b", "parameters": {"x": 1, "y": {"p": 2, "q": 3}}, "title": ""} | values))


def test_the_key_does_not_depend_on_the_order_of_parameters() -> None:
    assert case().key == case(parameters={"y": {"q": 3, "p": 2}, "x": 1}).key


def test_the_key_is_the_same_in_every_process_and_version() -> None:
    assert case().key == "1a8a21a3562aa2ec"


def test_the_key_ignores_what_does_not_change_the_work() -> None:
    assert case().key == case(index=7, title="other", timeout=3.0, repeat=2, origin="network").key


@pytest.mark.parametrize(
    "changed",
    [
        {"parameters": {"x": 2, "y": {"p": 2, "q": 3}}},
        {"parameters": {"x": 1, "y": {"p": 2, "q": 4}}},
        {"parameters": {"x": "1", "y": {"p": 2, "q": 3}}},
        {"parameters": {"x": 1}},
        {"benchmark": "c"},
        {"target": "cuda:0"},
        {"ranks": 2},
    ],
)
def test_different_work_has_a_different_key(changed: dict[str, Any]) -> None:
    assert case().key != case(**changed).key


# ---- what a message repeats


@pytest.mark.parametrize(
    ("text", "shown"), [("a" * 58, f"'{'a' * 58}'"), ("a" * 59, f"'{'a' * 59}...'"), ("é", "'\\xe9'")]
)
def test_a_value_in_a_message_is_short_and_plain(text: str, shown: str) -> None:
    assert shorten(text) == shown


class Alternatives(Parameters):
    either: Load | list[int] = []


def test_the_place_of_a_mistake_does_not_name_the_alternative() -> None:
    with refused("unknown-key", key="either.duratoin", suggestion="duration"):
        Alternatives.read({"either": {"duratoin": 3}})


def test_a_value_that_may_be_a_secret_is_not_for_programs_to_repeat() -> None:
    with refused("invalid-value", key="seed", value="ten"):
        Example.read({"seed": "ten"})
    with refused("invalid-value", key="seed", value=None):
        Example.read({"seed": "http://me:word@host"})
    with refused("invalid-value", key="load", value=None):
        Example.read({"load": [1]})

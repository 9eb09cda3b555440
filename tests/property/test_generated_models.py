"""The name of a generated model says all that it is, and no text makes the reader do worse than refuse."""

from __future__ import annotations

from dataclasses import asdict, fields
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.errors import InputError
from paceline.models.generated import LIMITS, SHAPES, Shape, generated_model, parse


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    kind = SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
    names = [knob.name for knob in fields(kind)]
    knobs = {name: draw(st.integers(1, LIMITS[name])) for name in names if draw(st.booleans())}
    if "kernel" in knobs:
        knobs["kernel"] |= 1
    if "heads" in names:
        knobs["heads"] = knobs.get("heads", 4)
        knobs["width"] = knobs["heads"] * draw(st.integers(1, LIMITS["width"] // knobs["heads"]))
    return kind(**knobs)


@given(shapes())
def test_a_name_reads_as_the_shape_it_was_written_from(shape: Shape) -> None:
    assert parse(str(shape)) == shape
    assert str(parse(str(shape))) == str(shape)


@given(shapes(), st.randoms())
def test_knobs_may_come_in_any_order(shape: Shape, random: Random) -> None:
    settings = [f"{knob}={value}" for knob, value in asdict(shape).items()]
    random.shuffle(settings)
    assert parse(f"generated/{shape.family}:{','.join(settings)}") == shape


@given(shapes())
def test_the_tiny_scale_is_a_shape_too(shape: Shape) -> None:
    tiny = shape.at("tiny")
    assert parse(str(tiny)) == tiny
    assert tiny.count()[0] <= shape.count()[0]
    assert tiny.at("tiny") == tiny


@given(st.text(max_size=20) | st.from_regex(r"(fc|cnn|lstm|transformer):?[a-z]{0,6}=?[0-9a-z,=]{0,12}", fullmatch=True))
def test_any_text_is_a_model_or_refused(text: str) -> None:
    try:
        spec = generated_model(f"generated/{text}")
    except InputError as refusal:
        assert "\n" not in str(refusal) or "\n" in text
    else:
        assert generated_model(spec.name).name == spec.name

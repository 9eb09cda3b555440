"""Pictures and texts become what the model takes, and its output becomes its likeliest classes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.benchmarks.serving.requests import Answers, RequestMaker
from paceline.core.errors import MissingDependency, SilentCorruption
from paceline.load.kserve import ProtocolError, TensorSpec, encode_response
from paceline.load.parameters import RequestParameters
from paceline.load.request import Endpoint, Form
from paceline.servers.base import Artifact, Need
from paceline.servers.processing import INDICES, VALUES, Processing, likeliest
from support.refused import refused

SCORES = TensorSpec("scores", "FP32", (7,))
PIXELS = TensorSpec("pixels", "FP32", (3, 4, 8))
TOKENS, MASK = TensorSpec("tokens", "INT64", (6,)), TensorSpec("mask", "INT64", (2,))


def of_pictures() -> Processing:
    return Processing("image", "pixels", PIXELS.shape, (PIXELS,), {}, SCORES)


def of_texts(vocabulary: int = 50) -> Processing:
    return Processing("text", "tokens", TOKENS.shape, (TOKENS, MASK), {"mask": [4, 5]}, SCORES, vocabulary)


def picture(pixels: np.ndarray, form: str = "PNG") -> bytes:
    image = pytest.importorskip("PIL.Image", reason="needs pillow: pip install '.[torch]'")
    file = io.BytesIO()
    image.fromarray(pixels).save(file, form)
    return file.getvalue()


def test_a_picture_is_cut_scaled_and_normalised() -> None:
    colour = np.array([255, 0, 128], np.uint8)
    found = of_pictures().before([picture(np.full((32, 64, 3), colour))])
    expected = (colour / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    assert found["pixels"].shape == (1, 3, 4, 8) and found["pixels"].dtype == np.float32
    assert np.allclose(found["pixels"][0], expected[:, None, None], atol=1e-5)


def test_only_the_middle_of_a_picture_is_looked_at() -> None:
    """A model that takes pictures twice as wide as high sees such a part of it, less its rims.

    Resampling reaches a little over the edge, so that the outermost pixels are left out.
    """
    white = np.full((40, 80, 3), 255, np.uint8)
    rims = white.copy()
    rims[:2] = rims[-2:] = rims[:, :4] = rims[:, -4:] = 0
    square = np.zeros((80, 80, 3), np.uint8)
    square[20:60] = 255
    spot = white.copy()
    spot[18:22, 38:42] = 0
    made = [of_pictures().before([picture(one)])["pixels"] for one in (white, rims, square, spot)]
    found = [one[:, :, 1:-1, 1:-1] for one in made]
    assert np.array_equal(found[1], found[0]) and np.array_equal(found[2], found[0])
    assert not np.array_equal(found[3], found[0])


@pytest.mark.parametrize("mode", [np.zeros((9, 9), np.uint8), np.zeros((9, 9, 4), np.uint8)], ids=["grey", "alpha"])
def test_pictures_of_other_kinds_have_three_channels_too(mode: np.ndarray) -> None:
    assert of_pictures().before([picture(mode), picture(np.zeros((5, 5, 3), np.uint8), "JPEG")])["pixels"].shape[0] == 2


@pytest.mark.parametrize("wrong", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"\xff\xd8\xff\xe0"])
def test_what_is_no_picture_is_refused(wrong: bytes) -> None:
    pytest.importorskip("PIL", reason="needs pillow: pip install '.[torch]'")
    with pytest.raises(ProtocolError, match="cannot be read as JPEG or PNG"):
        of_pictures().before([wrong])


def test_a_cut_or_enormous_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = picture(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8), "JPEG")
    with pytest.raises(ProtocolError, match="cannot be read"):
        of_pictures().before([whole[: len(whole) // 2]])
    monkeypatch.setattr("paceline.servers.processing._MOST_PIXELS", 4000)
    with pytest.raises(ProtocolError, match="64 x 64 pixels are more than 4000"):
        of_pictures().before([whole])


def test_a_text_becomes_tokens_and_the_other_inputs_are_there() -> None:
    texts = [b"The water, the WATER!", b"", "zwölf Boxkämpfer jagen Viktor quer über den Deich".encode()]
    found = of_texts().before(texts)
    assert list(found) == ["tokens", "mask"]
    tokens = found["tokens"]
    assert tokens.shape == (3, 6) and tokens.dtype == np.int64
    assert tokens.min() >= 0 and tokens.max() < 50
    assert tokens[0, 0] == tokens[0, 2] and tokens[0, 1] == tokens[0, 3]  # whatever its case
    assert tokens[0, 4:].tolist() == [0, 0] and not tokens[1].any()
    assert found["mask"].tolist() == [[4, 5]] * 3
    assert np.array_equal(tokens, of_texts().before(texts)["tokens"])
    with pytest.raises(ProtocolError, match="not in UTF-8"):
        of_texts().before([b"\xff\xfe"])


def test_the_likeliest_come_first() -> None:
    scores = np.random.default_rng(2).permutation(60).reshape(3, 4, 5).astype(np.float32)
    scores = np.concatenate([scores, scores - 100], axis=-1)
    values, indices = likeliest(scores)
    assert np.array_equal(values, -np.sort(-scores, axis=-1)[..., :5])
    assert np.array_equal(np.take_along_axis(scores, indices, axis=-1), values)
    assert likeliest(scores[..., :2])[0].shape == (3, 4, 2)
    assert [spec.shape for spec in of_texts().gives] == [(5,), (5,)]


@pytest.mark.parametrize(
    ("model", "form", "others"), [("generated/cnn", "image", set()), ("bert-base", "text", {"types", "masked"})]
)
def test_it_is_found_out_from_the_model(model: str, form: Form, others: set[str]) -> None:
    from paceline.servers.export import export

    artifact = export(Need(model, "tiny"), "eager")
    made = Processing.of(form, artifact, allow_import=False)
    assert made.others.keys() == others
    assert made.shape == artifact.inputs[0].shape
    assert (made.vocabulary > 900) == (form == "text")
    other: Form = "text" if form == "image" else "image"
    with refused("form-not-taken", key="requests.form", value=other):
        Processing.of(other, artifact, allow_import=False)


def test_without_pillow_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    artifact = Artifact("m", "tiny", "eager", "fp32", 1, None, (PIXELS,), (SCORES,))
    with pytest.raises(MissingDependency, match="pillow is not available here; pip install"):
        Processing.of("image", artifact, allow_import=False)


# ---- requests


@pytest.mark.parametrize(("form", "model"), [("image", "generated/cnn"), ("text", "generated/transformer")])
def test_who_prepares_changes_what_is_sent_but_not_what_is_computed(form: Form, model: str) -> None:
    from paceline.servers.export import export

    artifact = export(Need(model, "tiny"), "eager")

    def made(processing: str, seed: int = 3):  # type: ignore[no-untyped-def]
        wanted = RequestParameters.model_validate({"form": form, "processing": processing, "distinct": 3, "samples": 2})
        return RequestMaker(
            wanted, artifact, Endpoint("kserve-binary", "h", 1, "/", "m"), seed, 8, allow_import=False
        ).raw_requests()

    server, client = made("server"), made("client")
    for one, other in zip(server.tensors, client.tensors, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert server.processing is not None and client.processing is None
    assert all(one.before == one.after == 0.0 for one in server.prepared)
    assert all(one.before > 0 and one.after > 0 and one.samples == 2 for one in client.prepared)
    assert b'"BYTES"' in server.prepared[0].body and b'"BYTES"' not in client.prepared[0].body
    assert [one.body for one in made("server").prepared] == [one.body for one in server.prepared]
    assert [one.body for one in made("server", seed=4).prepared] != [one.body for one in server.prepared]


def test_pictures_of_the_users_own(tmp_path: Path) -> None:
    from paceline.servers.export import export

    artifact = export(Need("generated/cnn", "tiny"), "eager")
    (tmp_path / "b.png").write_bytes(picture(np.zeros((9, 9, 3), np.uint8)))
    (tmp_path / "a.jpg").write_bytes(picture(np.full((9, 9, 3), 255, np.uint8), "JPEG"))
    (tmp_path / "notes.txt").write_text("not one of them")

    def tensors(folder: Path) -> list[float]:
        wanted = RequestParameters(form="image", dataset=folder, distinct=3)
        made = RequestMaker(
            wanted, artifact, Endpoint("kserve-grpc", "h", 1, "/", "m"), 1, 8, allow_import=False
        ).raw_requests()
        return [float(one["images"].mean()) for one in made.tensors]

    white, black, again = tensors(tmp_path)
    assert white > 0 > black and again == white
    (tmp_path / "c.png").write_bytes(b"broken")
    with refused("unreadable-sample", key="requests.dataset"):
        tensors(tmp_path)
    (tmp_path / "empty").mkdir()
    with refused("empty-folder", key="requests.dataset"):
        tensors(tmp_path / "empty")
    with refused("not-a-folder", key="requests.dataset"):
        tensors(tmp_path / "c.png")


# ---- answers


def test_answers_are_checked_by_value_so_that_ties_may_fall_either_way() -> None:
    artifact = Artifact("m", "tiny", "eager", "fp32", 1, None, (TOKENS,), (SCORES,))
    request = {TOKENS.name: np.zeros((1, *TOKENS.shape), np.int64)}
    answers = Answers(artifact, [request], "kserve-json", of_texts(), allow_import=False)
    scores = np.array([[3.0, 9.0, 1.0, 9.0 + 1e-9, 2.0, 7.0, 0.0]])
    answers._expected[0] = [scores]

    def told(values: list[float], indices: list[int]) -> bytes:
        outputs = {VALUES: np.array([values], np.float32), INDICES: np.array([indices], np.int64)}
        return encode_response("m", outputs).body

    answers(0, told([9, 9, 7, 3, 2], [3, 1, 5, 0, 4]))
    answers(0, told([9, 9, 7, 3, 2], [1, 3, 5, 0, 4]))
    assert answers.checked == 2
    for values, indices in (
        ([9, 9, 7, 3, 2], [1, 3, 0, 5, 4]),
        ([9, 9, 7, 3, 1], [1, 3, 5, 0, 2]),
        ([9, 8, 7, 3, 2], [1, 3, 5, 0, 4]),
        ([9, 9, 7, 3, 2], [1, 3, 5, 0, 7]),
        ([9, 9, 7, 3], [1, 3, 5, 0]),
    ):
        with pytest.raises(SilentCorruption):
            answers(0, told(values, indices))
    with pytest.raises(SilentCorruption, match="not top_values and top_indices"):
        answers(0, encode_response("m", {"scores": scores}).body)

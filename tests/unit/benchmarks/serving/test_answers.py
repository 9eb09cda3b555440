"""Answers are those of the model, or the case ends."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paceline.benchmarks.serving.requests import CHECKED, MOST_SAMPLES, Answers, _check_choices
from paceline.core.errors import SilentCorruption
from paceline.load.kserve import Array
from paceline.servers.base import Need
from paceline.servers.export import export, load_module, sample_inputs

MODEL = "generated/fc:layers=1,width=16"
REQUESTS = 8


@pytest.fixture(scope="module")
def made() -> tuple[Answers, list[dict[str, Array]]]:
    import torch

    artifact = export(Need(MODEL, "tiny", seed=5), "eager")
    requests = [{k: v[None] for k, v in one.items()} for one in sample_inputs(artifact, REQUESTS, seed=5)]
    module, inputs, outputs = load_module(artifact), artifact.inputs, artifact.outputs
    with torch.no_grad():
        right = [{outputs[0].name: module(*(torch.from_numpy(r[i.name]) for i in inputs)).numpy()} for r in requests]
    return Answers(artifact, requests, "kserve-json", allow_import=False), right


def body(outputs: dict[str, Array]) -> bytes:
    told = [
        {"name": name, "datatype": "FP32", "shape": list(one.shape), "data": one.ravel().tolist()}
        for name, one in outputs.items()
    ]
    return json.dumps({"model_name": "m", "outputs": told}).encode()


def test_right_answers_pass_and_wrong_ones_do_not(made: tuple[Answers, list[dict[str, Array]]]) -> None:
    answers, right = made
    answers(7, body(right[7]))
    answers(2, body(right[2]))
    assert answers.checked == 2
    assert answers.deviation < 1e-5
    wrong = {name: one + np.abs(one).max() for name, one in right[7].items()}
    with pytest.raises(SilentCorruption, match="request 7: output 0"):
        answers(7, body(wrong))
    with pytest.raises(SilentCorruption, match="has 0 outputs, the model gives 1"):
        answers(7, body({}))
    with pytest.raises(SilentCorruption, match="shape"):
        answers(7, body({name: one[:, :1] for name, one in right[7].items()}))
    with pytest.raises(SilentCorruption, match="differs"):
        answers(7, body({name: one * np.nan for name, one in right[7].items()}))


def test_the_first_kinds_that_are_answered_are_those_that_are_checked(
    made: tuple[Answers, list[dict[str, Array]]],
) -> None:
    answers, right = made
    for kind in range(REQUESTS):
        answers(kind, body(right[kind]))
    before = answers.checked
    answers(REQUESTS - 3, b"nobody looks at this")
    assert answers.checked == before
    assert before >= CHECKED


def test_of_a_large_request_the_first_samples_are_compared_and_all_must_be_there() -> None:
    import torch

    artifact = export(Need(MODEL, "tiny", seed=5), "eager")
    samples = sample_inputs(artifact, 3 * MOST_SAMPLES, seed=5)
    request = {name: np.stack([one[name] for one in samples]) for name in samples[0]}
    module, inputs, outputs = load_module(artifact), artifact.inputs, artifact.outputs
    with torch.no_grad():
        right = module(*(torch.from_numpy(request[one.name]) for one in inputs)).numpy()
    answers = Answers(artifact, [request], "kserve-json", allow_import=False)
    answers(0, body({outputs[0].name: right}))
    assert answers.checked == 1
    wrong = right.copy()
    wrong[MOST_SAMPLES - 1] += np.abs(right).max()
    with pytest.raises(SilentCorruption, match="differs"):
        answers(0, body({outputs[0].name: wrong}))
    for count in (MOST_SAMPLES - 1, MOST_SAMPLES, 3 * MOST_SAMPLES - 1, 3 * MOST_SAMPLES + 1):
        with pytest.raises(SilentCorruption, match="shape"):
            answers(0, body({outputs[0].name: np.resize(right, (count, *right.shape[1:]))}))


@pytest.mark.parametrize("model", ["bert-base", "gpt2-small"])
def test_a_language_model_answers_with_tokens_and_how_likely_they_are(model: str) -> None:
    import torch

    artifact = export(Need(model, "tiny", seed=5), "eager")
    module, inputs, outputs = load_module(artifact), artifact.inputs, artifact.outputs
    request = {name: one[None] for name, one in sample_inputs(artifact, 1, seed=5)[0].items()}
    tensors = [torch.from_numpy(request[one.name]) for one in inputs]
    with torch.no_grad():
        scores, tokens = module(*tensors)
        logits = module.module(*tensors)  # type: ignore[operator]
    asked = logits if model == "bert-base" else logits[:, -1:]
    torch.testing.assert_close(scores, asked.log_softmax(-1).max(-1).values)
    assert tokens.equal(asked.argmax(-1))
    assert [one.datatype for one in outputs] == ["FP32", "INT64"]

    answers = Answers(artifact, [request], "kserve-json", allow_import=False)
    answers(0, body({"output_0": scores.numpy(), "output_1": tokens.numpy()}))
    with pytest.raises(SilentCorruption, match="request 0: output 0"):
        answers(0, body({"output_0": scores.numpy() * 2, "output_1": tokens.numpy()}))
    with pytest.raises(SilentCorruption, match="shape"):
        answers(0, body({"output_0": scores.numpy(), "output_1": tokens.numpy()[:, :0]}))


@pytest.mark.parametrize(("choices", "changed", "is_right"), [(80, 8, True), (80, 60, False), (1, 1, True)])
def test_rounding_changes_some_choices_and_never_most(choices: int, changed: int, is_right: bool) -> None:
    chosen = np.arange(choices)
    found = np.where(chosen < changed, chosen + 1, chosen)
    if is_right:
        _check_choices(0, "tokens", found, chosen.astype(np.float64))
    else:
        with pytest.raises(SilentCorruption, match="25 % of the 80 choices in output 'tokens'"):
            _check_choices(0, "tokens", found, chosen.astype(np.float64))

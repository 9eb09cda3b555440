"""Which answers are good, and what is said of the others."""

from __future__ import annotations

import pytest

from paceline.load.expected import SHOWN, Expected, read_condition, read_status

ANSWER = b'{"label": "cat", "scores": [{"name": "a.b", "p": 0.5}], "ok": true, "none": null}'


@pytest.mark.parametrize("condition", ["label", "$.label", "label=cat", 'label="cat"', "scores[0].p=0.5", "scores.0.p"])
@pytest.mark.parametrize("more", ["", "ca[tr]"])
def test_a_good_answer_has_what_is_expected(condition: str, more: str) -> None:
    assert Expected(json=(condition,), text=more).problem(200, ANSWER) == ""


@pytest.mark.parametrize("condition", ["ok=true", "none", "none=null", "$", 'scores[0]={"name": "a.b", "p": 0.5}'])
def test_values_are_compared_as_json(condition: str) -> None:
    assert Expected(json=(condition,)).problem(200, ANSWER) == ""


@pytest.mark.parametrize("condition", ["lable", "label=dog", "scores[1]", "label.x", "ok=1", "ok=True", "label[0]"])
def test_an_answer_without_it_is_not_good(condition: str) -> None:
    problem = Expected(json=(condition,)).problem(200, ANSWER)
    assert problem.startswith(f'expected JSON with {condition}, got 200: {{"label": "cat"')


def test_the_cause_names_the_status_and_the_beginning_of_the_answer() -> None:
    assert Expected().problem(500, b"out of\n\tmemory\x1b[31m") == (
        "expected status 200-299, got 500: out of memory\\x1b[31m"
    )
    assert Expected(("200", "404")).problem(404, b"") == ""
    assert Expected(("404",)).problem(200, b"") == "expected status 404, got 200: an empty body"
    assert Expected(text="^yes$").problem(200, b"no") == "expected text that matches '^yes$', got 200: no"
    assert Expected(json=("a",)).problem(200, b"<html>") == "expected JSON, got 200: <html>"
    assert len(Expected(("404",)).problem(200, b"x" * 1000)) == len("expected status 404, got 200: ") + SHOWN + 3


def test_a_secret_that_the_server_repeats_is_not_shown_even_where_the_answer_is_cut() -> None:
    body = b"x" * (SHOWN - 4) + b"sesame-0123 and more"
    assert "sesa" not in Expected(("404",), hidden=("sesame-0123",)).problem(200, body)


def test_repeated_answers_are_judged_by_their_content() -> None:
    expected = Expected(json=("label=cat",))
    for _ in range(3):
        assert expected.problem(200, ANSWER) == ""
        assert expected.problem(500, ANSWER) != ""
        assert expected.problem(200, b"{}") != ""
    for number in range(1000):  # more than are remembered
        assert expected.problem(200, b'{"label": "cat", "n": %d}' % number) == ""


@pytest.mark.parametrize("text", ["", "20", "2xx", "200-", "299-200", "600", "200,201"])
def test_what_is_not_a_status_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a status; write 200, or 200-299"):
        read_status(text)


@pytest.mark.parametrize("text", ["", "=1", "a..b", "a[", "a[x]", "a.", "[-1]"])
def test_what_is_not_a_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON path; write it as label"):
        read_condition(text)

"""Recorded arrivals: what can be read, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.load.arrivals import read_arrivals
from support.refused import refused


@pytest.mark.parametrize(
    "text",
    [
        "timestamp,kind\n100.0,1\n100.5,0\n102,1\n",
        "TIMESTAMP, kind\n2026-01-31 12:00:00,1\n2026-01-31 12:00:00.5000000,0\n2026-01-31 12:00:02,1\n",
        "gap,kind\n3,1\n0.5,0\n1.5,1\n",
        '{"timestamp": 7, "kind": 1}\n{"timestamp": 7.5, "kind": 0}\n{"timestamp": 9, "kind": 1}\n',
        "kind,time\n1,2\n1,0\n0,0.5\n",
        "arrival,kind\n-3,1\n\n-2.5,0\n  \n-1,1\n",
        '\n{"arrival": 7, "kind": "1"}\n\n{"arrival": 7.5, "kind": 0}\n{"arrival": 9, "kind": 1}\n',
        "gap,timestamp,kind\n9,4,1\n9,4.5,0\n9,6,1\n",
    ],
    ids=["seconds", "dates", "gaps", "json", "unordered", "negative", "empty lines", "both"],
)
def test_every_way_to_write_the_same_arrivals(tmp_path: Path, text: str) -> None:
    path = tmp_path / "arrivals"
    path.write_text(text)
    found = read_arrivals(path)
    assert found.intended.tolist() == pytest.approx([0.0, 0.5, 2.0])
    assert found.kind is not None
    assert found.kind.tolist() == [1, 0, 1]


def test_gaps_may_be_zero_and_kinds_as_large_as_an_integer_of_four_bytes(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("interval,kind\n0,2147483647\n0,0\n0.25,1\n")
    read = read_arrivals(path)
    assert read.intended.tolist() == [0.0, 0.0, 0.25]
    assert read.kind is not None
    assert read.kind.tolist() == [2147483647, 0, 1]


def test_a_column_of_numbers_needs_no_header(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("5\n6\n8\n")
    assert read_arrivals(path).intended.tolist() == [0, 1, 3]
    assert read_arrivals(path).kind is None
    path.write_text("5,a\n6,b\n8,c\n")  # of several columns without a header the first is the time
    assert read_arrivals(path).intended.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", "no-arrivals", "no arrivals"),
        ("when\n1\n", "missing-column", "columns when"),
        ("timestamp\n1\nsoon\n", "not-a-time", "arrival 2 .* 'soon'"),
        ("timestamp\n1\nnan\n", "not-finite", "arrival 2 "),
        ("gap\n1\n-2\n3\n", "negative-gap", "arrival 2 .* the gap -2"),
        ("timestamp,kind\n1,-1\n", "not-a-kind", "arrival 1 .* the kind '-1'"),
        ("timestamp,kind\n1,0\n2,x\n", "not-a-kind", "arrival 2 .* the kind 'x'"),
        ("timestamp,kind\n1,2147483648\n", "not-a-kind", "arrival 1 .* the kind '2147483648'"),
        ('{"timestamp": 1, "kind": 0}\n{"timestamp": 2}\n', "not-a-kind", "arrival 2 .* the kind None"),
        ('{"timestamp": 1}\n{"timestamp"\n', "invalid-json", "line 2"),
        ('{"timestamp": 1}\n[2]\n', "not-a-mapping", "line 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(tmp_path: Path, text: str, code: str, words: str) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(text)
    with refused(code, key="load.file", says=words):
        read_arrivals(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("unreadable-file", key="load.file"):
        read_arrivals(tmp_path / "none.csv")


MOONCAKE = """
{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 2353]}
{"timestamp": 27500, "input_length": 300, "output_length": 0, "hash_ids": []}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,Conversation log
"""


def test_mooncake_counts_milliseconds_and_says_which_prompts_begin_alike(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    read = read_arrivals(path)
    assert read.intended.tolist() == pytest.approx([0.0, 0.018, 3.053])
    assert read.prompt_tokens is not None and read.prompt_tokens.tolist() == [6955, 300, 6472]
    assert read.output_tokens is not None and read.output_tokens.tolist() == [52, 1, 26]
    assert read.blocks == ((46, 47, 48), (), (46, 2353))
    assert read.first(2).blocks == ((46, 47, 48), ())


@pytest.mark.parametrize(
    ("text", "times", "prompts", "outputs"),
    [(AZURE, [0.0, 4.314579], [374, 396], [44, 109]), (BURSTGPT, [0.0, 40.0], [472, 1087], [18, 230])],
    ids=["azure", "burstgpt"],
)
def test_other_traces_have_lengths_too(
    tmp_path: Path, text: str, times: list[float], prompts: list[int], outputs: list[int]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    read = read_arrivals(path)
    assert read.intended.tolist() == pytest.approx(times)
    assert read.prompt_tokens is not None and read.prompt_tokens.tolist() == prompts
    assert read.output_tokens is not None and read.output_tokens.tolist() == outputs
    assert read.blocks is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"timestamp": 0, "input_length": -1}', "not-a-length"),
        ('{"timestamp": 0, "input_length": "many"}', "not-a-length"),
        ('{"timestamp": 0, "input_length": 1, "output_length": null}', "not-a-length"),
        ('{"timestamp": 0, "input_length": 1, "hash_ids": 7}', "not-hashes"),
        ('{"timestamp": 0, "input_length": 1, "hash_ids": ["a"]}', "not-hashes"),
    ],
)
def test_lengths_that_are_none_are_refused(tmp_path: Path, line: str, code: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with refused(code, key="load.file"):
        read_arrivals(path)

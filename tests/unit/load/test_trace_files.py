"""Traces that are written are read again as what they were, with the statistics that were asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.load.arrivals import FORMS, Schedule, drawn_trace, prefix_share, read_arrivals, statistics
from paceline.load.distribution import Distribution


def made(share: float = 0.5, requests: int = 400, prompt: str = "lognormal(2000, 0.7)") -> Schedule:
    return drawn_trace(requests, 4.0, 0.5, Distribution.parse(prompt), Distribution.parse("uniform(1, 99)"), share, 3)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read_again_as_it_was_drawn(form: str, tmp_path: Path) -> None:
    trace, file = made(), tmp_path / "trace"
    file.write_text(FORMS[form](trace))
    again = read_arrivals(file)
    assert again.intended == pytest.approx(trace.intended - trace.intended[0], abs=2e-3)
    assert again.prompt_tokens is not None and again.output_tokens is not None
    assert np.array_equal(again.prompt_tokens, trace.prompt_tokens if trace.prompt_tokens is not None else [])
    assert np.array_equal(again.output_tokens, trace.output_tokens if trace.output_tokens is not None else [])
    assert again.blocks == (trace.blocks if form == "mooncake" else None)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_prompts_share_as_much_as_was_asked_for(share: float) -> None:
    trace = made(share)
    assert trace.blocks is not None and trace.prompt_tokens is not None
    assert prefix_share(trace.blocks, trace.prompt_tokens.tolist()) == pytest.approx(share, abs=0.01)
    assert [len(one) for one in trace.blocks] == [-(-length // 512) for length in trace.prompt_tokens.tolist()]
    assert f"{100 * share:.0f}" in statistics(trace).rpartition("average, ")[2]


def test_what_cannot_be_shared_is_not_said_to_be() -> None:
    assert statistics(made(0.5, prompt="100")).endswith(", 0.0 % of the prompts' tokens known")


def test_the_share_of_known_tokens_is_that_of_whole_prefixes() -> None:
    blocks, lengths = [[1, 2], [1, 2, 3], [9, 2], [1, 2]], [1024, 1100, 1024, 600]
    assert prefix_share(blocks, lengths) == pytest.approx((1024 + 600) / sum(lengths))
    assert prefix_share([], []) == 0.0


def test_traces_as_they_are_published_are_read(tmp_path: Path) -> None:
    azure, burst = tmp_path / "azure.csv", tmp_path / "burst.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"
    )
    first, second = read_arrivals(azure), read_arrivals(burst)
    assert first.intended.tolist() == pytest.approx([0.0, 4.314579], abs=1e-5)
    assert second.intended.tolist() == [0.0, 40.0]
    lengths = [(one.prompt_tokens, one.output_tokens) for one in (first, second)]
    assert [[[] if part is None else part.tolist() for part in pair] for pair in lengths] == [
        [[374, 396], [44, 109]],
        [[472, 1087], [18, 1]],
    ]

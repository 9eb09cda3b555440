"""Writes traces of language models in the forms that Mooncake, Azure and BurstGPT publish, with drawn statistics."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import count

import numpy as np

from paceline.load.arrivals import BLOCK, Schedule, gamma, prefix_share
from paceline.load.distribution import Distribution

_LOOKED_AT = 8  # earlier prompts, of which the longest is continued
_EPOCH = datetime(2026, 1, 1)


def drawn_trace(
    requests: int,
    rate: float,
    burstiness: float,
    prompt_tokens: Distribution,
    output_tokens: Distribution,
    share: float,
    seed: int,
) -> Schedule:
    """Arrivals with lengths, and prompts that share so much of their tokens with earlier ones."""
    random = np.random.default_rng(seed)
    prompts = prompt_tokens.draw(requests, random).astype(np.int32)
    return Schedule(
        gamma(rate, burstiness, random, count=requests),
        prompt_tokens=prompts,
        output_tokens=output_tokens.draw(requests, random).astype(np.int32),
        blocks=tuple(_shared_blocks(prompts.tolist(), share, random)),
    )


def _shared_blocks(lengths: Sequence[int], share: float, random: np.random.Generator) -> list[tuple[int, ...]]:
    """Of each prompt: it begins as an earlier one does, as far as the share of all so far asks for."""
    new, made = count(), list[tuple[int, ...]]()
    total, shared = 0, 0
    for length in lengths:
        total += length
        wanted = max(0, min(length // BLOCK, round((share * total - shared) / BLOCK)))
        earlier: tuple[int, ...] = ()
        if made and wanted:
            looked_at = random.integers(0, len(made), _LOOKED_AT).tolist()
            # The last block of a prompt may not be full, and is its own.
            earlier = max((made[one][: lengths[one] // BLOCK] for one in looked_at), key=len)[:wanted]
        made.append((*earlier, *(next(new) for _ in range(-(-length // BLOCK) - len(earlier)))))
        shared += BLOCK * len(earlier)
    return made


def statistics(trace: Schedule) -> str:
    """What a trace has, in words."""
    assert trace.prompt_tokens is not None and trace.output_tokens is not None and trace.blocks is not None
    share = prefix_share(trace.blocks, trace.prompt_tokens.tolist())
    return (
        f"{len(trace)} requests in {trace.intended[-1]:.1f} s, {trace.prompt_tokens.mean():.0f} prompt and "
        f"{trace.output_tokens.mean():.0f} output tokens on average, {100 * share:.1f} % of the prompts' tokens known"
    )


def _rows(trace: Schedule) -> list[tuple[float, int, int]]:
    assert trace.prompt_tokens is not None and trace.output_tokens is not None
    columns = trace.intended.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    return list(zip(*columns, strict=True))


def _mooncake(trace: Schedule) -> str:
    lines = []
    for (seconds, prompt, output), blocks in zip(_rows(trace), trace.blocks or (), strict=True):
        row = {"timestamp": round(1000 * seconds), "input_length": prompt, "output_length": output}
        lines.append(json.dumps(row | {"hash_ids": list(blocks)}))
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue()


def _azure(trace: Schedule) -> str:
    rows = [(_EPOCH + timedelta(seconds=seconds), prompt, output) for seconds, prompt, output in _rows(trace)]
    return _table(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), rows)


def _burstgpt(trace: Schedule) -> str:
    names = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
    rows = [
        (round(seconds, 3), "ChatGPT", prompt, output, prompt + output, "Conversation log")
        for seconds, prompt, output in _rows(trace)
    ]
    return _table(names, rows)


FORMS: dict[str, Callable[[Schedule], str]] = {"mooncake": _mooncake, "azure": _azure, "burstgpt": _burstgpt}

"""Records what Apache Otava answers about the stored set of series; run it in an environment of Otava's own.

python -m venv peers && peers/bin/pip install apache-otava==0.8.0
peers/bin/python -m bench.otava > tests/data/otava/answers.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version

from bench.trend_series import KINDS, LENGTHS, SEED, Score, series_of, stored_set

MORE_SEED, MORE_OF_EACH = 41593, 600  # series of each length whose answers are only counted: 50 of a class are few


def answers_of(values: Sequence[float]) -> list[int]:
    """Where Otava sees changes."""
    return [int(point.index) for point in import_module("otava.analysis").compute_change_points(values)[0]]


def main() -> None:
    """Print the answers with its settings as they are without any, series after series."""
    answers = [answers_of(known.values.tolist()) for _, known in stored_set()]
    more = {}
    for kind in KINDS:
        score = Score()
        for length in LENGTHS:
            for known in series_of(kind, length, MORE_OF_EACH, MORE_SEED):
                score = score.plus(known, answers_of(known.values.tolist()))
        more[kind.name] = asdict(score)
    about = {
        "program": f"apache-otava {version('apache-otava')}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seed": SEED,
    }
    sys.stdout.write(json.dumps(about | {"answers": answers, "more": more}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

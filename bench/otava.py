"""Records what Apache Otava answers about the stored set of series; run it in an environment of Otava's own.

python -m venv peers && peers/bin/pip install apache-otava==0.8.0
peers/bin/python -m bench.otava > tests/data/otava/answers.json
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version

from bench.trend_series import SEED, stored_set


def main() -> None:
    """Print the answers with its settings as they are without any, series after series."""
    compute = import_module("otava.analysis").compute_change_points
    answers = [
        [int(point.index) for point in compute([float(value) for value in known.values])[0]]
        for _, known in stored_set()
    ]
    about = {
        "program": f"apache-otava {version('apache-otava')}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seed": SEED,
    }
    sys.stdout.write(json.dumps(about | {"answers": answers}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

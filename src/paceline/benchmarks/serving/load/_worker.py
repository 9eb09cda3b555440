"""Starts a worker of the load generator: python -m paceline.benchmarks.serving.load._worker FOLDER."""

import sys
from pathlib import Path

from paceline.benchmarks.serving.load.worker import main

if __name__ == "__main__":
    main(Path(sys.argv[1]))

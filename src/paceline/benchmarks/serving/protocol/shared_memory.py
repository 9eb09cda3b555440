"""What client and server agree on about tensors in shared memory, beside the protocol's extension for it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("/dev/shm")
PREFIX = "paceline-"  # of the names that the server opens: it may read more of that folder than whoever asks it
PATH = "/v2/systemsharedmemory/"  # where regions are registered, told of and forgotten

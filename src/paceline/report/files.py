"""Writes a report's file whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomic(path: str | Path, content: str | bytes) -> Path:
    """Write beside the target and rename over it, so that a crash leaves the old file or the new one."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path

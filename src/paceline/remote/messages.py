"""Messages to and from another host: JSON in marked lines, so that whatever else is printed there is kept apart."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

_MARK = b"\x1epaceline "


def encode(message: Message) -> bytes:
    """One message as one line."""
    return _MARK + json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message | None:
    """The message in a line; None if it is something else, such as a greeting of the shell."""
    # A greeting without an end of line stands before the first message.
    _, mark, data = line.partition(_MARK)
    if not mark:
        return None
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):  # the last line of a process that was killed, or somebody else's
        return None
    return message if isinstance(message, dict) else None

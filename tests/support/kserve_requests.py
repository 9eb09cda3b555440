"""Requests of the open inference protocol with more in them than the load generator sends."""

from __future__ import annotations

import json
from typing import Any

from paceline.load.kserve import Message


def with_fields(message: Message, **fields: Any) -> Message:
    """The same message with more in its JSON: an id, or the outputs that it asks for."""
    head, *raw = message.parts
    text = json.dumps(json.loads(bytes(head)) | fields).encode()
    return Message((text, *raw), None if message.json_length is None else len(text))

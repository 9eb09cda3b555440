"""Texts to send: common words, and the user's own prompts and conversations, in the forms that people keep them in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import InputError

# Common short words, which most tokenizers take as one token each; lengths are therefore near, not exact.
_COMMON = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know also back come good "
    "year work life well even want give take call high last same name hand part home read city page mind head book game"
)
WORDS = np.array(_COMMON.split(" "))
_FORMS = 'write a JSON string, {"prompt": "..."}, {"messages": [...]} or an entry of ShareGPT with "conversations"'
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}

Message = dict[str, Any]


@dataclass(frozen=True)
class Chat:
    """What is asked: messages up to a user's, and the answer that was recorded, if there is one."""

    messages: tuple[Message, ...]
    answer: str = ""
    fresh: int = 0  # words that are chosen as it is sent; marks are in their places

    @property
    def text(self) -> str:
        """All of it as one text, for servers that take no messages."""
        return "\n".join(str(one["content"]) for one in self.messages)


def bad_dataset(code: str, path: Path | None, reason: str) -> InputError:
    """The refusal of a file of the user's own requests."""
    return InputError(code, f"dataset {path}: {reason}", key="requests.dataset", value=str(path))


def read_prompts(path: Path) -> list[str]:
    """The text of each prompt in a file."""
    return [chat.text for chat in read_chats(path)]


def read_chats(path: Path) -> list[Chat]:
    """The prompts of a file: JSON lines, or one JSON list as ShareGPT has it; of a conversation its first question."""
    chats = []
    for number, value in _entries(path):
        chat = _chat(value)
        if chat is None:
            where = f"dataset {path}, line {number}"
            raise InputError("not-a-prompt", _FORMS, where=where, key="requests.dataset", value=f"{value!r:.200}")
        chats.append(chat)
    if not chats:
        raise bad_dataset("no-prompts", path, "it has no prompts")
    return chats


def _entries(path: Path) -> list[tuple[int, Any]]:
    """Every entry with its line, or its place in a list; None for what is not JSON."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise bad_dataset("unreadable-file", path, f"cannot be read: {error}") from None
    if text.lstrip().startswith("["):
        whole = _parsed(text)
        if isinstance(whole, list):  # a conversation without a question, of which ShareGPT has some, cannot be sent
            kept = [(number, one) for number, one in enumerate(whole, start=1) if not _is_unasked(one)]
            return kept or list(enumerate(whole, start=1))
    return [(number, _parsed(line)) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_unasked(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("conversations"), list) and _chat(entry) is None


def _chat(entry: Any) -> Chat | None:
    """One entry as a chat; None for what has no question."""
    if isinstance(entry, Mapping) and isinstance(entry.get("messages"), list):
        return _of_messages(entry["messages"], "role", "content")
    if isinstance(entry, Mapping) and isinstance(entry.get("conversations"), list):
        return _of_messages(entry["conversations"], "from", "value")
    text = entry.get("prompt") if isinstance(entry, Mapping) else entry
    return Chat(({"role": "user", "content": text},)) if isinstance(text, str) and text else None


def _of_messages(entries: list[Any], role_key: str, text_key: str) -> Chat | None:
    """Up to the first question; what the model said to it is the recorded answer."""
    messages: list[Message] = []
    for entry in entries:
        role = _ROLES.get(str(entry.get(role_key))) if isinstance(entry, Mapping) else None
        text = entry.get(text_key) if isinstance(entry, Mapping) else None
        if role is None or not text or not isinstance(text, str | list):
            return None
        is_asked = bool(messages) and messages[-1]["role"] == "user"
        if role == "assistant" and is_asked and role_key == "from":
            return Chat(tuple(messages), str(text))
        messages.append({"role": role, "content": text})
    if messages and messages[-1]["role"] == "assistant":  # as files for training have it
        return Chat(tuple(messages[:-1]), str(messages[-1]["content"])) if len(messages) > 1 else None
    return Chat(tuple(messages)) if messages and messages[-1]["role"] == "user" else None

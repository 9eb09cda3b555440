"""Texts to send: common words, and the user's own prompts and conversations, in the forms that people keep them in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import InputError
from paceline.load.request import ALONE, Turn

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
    turn: Turn = ALONE  # answers that it quotes are marks in the messages, by `answer_to`

    @property
    def text(self) -> str:
        """All of it as one text, for servers that take no messages."""
        return "\n".join(text_of(one["content"]) for one in self.messages)


@dataclass(frozen=True)
class Script:
    """What a user says in a conversation, turn after turn, and what was answered when it was recorded."""

    opening: tuple[Message, ...]
    questions: tuple[Any, ...]  # texts, or lists of parts
    answers: tuple[str, ...] = ()

    def chats(
        self, first: int, waits: Sequence[float], tasks: Sequence[Sequence[str]] = (), fresh: int = 0
    ) -> list[Chat]:
        """Its requests, of which the first has this number; after each turn but the last there may be parallel tasks.

        A turn has all before it; where there were tasks, their answers as well.
        """
        made: list[Chat] = []
        said, before, depth = list(self.opening), tuple[int, ...](), 1
        for index, question in enumerate(self.questions):
            quoted = "\n".join(map(answer_to, before)) if index and tasks else ""
            said.append({"role": "user", "content": _joined(quoted, question)})
            wait = waits[index - 1] if index else 0.0
            answer = self.answers[index] if index < len(self.answers) else ""
            made.append(Chat(tuple(said), answer, fresh, Turn(before, wait, depth=depth)))
            own = first + len(made) - 1
            said.append({"role": "assistant", "content": answer_to(own)})
            before, depth = (own,), depth + 1
            if tasks and index + 1 < len(self.questions):
                for task in tasks[index]:
                    asked = (*said, {"role": "user", "content": task})
                    made.append(Chat(asked, "", fresh, Turn((own,), 0.0, depth=depth)))
                before, depth = tuple(range(own + 1, first + len(made))), depth + 1
        return made


def _joined(text: str, content: Any) -> Any:
    if not text:
        return content
    return [{"type": "text", "text": text}, *content] if isinstance(content, list) else f"{text}\n{content}"


def answer_to(kind: int) -> str:
    """The place of an answer in a text."""
    return f"\1{kind}\1"


def text_of(content: Any) -> str:
    """The text of a message, which may have parts."""
    if not isinstance(content, list):
        return str(content)
    return "\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)


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


def read_scripts(path: Path) -> list[Script]:
    """The conversations of a file, in the same forms; a prompt is one of one turn."""
    read_chats(path)  # refuses what is not one
    scripts = []
    for _, value in _entries(path):
        entries, keys = _messages(value)
        opening, questions, answers = list[Message](), list[Any](), list[str]()
        for entry in entries:
            message = _message(entry, *keys)
            if message is None:  # what is before it can be sent
                break
            role, content = message["role"], message["content"]
            if role == "assistant" and len(answers) < len(questions):
                answers.append(text_of(content))
            elif role == "user" and len(answers) == len(questions):
                questions.append(content)
            elif role == "user":  # two in a row are one
                questions[-1] = f"{text_of(questions[-1])}\n{text_of(content)}"
            elif not questions:
                opening.append(message)
        scripts.append(Script(tuple(opening), tuple(questions), tuple(answers)))
    return [script for script in scripts if script.questions]


def _messages(entry: Any) -> tuple[list[Any], tuple[str, str]]:
    """The messages of an entry, and under which keys they have their role and text."""
    if isinstance(entry, Mapping) and isinstance(entry.get("messages"), list):
        return entry["messages"], ("role", "content")
    if isinstance(entry, Mapping) and isinstance(entry.get("conversations"), list):
        return entry["conversations"], ("from", "value")
    text = entry.get("prompt") if isinstance(entry, Mapping) else entry
    return [{"role": "user", "content": text}] if isinstance(text, str) and text else [], ("role", "content")


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
    entries, keys = _messages(entry)
    return _of_messages(entries, *keys)


def _message(entry: Any, role_key: str, text_key: str) -> Message | None:
    """As servers take it; None for what is not a message."""
    role = _ROLES.get(str(entry.get(role_key))) if isinstance(entry, Mapping) else None
    text = entry.get(text_key) if isinstance(entry, Mapping) else None
    return {"role": role, "content": text} if role is not None and text and isinstance(text, str | list) else None


def _of_messages(entries: list[Any], role_key: str, text_key: str) -> Chat | None:
    """Up to the first question; what the model said to it is the recorded answer."""
    messages: list[Message] = []
    for entry in entries:
        message = _message(entry, role_key, text_key)
        if message is None:
            return None
        is_asked = bool(messages) and messages[-1]["role"] == "user"
        if message["role"] == "assistant" and is_asked and role_key == "from":
            return Chat(tuple(messages), str(message["content"]))
        messages.append(message)
    if messages and messages[-1]["role"] == "assistant":  # as files for training have it
        return Chat(tuple(messages[:-1]), str(messages[-1]["content"])) if len(messages) > 1 else None
    return Chat(tuple(messages)) if messages and messages[-1]["role"] == "user" else None

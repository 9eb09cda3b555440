"""Counts tokens with a tokenizer of the user's, where a server does not count them itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.core.errors import InputError, MissingDependency


class TokenCounter:
    """The number of tokens in a text."""

    def __init__(self, name: str, count: Callable[[str], int]) -> None:
        self.name = name
        self._count = count

    def __call__(self, text: str) -> int:
        return self._count(text)

    @classmethod
    def of(cls, path: Path | None) -> TokenCounter | None:
        """The tokenizer of a file or a folder; None without one."""
        if path is None:
            return None
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingDependency("tokenizers", "install it with: pip install tokenizers") from None
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more special
            message = f"tokenizer = {path}: it is not a tokenizer.json or a folder with one: {error}"
            raise InputError("not-a-tokenizer", message, key="requests.tokenizer", value=str(path)) from None
        return cls(path.name, lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))

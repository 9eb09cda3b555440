"""Regular expressions of rules, matched by an automaton: its time grows with a name's length, whatever the pattern.

Python's own matcher tries alternatives one after the other, and a pattern such as `(a+)+$` makes it try exponentially
many. Here all alternatives are followed at once. What such an automaton cannot do is refused: back-references, looking
ahead or behind, possessive and atomic groups, inline flags and word boundaries. As with `re.search`, a pattern may
match anywhere in a name unless it begins with `^` or ends with `$`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.core.errors import InputError

LONGEST = 500
MOST_STATES = 1000
MOST_REPEATS = 200
MOST_NESTED = 30
_MOST_REMEMBERED = 20_000  # steps of one automaton

Test = Callable[[str], bool]
START, END = "start", "end"

_CLASSES: dict[str, Test] = {
    "d": str.isdecimal,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
}
_COUNTED = re.compile(r"\{(?!\})(?P<low>[0-9]*)(,(?P<high>[0-9]*))?\}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


@dataclass(frozen=True)
class _State:
    """What a state waits for: a character that passes a test, or an anchor (start, end); and where it leads."""

    test: Test | None
    anchor: str  # START, END, or "" for no condition
    targets: tuple[int, ...]


@dataclass
class Pattern:
    """A pattern that was read; `search` says whether it matches somewhere in a name."""

    source: str
    _states: list[_State] = field(repr=False)
    _first: int = field(repr=False)
    _accept: int = field(repr=False)
    _steps: dict[tuple[frozenset[int], str, bool], frozenset[int]] = field(default_factory=dict, repr=False)

    def search(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text, as `re.search` does."""
        current = self._closure({self._first}, at_start=True, at_end=not text)
        if self._accept in current:
            return True
        for number, char in enumerate(text, start=1):
            is_last = number == len(text)
            step = (current, char, is_last)
            if step not in self._steps:
                if len(self._steps) >= _MOST_REMEMBERED:
                    self._steps.clear()
                reached = self._moved(current, char) | {self._first}
                self._steps[step] = self._closure(reached, at_start=False, at_end=is_last)
            current = self._steps[step]
            if self._accept in current:
                return True
        # '$' also matches before a line end that ends the text.
        is_one_line_end = text.endswith("\n") and not text.endswith("\n\n")
        return is_one_line_end and any(state.anchor == END for state in self._states) and self.search(text[:-1])

    def _moved(self, current: frozenset[int], char: str) -> set[int]:
        reached: set[int] = set()
        for number in current:
            state = self._states[number]
            if state.test is not None and state.test(char):
                reached.update(state.targets)
        return reached

    def _closure(self, numbers: set[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        reached = set(numbers)
        todo = list(numbers)
        while todo:
            state = self._states[todo.pop()]
            blocked = (state.anchor == START and not at_start) or (state.anchor == END and not at_end)
            if state.test is not None or blocked:
                continue
            new = set(state.targets) - reached
            reached |= new
            todo += new
        return frozenset(reached)


def read_pattern(source: object) -> Pattern:
    """A pattern out of a file of rules."""
    if not isinstance(source, str) or not source:
        message = f"{source!r} is not a pattern of metrics; write text like 'mem-bw/.*_bw'"
        raise InputError("not-a-pattern", message, key="metrics", value=source)
    if len(source) > LONGEST:
        message = f"a pattern has at most {LONGEST} characters, but this has {len(source):,}"
        raise InputError("too-many-characters", message, key="metrics")
    return _Compiler(source).compile()


# A part of the syntax: a function that adds its states before `after` and returns the first of them.
_Part = Callable[[int], int]


class _Compiler:
    """Reads a pattern from left to right and builds its automaton from right to left."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.nested = 0
        self.copies = 0
        self.states: list[_State] = []

    def compile(self) -> Pattern:
        part = self.alternatives()
        if self.at < len(self.source):
            raise self.refused("unbalanced-parentheses", "has a ')' too many")
        accept = self.add(None, "", ())
        return Pattern(self.source, self.states, part(accept), accept)

    def refused(self, code: str, why: str) -> InputError:
        return InputError(code, f"the pattern '{self.source[:80]}' {why}", key="metrics", value=self.source)

    def add(self, test: Test | None, anchor: str, targets: tuple[int, ...]) -> int:
        if len(self.states) >= MOST_STATES:
            raise self.refused("too-large", "is too large: shorten its repetitions")
        self.states.append(_State(test, anchor, targets))
        return len(self.states) - 1

    def peek(self) -> str:
        return self.source[self.at] if self.at < len(self.source) else ""

    def take(self) -> str:
        if self.at >= len(self.source):
            raise self.refused("unfinished-pattern", "ends too soon")
        self.at += 1
        return self.source[self.at - 1]

    def alternatives(self) -> _Part:
        branches = [self.sequence()]
        while self.peek() == "|":
            self.take()
            branches.append(self.sequence())
        if len(branches) == 1:
            return branches[0]
        return lambda after: self.add(None, "", tuple(branch(after) for branch in branches))

    def sequence(self) -> _Part:
        parts: list[_Part] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeated())

        def chain(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return chain

    def repeated(self) -> _Part:
        part, can_repeat = self.atom()
        low, high = self.quantifier()
        if (low, high) == (1, 1):
            return part
        if not can_repeat:
            raise self.refused("not-repeatable", "repeats what cannot be repeated")
        if self.peek() == "?":  # a lazy one: whether there is a match does not depend on it
            self.take()
        if self.peek() in ("*", "+", "?") or self.counted(self.at):
            raise self.refused("two-quantifiers", "has two quantifiers in a row, or a possessive one")
        return lambda after: self.repeat(part, low, high, after)

    def repeat(self, part: _Part, low: int, high: int | None, after: int) -> int:
        if high is None:
            # A loop: its state is made first, so that the part can lead back to it.
            loop = self.add(None, "", ())
            inner = part(loop)
            self.states[loop] = _State(None, "", (inner, after))
            first = loop
        else:
            first = after
            for _ in range(high - low):
                first = self.add(None, "", (part(first), after))
        for _ in range(low):
            first = part(first)
        self.copies += high or low
        if self.copies > MOST_STATES:  # of parts without a state, which nothing else counts
            raise self.refused("too-large", "is too large: shorten its repetitions")
        return first

    def quantifier(self) -> tuple[int, int | None]:
        char = self.peek()
        if char in ("*", "+", "?"):
            self.take()
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        counted = self.counted(self.at)
        if counted is None:
            return 1, 1
        low, high, self.at = counted
        return low, high

    def counted(self, start: int) -> tuple[int, int | None, int] | None:
        """`{3}`, `{2,}`, `{,4}` or `{2,4}` from `start` on, and where it ends; any other brace is a plain sign."""
        match = _COUNTED.match(self.source, start)
        if match is None:
            return None
        low, high = match["low"], match["low"] if match["high"] is None else match["high"]
        if max(len(low), len(high)) > 4 or max(int(low or 0), int(high or 0)) > MOST_REPEATS:
            raise self.refused("too-many-repeats", f"repeats more than {MOST_REPEATS} times")
        if high and int(low or 0) > int(high):
            raise self.refused("invalid-range", "repeats at least more than at most")
        return int(low or 0), int(high) if high else None, match.end()

    def atom(self) -> tuple[_Part, bool]:
        char = self.take()
        if char == "(":
            return self.group(), True
        if char == "[":
            return self.state(self.char_class()), True
        if char == ".":
            return self.state(lambda other: other != "\n"), True
        if char in "^$":
            return self.state(None, START if char == "^" else END), False
        if char in "*+?" or self.counted(self.at - 1):
            raise self.refused("nothing-to-repeat", f"begins a part with '{char}': there is nothing to repeat")
        if char == "\\" and self.peek() == "A":
            self.take()
            return self.state(None, START), False
        return self.state(_test(self.escaped() if char == "\\" else char)), True

    def state(self, test: Test | None, anchor: str = "") -> _Part:
        return lambda after: self.add(test, anchor, (after,))

    def group(self) -> _Part:
        if self.peek() == "?":
            self.take()
            if self.take() != ":":
                raise self.refused("unsupported-group", "has a '(?': of these only '(?:...)' is allowed")
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise self.refused("too-deep", f"nests more than {MOST_NESTED} groups")
        inner = self.alternatives()
        if self.peek() != ")":
            raise self.refused("unbalanced-parentheses", "lacks a ')'")
        self.take()
        self.nested -= 1
        return inner

    def escaped(self) -> str | Test:
        """What the character after a backslash stands for: itself, a control character, or a class of characters."""
        char = self.take()
        if char.lower() in _CLASSES:
            test = _CLASSES[char.lower()]
            return test if char.islower() else (lambda other: not test(other))
        if char.isalnum() and char not in _ESCAPES:
            raise self.refused("unsupported-escape", f"has '\\{char}', which is not allowed here")
        return _ESCAPES.get(char, char)

    def char_class(self) -> Test:
        negated = self.peek() == "^"
        if negated:
            self.take()
        tests: list[Test] = []
        while True:
            char = self.take()
            if char == "]" and tests:
                break
            if char == "[" and self.peek() == ":":
                raise self.refused("unsupported-class", "has a class like '[:alpha:]', which is not allowed here")
            low = self.escaped() if char == "\\" else char
            if isinstance(low, str) and self.peek() == "-" and self.source[self.at + 1 : self.at + 2] not in ("]", ""):
                self.take()
                high = self.take()
                high_char = self.escaped() if high == "\\" else high
                if not isinstance(high_char, str) or high_char < low:
                    raise self.refused("invalid-range", f"has the bad range '{low}-{high}'")
                tests.append(_between(low, high_char))
            else:
                tests.append(_test(low))
        return lambda other: any(test(other) for test in tests) != negated


def _test(item: str | Test) -> Test:
    return (lambda other: other == item) if isinstance(item, str) else item


def _between(low: str, high: str) -> Test:
    return lambda other: low <= other <= high

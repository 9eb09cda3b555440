"""Regular expressions of rules, matched by RE2: its time grows with a name's length, whatever the pattern.

Python's own matcher tries alternatives one after the other, and a pattern such as `(a+)+$` makes it try exponentially
many. What RE2 cannot do is refused: back-references, looking ahead or behind, possessive and atomic groups. So is what
the two would read differently. As with `re.search`, a pattern may match anywhere in a name.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import InputError

LONGEST = 500
MOST_MEMORY = 2**20  # bytes of an automaton
_READ_DIFFERENTLY = re.compile(r"\[[^]]*\[:|\{,\d*\}")  # [[:alpha:]] and {,4} mean something in one of them alone


@dataclass(frozen=True)
class Pattern:
    """A pattern that was read."""

    source: str
    _compiled: Any

    def search(self, text: str) -> bool:
        """Whether it matches anywhere in the text."""
        return self._compiled.search(text) is not None


def read_pattern(source: object) -> Pattern:
    """A pattern out of a file of rules."""
    import re2

    if not isinstance(source, str) or not source:
        message = f"{source!r} is not a pattern of metrics; write text like 'mem-bw/.*_bw'"
        raise InputError("not-a-pattern", message, key="metrics", value=source)
    if len(source) > LONGEST:
        message = f"a pattern has at most {LONGEST} characters, but this has {len(source):,}"
        raise InputError("too-many-characters", message, key="metrics")
    if found := _READ_DIFFERENTLY.search(source):
        message = (
            f"the pattern '{source[:80]}' has '{found[0]}', which is read in several ways; write it as [a-z] or {{0,4}}"
        )
        raise InputError("ambiguous-pattern", message, key="metrics", value=source)
    options = re2.Options()
    options.log_errors, options.max_mem = False, MOST_MEMORY
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else some day
            re.compile(source)
        return Pattern(source, re2.compile(source, options))
    except (re.error, re2.error, RecursionError, OverflowError) as error:
        why = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else error
        message = f"the pattern '{source[:80]}' cannot be used: {why}"
        raise InputError("invalid-pattern", message, key="metrics", value=source) from None

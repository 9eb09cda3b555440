"""How the page of a machine writes warnings: a letter for each kind, and the legend of those that occur."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.record import Record

MARKS = {
    "imprecise": ("I", ""),
    "noisy": ("N", ""),
    "drifting": ("D", ""),
    "unsteady": ("U", ""),
    "short": ("S", ""),
    "host-bound": ("H", "the host issued work more slowly than the device did it"),
    "power-capped": ("P", "the GPU ran at its power limit"),
    "throttled": ("T", ""),
    "contended": ("C", ""),
    "swapping": ("W", ""),
    "partly-compiled": ("Q", ""),
    "miscompiled": ("#", "compiled, it does not compute what was written"),
    "recompiled": ("R", ""),
    "skipped-steps": ("K", ""),
    "emulated": ("E", "computed without instructions for this format"),
    "beyond-peak": ("X", ""),
    "diverged": ("V", ""),
    "buffered": ("B", "the page cache took part"),
    "unreliable": ("L", "some attempts to connect failed"),
    "cached": ("A", "the data may have stayed in caches"),
    "pages": ("G", "fewer huge pages than were asked for"),
    "late": ("J", "the load generator sent late"),
    "near-ceiling": ("M", "near the most that the load generator sends"),
    "output-length": ("l", "answers not as long as was asked for"),
    "prompt-length": ("p", "prompts not as long as was asked for"),
    "repeated-prompts": ("r", "prompts were sent several times"),
    "tokens-not-counted": ("t", "nobody counted the tokens"),
    "saturated": ("O", "the load generator may be the slower part"),
    "sockets": ("F", "no free socket"),
    "refused": ("Y", "connections were refused"),
    "unsent": ("Z", "requests were never sent"),
    "errors": ("!", "requests failed"),
    "client-limited": ("+", "the server can do more than was sent"),
    "unconfirmed": ("~", "a last load at the rate that was found missed the promise"),
    "shared-core": ("=", "server and load generator on one core"),
    "escaped": ("^", "processes of the case outlived it, and were ended"),
    "slow": ("<", "a node, adapter or link is slower than the others"),
    "stray-writes": (">", "the case wrote into the connection to the runner"),
    "limit-not-restored": ("@", "the earlier power limit or clock could not be put back"),
}
UNKNOWN = "?"


def marks(record: Record) -> str:
    """The letters of a record's warnings."""
    return "".join(dict.fromkeys(MARKS.get(warning.kind, (UNKNOWN, ""))[0] for warning in record.warnings))


def legend(records: Iterable[Record]) -> str:
    """The letters that these records carry, each with its meaning."""
    there = {warning.kind for record in records for warning in record.warnings}
    told = [
        f"**{letter}** {kind}" + (f" ({meaning})" if meaning else "")
        for kind, (letter, meaning) in MARKS.items()
        if kind in there
    ]
    told += [f"**{UNKNOWN}** {kind}" for kind in sorted(there - MARKS.keys())]
    return f"Letters mark warnings: {', '.join(told)}." if told else "No figure here carries a warning."

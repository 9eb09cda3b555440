"""What a job from the network may say to a parameter: the parameter itself says so, on its field.

A parameter whose type leaves no choice but numbers and listed words is harmless. Every other one (a text, a path,
anything) is refused unless it keeps its default, or its field says what it takes:

    queue: Annotated[str, FromNetwork.matching("[a-z]{1,20}")] = ""

So a parameter that somebody adds tomorrow is refused until somebody has thought about it."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_ANY_PORT = 9  # nothing is sent there
_CLOSED = (bool, int, float, NoneType, Enum, BaseModel)


@dataclass(frozen=True)
class FromNetwork:
    """What a field takes from the network, if anything."""

    check: Callable[[str], str] | None = None  # why a value is refused; empty for one that is taken
    never: str = ""  # why no value is taken, where the type alone does not say it
    is_one_value: bool = False  # on the command line, commas and all

    @classmethod
    def matching(cls, pattern: str) -> Self:
        """Texts that match a pattern as a whole."""
        compiled = re.compile(pattern)
        return cls(lambda text: "" if compiled.fullmatch(text) else f"= {shorten(text)} has invalid characters")

    def refusal(self, value: object) -> str:
        """Why a value, or one of several, is refused; empty where it is taken."""
        if self.check is None:
            return self.never
        several = value if isinstance(value, list | tuple | set | frozenset) else [value]
        return next((reason for one in several if (reason := self.check(str(one)))), "")


OTHER_HOSTS = FromNetwork(never="names hosts, and a job may not choose whom a machine talks to")
PROGRAM = FromNetwork(never="names a program to run")
COMMAND_LINE = FromNetwork(never="is a command to run", is_one_value=True)
MACHINE_FILES = FromNetwork(never="names files of the machine")


def rule_of(field: FieldInfo) -> FromNetwork | None:
    """What a field says of itself, if it says anything."""
    return next((one for one in field.metadata if isinstance(one, FromNetwork)), None)


def is_closed(annotation: Any) -> bool:
    """Whether a type leaves only numbers, listed words, and parts that are looked at one by one."""
    origin = get_origin(annotation)
    if origin is Literal:
        return True
    if origin is Annotated:
        return is_closed(get_args(annotation)[0])
    if origin in (Union, UnionType, list, tuple, set, frozenset):
        return all(is_closed(part) for part in get_args(annotation) if part is not Ellipsis)
    if getattr(annotation, "is_closed", False):  # a type that says so of itself
        return True
    return isinstance(annotation, type) and issubclass(annotation, _CLOSED)


def shorten(value: object) -> str:
    """A value for a message, in ASCII and not endless."""
    text = ascii(str(value))
    return text if len(text) <= 60 else f"{text[:60]}...'"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing uses now, for programs that cannot choose one themselves; all addresses with `host=""`."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def own_address(towards: str) -> str:
    """The address that this host shows to another one; raises OSError if no route leads there."""
    family, kind, _, _, address = socket.getaddrinfo(towards, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # asks the kernel for its route, and sends nothing
        return str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    """Whether an address never leaves its host."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def shown_address(meeting: str, gather: Callable[[str], Sequence[str]]) -> str:
    """The address that this host shows to the others, of which each can reach the host `meeting`."""
    address = own_address(meeting)
    addresses = gather(address)
    if is_loopback(address):  # on that host itself, whose name leads to itself
        outside = next((one for one in addresses if not is_loopback(one)), None)
        address = own_address(outside) if outside else address
    return address

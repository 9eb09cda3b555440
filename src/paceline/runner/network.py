"""Which network interface leads to another host, and how gloo and NCCL are made to use it.

Left alone, gloo advertises the address that the host's own name resolves to, which is often the loopback.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil


def interface_of(address: str) -> str | None:
    """The name of the interface that has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address.partition("%")[0] for one in addresses):
            return name
    return None


def bound_to(address: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that make collectives use the interface with this address; what the user has set stands."""
    interface = interface_of(address)
    if interface is None:
        return {}
    # NCCL takes a name for the beginning of one, unless `=` asks for exactly this one.
    variables = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: value for name, value in variables.items() if name not in environment}

"""Free loopback ports."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress

LOOPBACK = "127.0.0.1"

_CLAIMS: dict[int, socket.socket] = {}
"""Port -> what keeps it from other runs on this machine; the kernel lets go of it when this process ends, however."""


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports that nothing on the loopback interface listens on at this moment, and that no other run will
    take: servers bind theirs up to a minute later.
    """
    ports: list[int] = []
    tried: list[socket.socket] = []
    try:
        while len(ports) < count:
            tried.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            tried[-1].bind((LOOPBACK, 0))
            port = int(tried[-1].getsockname()[1])
            if _claim(port):
                ports.append(port)
        return ports
    finally:
        for each in tried:
            each.close()


def give_back(ports: Iterable[int]) -> None:
    """Lets other runs have ports of a launch that is over."""
    for port in ports:
        if claim := _CLAIMS.pop(port, None):
            claim.close()


def _claim(port: int) -> bool:
    """Takes a name beside the port; names without a file are, as ports are, those of a network namespace."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with suppress(OSError):
        claim.bind(f"\0cache-equivalence-harness/port/{port}")
        _CLAIMS[port] = claim
        return True
    claim.close()
    return False

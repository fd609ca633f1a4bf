"""Small facts about the network of this machine."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


def free_port(host: str = "") -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def held_port(host: str, preferred: int) -> Iterator[int]:
    """A free TCP port, `preferred` if it is, that nobody else finds free inside the block.

    Only a server that sets SO_REUSEPORT, as Ray Serve's proxy does, can listen on it meanwhile. Without
    holding it, two runs that start together would take the same port and answer for one another.
    """
    with socket.socket() as holder:
        try:
            holder.bind((host, preferred))
        except OSError:
            holder.bind((host, 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield int(holder.getsockname()[1])

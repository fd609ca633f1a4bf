"""Small facts about the network of this machine."""

from __future__ import annotations

import socket


def free_port(host: str = "", *, preferred: int = 0) -> int:
    """A TCP port that was free a moment ago: `preferred` if it is, else any."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free TCP port on {host!r}")

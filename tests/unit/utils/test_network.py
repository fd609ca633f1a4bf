"""Ports that two runs must not share."""

import socket

from relax_engine.utils.network import free_port, held_port


def shared_listener(port: int) -> socket.socket:
    """Listens as Ray Serve's proxy does."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def test_a_held_port_is_given_to_one() -> None:
    preferred = free_port("127.0.0.1")
    with held_port("127.0.0.1", preferred) as first, held_port("127.0.0.1", preferred) as second:
        assert first == preferred != second
        with shared_listener(first):
            assert socket.create_connection(("127.0.0.1", first)).close() is None


def test_a_port_in_use_is_not_given_although_its_server_would_share_it() -> None:
    with shared_listener(0) as server:
        taken = server.getsockname()[1]
        with held_port("127.0.0.1", taken) as port:
            assert port != taken

"""Streams and helper processes for the stream's tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import stream_batches
import stream_processes

_names = (f"stream-test-{number}" for number in itertools.count())


@pytest.fixture
def new_stream(ray_cluster: None) -> Iterator[Callable[..., Any]]:
    """`new_stream(**options)` starts a stream that ends with the test."""
    import ray

    from relax_engine.stream.launch import start_stream

    clients = []

    def start(**options: Any) -> Any:
        client = start_stream(
            **{"name": next(_names), "num_data_storage_units": 1, "byte_budget": 400 << 20, **options}
        )
        clients.append(client)
        return client

    yield start
    for client in clients:
        for actor in (client._controller, *client._units):
            ray.kill(actor)


@pytest.fixture
def new_peer(ray_cluster: None, request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    """`new_peer(client)` starts another process that holds the client."""
    import ray

    for module in (request.module, stream_batches, stream_processes):
        ray.cloudpickle.register_pickle_by_value(module)  # workers do not have the tests on their path
    peers = []

    def start(client: Any) -> Any:
        peers.append(ray.remote(num_cpus=0, max_concurrency=2)(stream_processes.Peer).remote(client))
        ray.get(peers[-1].pid.remote(), timeout=60)
        return peers[-1]

    yield start
    for peer in peers:
        ray.kill(peer)

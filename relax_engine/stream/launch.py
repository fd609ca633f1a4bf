"""Starting a stream, and finding one that runs."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import ray

from relax_engine.stream.client import StreamClient
from relax_engine.stream.controller import StreamController
from relax_engine.stream.storage import StorageUnit

_START_S = 120.0
_MAX_WAITERS = 10_000


def start_stream(
    *,
    name: str | None = "stream",
    num_data_storage_units: int = 1,
    row_budget: int = 1 << 20,
    byte_budget: int | None = None,
    max_staleness: int | None = None,
    groups_per_step: int | None = None,
    over_sampling: int | None = None,
    directory: Path | None = None,
) -> StreamClient:
    """Start the controller and its storage units in the connected Ray cluster.

    `byte_budget` defaults to half the object store of the cluster. With `max_staleness` and
    `groups_per_step` the stream hosts the admission gate (`AdmissionGate`). Storage units are restarted by Ray when
    they die. With a `directory` on storage that all nodes see, the stream keeps itself there: its
    controller is restarted, too, and no block is lost. Without one the controller's death is an
    error for every caller.

    Raises:
        ValueError: `num_data_storage_units` below 1, or a gate with one of its numbers missing.
    """
    if num_data_storage_units < 1:
        raise ValueError(f"num_data_storage_units must be at least 1, got {num_data_storage_units}")
    if (max_staleness is None) != (groups_per_step is None):
        raise ValueError(f"give both or neither: max_staleness={max_staleness}, groups_per_step={groups_per_step}")
    if byte_budget is None:
        byte_budget = int(ray.cluster_resources()["object_store_memory"]) // 2
    gate = None
    if max_staleness is not None and groups_per_step is not None:
        gate = {"max_staleness": max_staleness, "groups_per_step": groups_per_step, "over_sampling": over_sampling}
    unit_class = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy="SPREAD")(StorageUnit)
    spool = None if directory is None else directory / "blocks"
    # By name, because a controller that is started again gets the arguments of the first one, and handles among them
    # would have to be in the object store still.
    names = [f"{name or 'stream'}-{uuid.uuid4().hex[:12]}-unit-{number}" for number in range(num_data_storage_units)]
    units: list[Any] = [unit_class.options(name=unit).remote(spool) for unit in names]
    controller_class = ray.remote(num_cpus=0, max_restarts=0 if directory is None else -1)(StreamController)
    controller: Any = controller_class.options(name=name, max_concurrency=_MAX_WAITERS).remote(
        names, row_budget=row_budget, byte_budget=byte_budget, gate=gate, journal=directory
    )
    ray.get(controller.start.remote(), timeout=_START_S)
    return StreamClient(controller, units)


def connect_stream(name: str = "stream", *, namespace: str | None = None, deadline_s: float = 30.0) -> StreamClient:
    """A client of the stream that was started under `name`.

    Raises:
        ValueError: no such stream.
    """
    controller = ray.get_actor(name, namespace=namespace)
    return StreamClient(controller, ray.get(controller.units.remote(), timeout=deadline_s))

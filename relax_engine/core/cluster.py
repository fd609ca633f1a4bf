"""The Ray cluster of a run: attach to one that exists, or start a local one and end it again."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import ray

from relax_engine.errors import RelaxError

logger = logging.getLogger(__name__)

_START_ATTEMPTS = 3
_CONNECT_S = 10.0


class ClusterError(RelaxError):
    """The Ray cluster cannot be reached, started, or is too small."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a run may use. `owned` is False when somebody else started the cluster."""

    cpus: float
    gpus: float
    owned: bool
    address: str

    @property
    def accelerated(self) -> bool:
        """Whether a device is a GPU rather than a CPU core."""
        return self.gpus > 0


def local_environment() -> dict[str, str]:
    """Environment for the processes of a local cluster.

    Workers run at normal priority (Ray's default is nice 15), keep CUDA visibility as it is, and
    use one compute thread: ranks and engines are the unit of parallelism.
    """
    return {
        "RAY_worker_niceness": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Bookkeeping that nothing reads here, and that costs as much as a small model's training step.
        "RAY_enable_metrics_collection": "false",
        "RAY_task_events_report_interval_ms": "0",
        # Freed objects are memory again at once, not after a second: copying into new memory costs more.
        "RAY_free_objects_period_milliseconds": "20",
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
    }


@contextlib.contextmanager
def ray_cluster(address: str | None) -> Iterator[Cluster]:
    """A connected Ray cluster.

    In order: the one this process is connected to, `address`, `$RAY_ADDRESS` (set by `ray job
    submit`), or a new local one, which is shut down at the end.

    Raises:
        ClusterError: it could not be reached or started.
    """
    if ray.is_initialized():
        yield _describe(owned=False)
        return
    os.environ.update(local_environment())
    target = address or os.environ.get("RAY_ADDRESS")
    if target:
        _require_listener(target)
        try:
            ray.init(address=target, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ClusterError(f"no Ray cluster at --ray-address {target!r}: {error}") from error
        try:
            yield _describe(owned=False)
        finally:
            ray.shutdown()
        return
    _start_local()
    try:
        yield _describe(owned=True)
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster at --ray-address {address!r}: {error}. Start one with `ray start --head`, "
            "or leave the flag out for a local one"
        ) from error


def _start_local() -> None:
    """Start a local cluster; a loaded machine can miss Ray's fixed start-up limits, so try again."""
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:
            ray.shutdown()
            if attempt == _START_ATTEMPTS:
                raise ClusterError(f"a local Ray cluster did not start in {attempt} attempts: {error}") from error
            logger.warning("local Ray cluster did not start (attempt %d of %d): %s", attempt, _START_ATTEMPTS, error)
            time.sleep(attempt)


def _describe(*, owned: bool) -> Cluster:
    resources = ray.cluster_resources()
    return Cluster(
        cpus=float(resources.get("CPU", 0)),
        gpus=float(resources.get("GPU", 0)),
        owned=owned,
        address=ray.get_runtime_context().gcs_address,
    )

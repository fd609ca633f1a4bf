"""One Ray cluster, and one S3 server, for all integration tests of a session."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.s3 import s3_bucket, s3_endpoint

__all__ = ["ray_cluster", "s3_bucket", "s3_endpoint", "start_ray"]

ROOT = Path(__file__).resolve().parents[2]
_ATTEMPTS = 3


def start_ray(*, num_cpus: int = 8, object_store_memory: int = 500_000_000) -> None:
    """A local cluster without dashboard; started again when a busy machine was too slow for Ray's start-up limits."""
    import ray

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in dict.fromkeys(paths) if path)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            ray.init(
                num_cpus=num_cpus,
                object_store_memory=object_store_memory,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
            )
            return
        except (RuntimeError, ConnectionError, TimeoutError, OSError):
            ray.shutdown()
            if attempt == _ATTEMPTS:
                raise
            time.sleep(2.0 * attempt)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A running Ray cluster with 8 logical CPUs and a 500 MB object store, shared by the session."""
    import ray

    start_ray()
    yield
    ray.shutdown()

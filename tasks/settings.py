"""What Flyte needs to know about the tasks: caching, resources, retries, and the Ray cluster of the training tasks.

Retries, time limits and resources are for a Flyte cluster; a local run ignores them, so the functions that tasks call
have deadlines of their own.
"""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

from flytekit import Cache, Resources
from flytekit.core.context_manager import ExecutionParameters, FlyteContextManager
from flytekit.extend import TaskPlugins
from flytekitplugins.ray import HeadNodeConfig, RayJobConfig, WorkerNodeConfig
from flytekitplugins.ray.task import RayFunctionTask

from tasks.cluster import read_cluster
from tasks.content import source_digest

CACHE = Cache(version=source_digest())
SMALL = Resources(cpu="1", mem="2Gi")
MEDIUM = Resources(cpu="2", mem="8Gi")
RETRIES = 2
EVERY_TASK: dict[str, Any] = {"retries": RETRIES, "enable_deck": True, "deck_fields": (), **read_cluster().options()}
"""Options of every task's decorator."""
SHORT = datetime.timedelta(hours=1)
LONG = datetime.timedelta(days=3)


class EngineCluster(RayJobConfig):
    """A `RayJobConfig` whose local cluster is started by the engine and kept for the following tasks."""


class EngineTask(RayFunctionTask):
    """The Ray task of the Flyte plugin; in a local run the engine starts Ray itself.

    The plugin would start it once, with a dashboard and Ray's worker priorities; the engine retries a start that
    missed Ray's fixed limits on a busy machine and sets the environment its workers expect.
    """

    _cluster: contextlib.ExitStack | None = None

    def pre_execute(self, user_params: ExecutionParameters | None) -> ExecutionParameters | None:
        """Connect to Ray before the task's function runs."""
        state = FlyteContextManager.current_context().execution_state
        if state is None or not state.is_local_execution():
            return super().pre_execute(user_params)
        from relax_engine.core.cluster import ray_cluster

        if EngineTask._cluster is None:
            stack = contextlib.ExitStack()
            stack.enter_context(ray_cluster(None))
            EngineTask._cluster = stack
        return user_params


TaskPlugins.register_pythontask_plugin(EngineCluster, EngineTask)


def ray_cluster_config() -> Any:
    """The Ray cluster of a training task: a head that computes nothing, and workers that Ray may add."""
    workers = read_cluster().workers
    return EngineCluster(
        head_node_config=HeadNodeConfig(ray_start_params={"num-cpus": "0"}, requests=Resources(cpu="2", mem="8Gi")),
        worker_node_config=[
            WorkerNodeConfig(
                group_name="engine",
                replicas=max(1, workers.minimum),
                min_replicas=workers.minimum,
                max_replicas=workers.maximum,
                requests=workers.resources(),
            )
        ],
        enable_autoscaling=True,
        shutdown_after_job_finishes=True,
        ttl_seconds_after_finished=3600,
    )


# It may lose its machine, and goes on from the last checkpoint in the artifact store's bucket.
TRAINING: dict[str, Any] = {
    "cache": CACHE,
    "task_config": ray_cluster_config(),
    "requests": MEDIUM,
    "timeout": LONG,
    "interruptible": True,
    **EVERY_TASK,
    **read_cluster().accelerated(),
}
"""Options of a training task's decorator."""

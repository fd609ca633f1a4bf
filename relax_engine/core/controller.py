"""The controller: the only place where the parts meet.

Builds stream, placement and roles, starts every role's loop, relays what happens, and takes all of
it down again; the first error of any role ends the run and is what the caller sees.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.context import _get_global_client

from relax_engine.components.mode import forward_columns, rows_per_example
from relax_engine.components.role import Phase, RoleContext
from relax_engine.config import RunConfig
from relax_engine.config.roles import devices_of, generates_ahead, required_roles, sharing_roles
from relax_engine.core.cluster import Cluster
from relax_engine.core.failure import role_failure
from relax_engine.core.placement import Placement, place
from relax_engine.core.resume import ResumePoint
from relax_engine.core.service import Service
from relax_engine.stream.client import StreamClient
from relax_engine.stream.launch import start_stream
from relax_engine.utils.network import held_port
from relax_engine.utils.progress import Progress, progress

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_HTTP_HOST, _HTTP_PORT = "127.0.0.1", 8000


class Controller:
    """Runs one configuration on one cluster.

    Roles end in any order, but the run ends when all have: rollout and advantages finish ahead of
    the actor. `run` may be called once.
    """

    def __init__(self, config: RunConfig, cluster: Cluster, run_dir: Path, point: ResumePoint, num_steps: int) -> None:
        self.config = config
        self.cluster = cluster
        self.run_dir = run_dir
        self.point = point
        self.num_steps = num_steps
        self.services: dict[str, Service] = {}
        self._stream: StreamClient | None = None
        self._placement: Placement | None = None

    async def run(self) -> tuple[list[Phase], float]:
        """Run to the end; returns every role's phases, and the seconds from the first loop's start to the last's end.

        Raises:
            RelaxError: whatever the first failing role raised.
        """
        try:
            with progress("starting roles"):
                await self._build()
            started = time.time()
            return await self._loop(), time.time() - started
        finally:
            await self._tear_down()

    async def _build(self) -> None:
        config, flat = self.config, self.config.flat
        devices = {role: devices_of(config, role) for role in required_roles(config)}
        self._stream = await asyncio.to_thread(self._start_stream)
        self._placement = await asyncio.to_thread(
            place,
            devices,
            sharing_roles(config),
            self.cluster,
            timeout_s=flat.role_deadline,
        )
        for role in devices:
            context = RoleContext(
                config=config,
                slots=self._placement.slots[role],
                stream=self._stream,
                run_dir=str(self.run_dir),
                start_step=self.point.iteration,
                num_steps=self.num_steps,
                resume_from=self.point.directory_of(role),
                weights_only=self.point.weights_only,
                run_state=self.point.state,
            )
            self.services[role] = Service(role, context, deadline_s=flat.role_deadline)
        await asyncio.to_thread(self._deploy)
        await self._all_or_first_failure(
            {name: asyncio.create_task(service.call("setup")) for name, service in self.services.items()}
        )

    def _start_stream(self) -> StreamClient:
        flat = self.config.flat
        supervised = self.config.supervised
        rows = 2 * rows_per_example(self.config) * flat.global_batch_size if supervised else flat.stream_max_rows
        stream = start_stream(
            name=None,
            num_data_storage_units=flat.num_data_storage_units,
            row_budget=rows,
            byte_budget=flat.stream_max_bytes,
            max_staleness=None if supervised else self.config.rollouts_ahead,
            groups_per_step=None if supervised else flat.rollout_batch_size,
            over_sampling=None if supervised or generates_ahead(self.config) else flat.over_sampling_batch_size,
        )
        if not supervised:
            # Groups keep the numbers that the data source gives them, whichever step the run starts at.
            position = self.point.state.get("data_position") or {}
            stream.recover_gate(
                self.point.iteration,
                next_group=position.get("group_index", 0),
                pending=position.get("pending", ()),
            )
        return stream

    def _deploy(self) -> None:
        """Start Serve where it does not run yet, and all roles on it at once."""
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        quiet = {"log_level": "WARNING", "enable_access_log": False}
        targets = [service.target() for service in self.services.values()]
        with held_port(_HTTP_HOST, _HTTP_PORT) as port:
            if _get_global_client(raise_if_no_controller_running=False) is None:
                serve.start(http_options={"host": _HTTP_HOST, "port": port}, logging_config=quiet)
                logger.info("roles answer at http://%s:%d/<role>/health", _HTTP_HOST, port)
            serve.run_many(targets, wait_for_ingress_deployment_creation=True)

    async def _loop(self) -> list[Phase]:
        urls = await self.services["rollout"].call("engine_urls") if "rollout" in self.services else []
        followers = [name for name in forward_columns(self.config) if name != "reference"]
        loops = {
            name: service.start(urls, followers) if name == "actor" else service.start()
            for name, service in self.services.items()
        }
        with progress("training", total=self.num_steps - self.point.iteration) as bar:
            results = await self._all_or_first_failure(loops, bar)
        phases: list[Phase] = [phase for result in results for phase in result["phases"]]
        if "rollout" in self.services:
            phases += (await self.services["rollout"].call("finish"))["phases"]
            await self._relay(None)
        return phases

    async def _all_or_first_failure(
        self, tasks: dict[str, asyncio.Task[Any]], bar: Progress | None = None
    ) -> list[Any]:
        """Results of all roles' tasks, relaying events meanwhile; a failure or a stopped role cancels the others.

        Raises:
            RoleError: names the role and the root cause.
        """
        names = {task: name for name, task in tasks.items()}
        pending = set(names)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is not None:
                        raise role_failure(names[task], error, self.run_dir)
                    if (task.result() or {}).get("stopped"):
                        logger.info("role %s was stopped: ending the run", names[task])
                        pending = set()
                if bar is not None:
                    await self._relay(bar)
        finally:
            for task in names:
                task.cancel()
            await asyncio.gather(*names, return_exceptions=True)
        return [task.result() for task in names if not task.cancelled()]

    async def _relay(self, bar: Progress | None) -> None:
        """Log what the roles report."""
        for service in self.services.values():
            for event in await service.events():
                self._log(event)
                if bar is not None and event["kind"] == "step":
                    bar.advance()

    def _log(self, event: dict[str, Any]) -> None:
        total = self.num_steps
        match event["kind"]:
            case "rollout":
                logger.info(
                    "Finish rollout %d/%d: reward %.3f, %.2f s",
                    event["rollout_id"],
                    total,
                    event["reward"],
                    event["seconds"],
                )
            case "step":
                metrics = event["metrics"]
                logger.info(
                    "training step %d/%d: loss %.4f, grad norm %.3f, %.2f s",
                    event["step"],
                    total,
                    metrics.get("train/loss", math.nan),
                    metrics.get("train/grad_norm", math.nan),
                    metrics["perf/step_time"],
                )
            case "evaluation":
                logger.info("evaluation of %s after step %d: %.4f", event["dataset"], event["step"], event["score"])
            case "engine_quarantined":
                logger.warning("engine %s is out of service: %s", event["engine"], event["reason"])

    async def _tear_down(self) -> None:
        """End everything that this run started; errors here must not hide the run's own."""
        closing = [service.call("close") for service in self.services.values()]
        for name, outcome in zip(self.services, await asyncio.gather(*closing, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                logger.debug("closing role %s: %s", name, outcome)
        for name in self.services:
            await asyncio.to_thread(serve.delete, name)
        if self._placement is not None:
            self._placement.release()
        if self._stream is not None:
            self._stream.close()

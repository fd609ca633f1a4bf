"""The controller: the only place where the parts meet.

Builds stream, placement and roles, starts every role's loop, relays what happens, and takes all of
it down again. The first failure that no restart in place heals (`recovery.py`) is what the caller sees.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.context import _get_global_client

from relax_engine.access.address_file import remove_address, write_address
from relax_engine.access.listener import base_url, http_options
from relax_engine.access.policy import installed
from relax_engine.components.mode import forward_columns, rows_per_example
from relax_engine.components.role import Phase, RoleContext
from relax_engine.config import RunConfig
from relax_engine.config.roles import devices_of, generates_ahead, required_roles, sharing_roles
from relax_engine.core.address import api_address
from relax_engine.core.autoscaling import autoscaler_targets
from relax_engine.core.cluster import Cluster
from relax_engine.core.deploy import delete, deploy
from relax_engine.core.failure import RoleError, role_failure
from relax_engine.core.placement import Placement, place
from relax_engine.core.recovery import Keeper, RunInterruptedError, lost_with
from relax_engine.core.resume import ResumePoint, newest_of_run
from relax_engine.core.service import Service
from relax_engine.core.snapshots import Snapshots
from relax_engine.core.watch import Watch
from relax_engine.observe.service.deployment import MetricsContext, metrics_target
from relax_engine.stream.client import StreamClient
from relax_engine.stream.launch import start_stream
from relax_engine.utils.network import held_port
from relax_engine.utils.progress import Progress, progress

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_CLOSE_S = 60.0


class Controller:
    """Runs one configuration on one cluster.

    Roles end in any order, but the run ends when all have: rollout and advantages finish ahead of
    the actor. `run` may be called once.
    """

    def __init__(
        self,
        config: RunConfig,
        cluster: Cluster,
        run_dir: Path,
        point: ResumePoint,
        num_steps: int,
        run_id: str,
        on_event: Callable[[Mapping[str, Any]], None],
        on_state: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """`on_event` is told what roles report, `on_state` now and then what is under way; both return at once."""
        self.config = config
        self.tolerant: bool = config.flat.use_fault_tolerance
        self.cluster = cluster
        self.run_dir = run_dir
        self.point = point
        self.num_steps = num_steps
        self.run_id = run_id
        self._on_event, self._on_state = on_event, on_state
        self._snapshots: Snapshots | None = None
        self._deployed: list[str] = []
        self.services: dict[str, Service] = {}
        self._engine_urls: list[str] = []
        self._shown = point.iteration  # the progress bar's next step; steps that are done again do not move it
        self._joining: set[asyncio.Task[None]] = set()
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
                run_id=self.run_id,
                access=installed(),
            )
            self.services[role] = Service(role, context, deadline_s=flat.role_deadline)
        targets = [service.target() for service in self.services.values()]
        with held_port(flat.api_host, flat.api_port) as port:
            await asyncio.to_thread(_start_serve, http_options(flat, port))
            write_address(self.run_dir, api_address().base_url)
            targets += autoscaler_targets(flat)
            if flat.use_metrics_service:
                targets.append(metrics_target(MetricsContext(str(self.run_dir), installed())))
            self._deployed = [str(target.name) for target in targets]
            await deploy(targets, flat.role_deadline)
        await self._all_or_first_failure(
            {name: asyncio.create_task(service.call("setup")) for name, service in self.services.items()}
        )

    def _start_stream(self) -> StreamClient:
        flat = self.config.flat
        supervised = self.config.supervised
        rows = 2 * rows_per_example(self.config) * flat.global_batch_size if supervised else flat.stream_max_rows
        directory = self.run_dir / "stream" if self.tolerant else None
        if directory is not None and directory.exists():
            shutil.rmtree(directory)
        stream = start_stream(
            name=None,
            num_data_storage_units=flat.num_data_storage_units,
            row_budget=rows,
            byte_budget=flat.stream_max_bytes,
            max_staleness=None if supervised else self.config.rollouts_ahead,
            groups_per_step=None if supervised else flat.rollout_batch_size,
            over_sampling=None if supervised or generates_ahead(self.config) else flat.over_sampling_batch_size,
            directory=directory,
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

    async def _loop(self) -> list[Phase]:
        assert self._stream is not None
        flat = self.config.flat
        if "rollout" in self.services:
            self._engine_urls = await self.services["rollout"].call("engine_urls")
        self._watch = Watch(self.services, self._stream, self.run_dir, flat.progress_timeout)
        self._snapshots = Snapshots(self.services, self._stream, self.num_steps, self._on_state)
        self._keeper = Keeper(
            self.services,
            self._watch,
            self.run_dir,
            tolerant=self.tolerant,
            restart=self._restart,
            arguments=lambda name: (self._engine_urls, self._followers) if name == "actor" else (),
            tell=self._on_event,
        )
        loops = {name: asyncio.create_task(self._keeper.keep(name)) for name in self.services}
        with progress("training", total=self.num_steps - self.point.iteration) as bar:
            results = await self._all_or_first_failure(loops, bar)
        return [phase for result in results for phase in result["phases"]]

    @property
    def _followers(self) -> list[str]:
        """Forward-only roles that get every version of the weights."""
        return [name for name in forward_columns(self.config) if name != "reference"]

    async def _restart(self, name: str) -> None:
        """Start a role again where the stream and the run's last checkpoint say it was."""
        assert self._stream is not None
        lost = lost_with(name, self.config)
        if lost is not None:
            raise RunInterruptedError(f"role {name!r} cannot be started again alone: with it went {lost}")
        stats = await asyncio.to_thread(self._stream.stats)
        finished = max(self.point.iteration, stats.weight_version)
        if name != "actor":
            await self.services[name].redeploy(start_step=finished)
            if name == "rollout":
                old, self._engine_urls = self._engine_urls, await self.services[name].call("engine_urls")
                self._join(self._engine_urls, [], gone=old)
            elif name in self._followers:
                self._join([], [name])
            return
        point = newest_of_run(self.config, self.run_id) or self.point
        await self.services[name].redeploy(
            start_step=point.iteration,
            resume_from=point.directory_of(name),
            weights_only=point.weights_only,
            run_state=point.state,
        )

    def _join(self, engine_urls: list[str], roles: list[str], gone: Sequence[str] = ()) -> None:
        """Have the actor bring engines and roles up to its weights; one that is being started does so when it runs."""
        if "actor" in self._keeper.restarting:
            return

        async def join() -> None:
            try:
                await self.services["actor"].call("add_receivers", engine_urls, roles, gone)
            except Exception as error:  # noqa: BLE001 - the actor's own loop says what is wrong with it
                logger.warning("%s did not get weights: %s", [*engine_urls, *roles], error)

        task = asyncio.create_task(join())
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

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
                    await self._relay([name for name in self.services if name not in self._keeper.restarting], bar)
                    if self._snapshots is not None:
                        self._snapshots.maybe_take()
                    await self._look_after()
        finally:
            for task in names:
                task.cancel()
            await asyncio.gather(*names, return_exceptions=True)
        return [task.result() for task in names if not task.cancelled()]

    async def _look_after(self) -> None:
        """Have a silent role taken for failed, and a run that stands still ended."""
        if self.config.flat.use_health_check:
            for name, error in self._watch.silent().items():
                self._keeper.condemn(name, error)
        await self._watch.require_progress()

    async def _relay(self, names: list[str], bar: Progress) -> None:
        """Log what the roles report, and act on it."""
        started: list[str] = []
        gone: list[str] = []
        for event in await self._watch.events(names):
            self._log(event)
            self._on_event(event)
            match event["kind"]:
                case "step":
                    self._keeper.step_finished()
                    if event["step"] >= self._shown:
                        self._shown = event["step"] + 1
                        bar.advance()
                case "engine_started":
                    started.append(event["engine"])
                    gone += [] if event["replaces"] is None else [event["replaces"]]
                case "engine_left":
                    gone.append(event["engine"])
                case "role_lost":
                    error = RoleError(f"role {event['lost']!r} failed: {event['reason']}", interrupted=True)
                    self._keeper.condemn(event["lost"], error)
        if started or gone:
            self._engine_urls = [url for url in [*self._engine_urls, *started] if url not in gone]
        if started:
            self._join([url for url in started if url not in gone], [], gone)  # all that came together, at once

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
            case "engine_started" if event["replaces"] is not None:
                logger.info("engine %s takes the place of %s", event["engine"], event["replaces"])
            case "engine_started":
                logger.info("engine %s comes", event["engine"])
            case "engine_left":
                logger.info("engine %s left", event["engine"])
            case "scale_out" | "scale_in" as kind:
                logger.info("%s %s is %s %s", kind, event["request_id"], event["status"], event["message"])

    async def _tear_down(self) -> None:
        """End everything that this run started; errors here must not hide the run's own."""
        if self._snapshots is not None:
            self._snapshots.close()
        for task in self._joining:
            task.cancel()
        closing = [service.call("close", deadline_s=_CLOSE_S) for service in self.services.values()]
        for name, outcome in zip(self.services, await asyncio.gather(*closing, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                logger.debug("closing role %s: %s", name, outcome)
        try:
            await delete(self._deployed, _CLOSE_S)
        except RoleError as error:
            logger.warning("%s", error)
        if self._placement is not None:
            self._placement.release()
        if self._stream is not None:
            self._stream.close()
        remove_address(self.run_dir)


def _start_serve(options: dict[str, Any]) -> None:
    """Start Serve where it does not run yet."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    quiet = {"log_level": "WARNING", "enable_access_log": False}
    if _get_global_client(raise_if_no_controller_running=False) is None:
        serve.start(http_options=options, logging_config=quiet)
        logger.info("roles answer at %s/<role>/health", base_url(options))

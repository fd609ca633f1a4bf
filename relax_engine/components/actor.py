"""The actor role: waits for a partition, trains on it, publishes the weights, frees the partition."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import RayServeException

from relax_engine.backends.engines.types import EngineCallError
from relax_engine.components.critic_link import CriticTargets, critic_keeps_from, critic_trained
from relax_engine.components.critic_settings import trains_actor
from relax_engine.components.mode import (
    actor_columns,
    checkpoint_is_due,
    computes_in_process,
    forward_budget,
    forward_columns,
    partition_number,
    publishes,
    trains_on_policy,
)
from relax_engine.components.old_policies import OldPolicies
from relax_engine.components.partition import PartitionReader
from relax_engine.components.reference import MovingReference
from relax_engine.components.role import Role, RoleContext, busy_seconds, ingress
from relax_engine.components.saver import CheckpointSaver
from relax_engine.components.throughput import Throughput
from relax_engine.components.train_group import TrainGroup, load_weights
from relax_engine.components.trainer import LOG_PROB_GAP, TEACHER, PartitionOutcome, PartitionTrainer
from relax_engine.config.critic import uses_critic
from relax_engine.config.roles import devices_needed, devices_of, has_teacher_role
from relax_engine.observe.bundle import write_steps
from relax_engine.observe.flops import peak_tflops
from relax_engine.observe.metrics import MetricsLog
from relax_engine.observe.rollouts.recorder import Recorder
from relax_engine.observe.rollouts.tables import training_table
from relax_engine.stream.columns import ColumnBatch
from relax_engine.weight_sync.messages import Receiver, SyncReport, WeightSyncError
from relax_engine.weight_sync.newcomers import pull_newest
from relax_engine.weight_sync.probe import probe_engine
from relax_engine.weight_sync.receivers import EngineReceiver, RoleReceiver

logger = logging.getLogger(__name__)

RUN_STATE = "run_state.json"
SYNC_GAP = "weight_sync/logprob_max_abs_diff"
"""Largest engine-trainer log-prob difference after the last sync: on the step's samples, or on a few probed rows."""
_TIMERS = {"weight_sync": "update_weights", "save": "save_model"}
"""Phases under the names that their timers have always had."""


class Actor(Role):
    """Trains partitions `start_step .. num_steps - 1`, one weight version each.

    Order of one step: train the partition as its rows arrive -> (every `ref_update_interval`) move
    the reference -> checkpoint -> (every `update_weights_interval`) weight sync -> drop the
    partition. The partition goes last: its admission slots are free only when engines hold the
    weights that it made, which is what bounds the staleness of the next samples.
    """

    role: ClassVar[str] = "actor"

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self.supervised = self.config.supervised
        self.colocate = self.config.mode == "colocate"
        self.has_critic = uses_critic(self.config)
        self._devices = max(1, devices_needed(self.config))
        self.saver: CheckpointSaver | None = None
        self.version = context.start_step
        self._train_seconds = 0.0
        self.tolerant: bool = self.args.use_fault_tolerance
        self._publishing = asyncio.Lock()
        self._published = asyncio.Event()
        self._published_version, self._published_steps = -1, -1
        self.recorder: Recorder | None = None
        self.engine_urls: list[str] = []
        self.forward_roles: list[str] = []

    async def setup(self) -> None:
        """Start the ranks and load weights: the checkpoint's, or the initial ones."""
        await asyncio.to_thread(self._setup)

    def _setup(self) -> None:
        args = self.args
        self.metrics = self._log("metrics.jsonl", "metrics")
        self.trained = self._log("trained_rows.jsonl", "trained_rows")
        self.group = TrainGroup(
            self.config, self.context.slots, role=self.role, trainable=True, timeout_s=args.wait_timeout
        )
        if args.save:
            keep = args.max_actor_ckpt_to_keep
            self.saver = CheckpointSaver(self.config, self.group, args.save, keep=keep, export=True)
        self.reference = MovingReference(self.context, self.group)
        if args.use_opd and not self.supervised and not has_teacher_role(self.config):
            load_weights(self.group, args.opd_teacher_load)
            self.group.snapshot(TEACHER)
        holds_initial = self.reference.load()
        if not holds_initial and (args.lora_rank or not self.context.resume_from):
            load_weights(self.group, args.ref_load)
        if self.context.resume_from:
            self.group.load(self.context.resume_from, optimizer=not self.context.weights_only)
        elif args.lora_load:
            self.group.load_adapters(args.lora_load)
        in_process = computes_in_process(self.config) and not args.use_rollout_logprobs
        self.old_policies = (
            OldPolicies(self.group, bound=self.config.staleness_bound) if args.keep_old_actor and in_process else None
        )
        if args.record_rollouts and not self.supervised:
            directory = Path(self.context.run_dir, "rollouts", "training")
            self.recorder = Recorder(directory, rewind_to=self.context.start_step)
        self.trainer = PartitionTrainer(
            self.config,
            self.group,
            self.phase,
            throughput=Throughput(args.hf_checkpoint, self.group.size, self._peak_tflops()),
            old_policies=self.old_policies,
            record=None if self.recorder is None else self._record,
        )

    def _peak_tflops(self) -> float | None:
        """Of one device; None where neither a flag nor a data sheet says it. Published peaks are those of bfloat16."""
        given: float | None = self.args.device_peak_tflops
        return given if given is not None or not self.args.bf16 else peak_tflops(self.group.device_name)

    def _record(self, rows: ColumnBatch) -> None:
        assert self.recorder is not None
        self.recorder.offer(rows.num_rows, partial(training_table, self.step, self.version, rows, time.time()))

    def _log(self, name: str, saved_as: str) -> MetricsLog:
        """A log of one line per step, without the steps that are done again, and with the one that was saved last."""
        context = self.context
        continues = context.run_state.get("iteration") == context.start_step
        last = context.run_state.get(saved_as) if continues else None
        return MetricsLog(Path(context.run_dir) / name, start_step=context.start_step, last=last)

    async def run(self, engine_urls: Sequence[str], forward_roles: Sequence[str]) -> dict[str, Any]:
        """Train all partitions; returns the run's totals."""
        self.engine_urls = list(engine_urls)
        self.forward_roles = list(forward_roles)
        await self._catch_up()
        self._published.set()
        for rollout_id in range(self.version, self.context.num_steps):
            if self.stopping:
                break
            self.step = rollout_id
            await self._step(rollout_id)
        return self.outcome()

    async def _catch_up(self) -> None:
        """Publish the weights to continue from; do again what was done since the checkpoint, if this is a restart.

        Steps that the stream knows as finished are trained on the rows that it retained, and published once at the end.
        """
        start = self.context.start_step
        finished = (await asyncio.to_thread(self.stream.stats)).weight_version if self.context.restarts else start
        for rollout_id in range(start, finished):
            self.step = rollout_id
            await self._step(rollout_id, publish=False)
        if not self.supervised:
            await self._publish(self.version, None, always=True)
        if self.context.restarts:
            await asyncio.to_thread(self._finish_saved)

    def _finish_saved(self) -> None:
        """End partitions that the checkpoint covers: their actor died between the two."""
        for partition in self.stream.partitions():
            number = partition_number(partition.name)
            if number < self.context.start_step:
                dropped = self.context.run_state["dropped_stale"]
                self.stream.finish_step(partition.name, version=number + 1, dropped_stale=dropped)

    async def add_receivers(self, engine_urls: Sequence[str], roles: Sequence[str], gone: Sequence[str]) -> None:
        """Bring new engines and forward-only roles up to the present weights; forget the `gone`.

        Engines that come to others are served from the store of weights, where there is one, without the trainer; else
        from the trainer's memory between two of its calls, if it still holds the published weights, and with the next
        sync if it does not. Otherwise all receivers take part, so that afterwards every one has the same version.
        """
        await self._published.wait()
        async with self._publishing:
            others = [url for url in self.engine_urls if url not in {*gone, *engine_urls}]
            self.engine_urls = [*others, *engine_urls]
            self.forward_roles = [*(role for role in self.forward_roles if role not in roles), *roles]
            if roles or not others:
                await self._publish(self.version, None, always=True)
            elif engine_urls:
                await self._bring_up(engine_urls)

    async def _bring_up(self, urls: Sequence[str]) -> None:
        """Give newcomers the published weights, while the others generate on."""
        timeout = self.args.weight_sync_timeout
        newcomers = [EngineReceiver(url, timeout) for url in urls]
        report: SyncReport | None
        if self.args.weight_sync_transport == "object_store":
            report = await pull_newest(self.args.weight_sync_url, newcomers, self._published_version, timeout)
        else:
            # The members of a broadcast are always all of them.
            everybody = self.args.weight_sync_transport == "broadcast"
            receivers = [EngineReceiver(url, timeout) for url in self.engine_urls] if everybody else newcomers
            report = await asyncio.to_thread(
                self._push, receivers, self._published_version, at_step=self._published_steps
            )
        if report is not None:
            await self._engines_hold(self._published_version, report)

    def processes(self) -> dict[str, int]:
        """Process ids of the ranks."""
        return self.group.processes if hasattr(self, "group") else {}

    async def inspect_owned(self) -> dict[str, str]:
        """Stack samples of the ranks."""
        return await asyncio.to_thread(self.group.inspect)

    async def close(self) -> None:
        """End the rank processes."""
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)
        await asyncio.to_thread(self.group.close)

    async def _step(self, rollout_id: int, *, publish: bool = True) -> None:
        started = time.time()
        partition = f"{'sft' if self.supervised else 'train'}_{rollout_id}"
        reader = PartitionReader(
            self.stream, self.config, task="actor_train", partition=partition, columns=actor_columns(self.config)
        )
        outcome = await asyncio.to_thread(self._train, reader, rollout_id)
        metrics = self._train_metrics(outcome) | reader.meta.get("metrics", {})
        if self.has_critic:
            metrics |= await critic_trained(rollout_id)
        metrics["perf/wait_time"] = reader.waited
        self.version = rollout_id + 1
        if self.reference.moves_at(self.version):
            await asyncio.to_thread(self.reference.move, self.version)
        saved = await asyncio.to_thread(
            self._checkpoint, rollout_id, outcome, reader.meta.get("data_position", {}), metrics
        )
        if self.has_critic and self.saver is not None and self.args.max_actor_ckpt_to_keep:
            await critic_keeps_from(self.saver.manager)
        if publish and not self.supervised:
            async with self._publishing:
                metrics |= await self._publish(self.version, outcome.probe)
        stats = await asyncio.to_thread(
            self.stream.finish_step,
            partition,
            version=self.version,
            dropped_stale=outcome.staleness.dropped,
            retain=self.tolerant and self.saver is not None and not saved,
        )
        metrics |= stats.metrics()
        if self.recorder is not None:
            metrics["observe/training_dropped"] = float(self.recorder.dropped)
        metrics["perf/step_time"] = time.time() - started
        metrics |= self._timers(started)
        metrics["perf/tokens_per_gpu_per_sec"] = outcome.tokens / max(metrics["perf/step_time"], 1e-9) / self._devices
        metrics["perf/wait_time_ratio"] = reader.waited / max(metrics["perf/step_time"], 1e-9)
        metrics |= self._rates(outcome, metrics)
        await asyncio.to_thread(self.trained.write, rollout_id, {"samples": outcome.samples})
        await asyncio.to_thread(self.metrics.write, rollout_id, metrics)
        self.emit("step", step=rollout_id, metrics=metrics)

    def _train(self, reader: PartitionReader, rollout_id: int) -> PartitionOutcome:
        """All optimizer steps of the partition; on shared devices the critic's turn comes after the actor's."""
        started = time.time()
        targets = CriticTargets() if self.has_critic and computes_in_process(self.config) else None
        update = not self.has_critic or trains_actor(self.config, rollout_id)
        outcome = self.trainer.train(reader, self.version, update=update, targets=targets)
        if targets is not None:
            targets.send(self.stream, f"train_{rollout_id}")
        self._train_seconds = sum(
            phase.end - phase.start for phase in self.phases_since(started) if phase.name in ("train", "optimizer")
        )
        if outcome.recorded_steps:
            write_steps(self.args.save_debug_train_data, self.step, outcome.recorded_steps)
        if not outcome.rows:
            logger.warning("step %d: all samples were too stale to train on", self.step)
        return outcome

    def _train_metrics(self, outcome: PartitionOutcome) -> dict[str, float]:
        metrics = outcome.metrics()
        metrics["perf/actor_train_time"] = self._train_seconds
        metrics["perf/actor_train_tok_per_s"] = outcome.tokens / max(self._train_seconds, 1e-9)
        if self.supervised or not outcome.steps:
            return metrics
        if trains_on_policy(self.config):
            # Every sample of the step was made by the weights of the last sync: no better probe.
            metrics[LOG_PROB_GAP] = metrics["train/train_rollout_logprob_abs_diff/max"]
            metrics[SYNC_GAP] = metrics[LOG_PROB_GAP]
        elif outcome.log_prob_gap is not None and (self.old_policies or not self.config.staleness_bound):
            metrics[LOG_PROB_GAP] = outcome.log_prob_gap
        return metrics

    def _rates(self, outcome: PartitionOutcome, metrics: dict[str, float]) -> dict[str, float]:
        """What was done a second, in tokens and operations, and as a share of what the devices could do."""
        seconds = max(metrics["perf/step_time"], 1e-9)
        passes = {name: metrics.get(f"perf/{name}_time", 0.0) for name in ("log_probs", "ref_log_probs")}
        return {
            "perf/actor_train_tokens": float(outcome.tokens),
            "perf/step_token_per_s": outcome.tokens / seconds,
            "perf/step_resp_token_per_s": outcome.response_tokens / seconds,
            **self.trainer.throughput.take({"actor_train": self._train_seconds, **passes}),
        }

    def _timers(self, started: float) -> dict[str, float]:
        """`perf/<phase>_time` of the actor's phases since `started`, times at once counted once."""
        seconds = busy_seconds(self.phases_since(started))
        names = (_TIMERS.get(name, name) for name in (key.partition("/")[2] for key in seconds))
        return {f"perf/{name}_time": value for name, value in zip(names, seconds.values(), strict=True)}

    def _checkpoint(
        self, rollout_id: int, outcome: PartitionOutcome, data_position: dict[str, Any], metrics: dict[str, float]
    ) -> bool:
        """Save where it is due; whether it was."""
        if self.saver is None:
            return False
        if not checkpoint_is_due(self.config, rollout_id, self.context.num_steps):
            self.saver.settle()
            return False
        state = {
            "run_id": self.context.run_id,
            "iteration": rollout_id + 1,
            "weight_version": rollout_id + 1,
            "data_position": data_position,
            "metrics": metrics,
            "trained_rows": {"samples": outcome.samples},
            "dropped_stale": outcome.staleness.dropped,
        }

        def fill(directory: Path) -> None:
            self.reference.save(directory)
            (directory / RUN_STATE).write_text(json.dumps(state))

        with self.phase("save"):
            complete = self.saver.save(rollout_id, fill)
            if rollout_id + 1 == self.context.num_steps:
                self.saver.finish()
        return complete

    async def _publish(self, version: int, probe: ColumnBatch | None, *, always: bool = False) -> dict[str, float]:
        """Sync the weights to whoever gets this version (`always`: to all), and check that engines compute the same."""
        timeout = self.args.weight_sync_timeout
        due = always or publishes(self.config, version, start=self.context.start_step, end=self.context.num_steps)
        roles = [*self.forward_roles] if due else []
        if self.reference.moved_at(version) and "reference" in forward_columns(self.config):
            roles.append("reference")
        receivers: list[Receiver] = [RoleReceiver(name, devices_of(self.config, name)) for name in roles]
        if due and self.engine_urls:
            # Evaluations of the present weights end first. When all engines are dead, their loss is to be noticed.
            self.engine_urls = await self._tell_rollout("prepare_for_weights") or self.engine_urls
        if due:
            receivers += [EngineReceiver(url, timeout) for url in self.engine_urls]
        elif self.colocate and self.args.offload_rollout:
            await self._tell_rollout("take_memory_back")
        if not receivers:
            return {}
        with self.phase("weight_sync"):
            steps = self.group.steps
            report = await asyncio.to_thread(self._push, receivers, version)
            assert report is not None
            lost = {role: report.quarantined[role] for role in roles if role in report.quarantined}
            if lost and not self.tolerant:
                raise WeightSyncError(
                    f"weights of version {version} did not reach {lost}, whose log-probs would be stale"
                )
            for role, reason in lost.items():
                self.forward_roles = [name for name in self.forward_roles if name != role]
                self.emit("role_lost", lost=role, reason=reason)
            if due:
                self._published_version, self._published_steps = version, steps
                if self.old_policies is not None:
                    await asyncio.to_thread(self.old_policies.published, version)
                await self._engines_hold(version, report)
        metrics = report.metrics()
        if due and probe is not None and not trains_on_policy(self.config):
            gap = await self._probe(probe)
            metrics |= {} if gap is None else {SYNC_GAP: gap}
        return metrics

    async def _engines_hold(self, version: int, report: SyncReport) -> None:
        self.engine_urls = [url for url in self.engine_urls if url not in report.quarantined]
        await self._tell_rollout("weights_committed", version, report.quarantined, report.committed)

    async def _tell_rollout(self, method: str, *args: Any) -> Any:
        """Call the rollout. One that is being started again needs not hear it: it asks for weights when it is back."""
        try:
            call = getattr(serve.get_app_handle("rollout"), method).remote(*args)
            return await asyncio.wait_for(_answer(call), self.args.role_deadline)
        except (RayActorError, RayTaskError, RayServeException, TimeoutError) as error:
            if not self.tolerant:
                raise
            logger.warning("the rollout did not answer %s(): %s", method, error)
            return None

    def _push(self, receivers: Sequence[Receiver], version: int, *, at_step: int | None = None) -> SyncReport | None:
        """Send the weights. Where receivers are started again, the loss of all of them is no error."""
        try:
            return self.group.push_weights(receivers, version, at_step=at_step)
        except WeightSyncError as error:
            if not self.tolerant:
                raise
            logger.warning("nobody holds weights of version %d: %s", version, error)
            return SyncReport(version, quarantined={receiver.name: str(error) for receiver in receivers})

    async def _probe(self, rows: ColumnBatch) -> float | None:
        """Largest log-prob difference between engines and trainer on a few rows, under the new weights.

        None where no engine answered, which `use_fault_tolerance` allows.
        """
        with self.phase("probe"):
            expected = await asyncio.to_thread(
                self.group.forward_log_probs, rows, temperature=1.0, max_tokens=forward_budget(self.config)
            )
            probes = [
                probe_engine(url, rows, expected, timeout_s=self.args.rollout_http_timeout) for url in self.engine_urls
            ]
            answers = await asyncio.gather(*probes, return_exceptions=True)
        gaps = []
        for answer in answers:
            if not isinstance(answer, BaseException):
                gaps.append(answer)
            elif not (self.tolerant and isinstance(answer, EngineCallError)):
                raise answer
        return max(gaps, default=None)


async def _answer(response: Any) -> Any:
    return await response


ActorDeployment = serve.deployment(serve.ingress(ingress(Actor))(Actor))

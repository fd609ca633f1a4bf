"""The actor role: waits for a partition, trains on it, publishes the weights, frees the partition."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ray import serve

from relax_engine.algorithms import registry
from relax_engine.algorithms.corrections.mismatch import step_sample_size
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.advantages import advantage_columns, mismatch, supervised_weights
from relax_engine.components.mode import actor_columns, old_is_current, steps_per_rollout, trains_on_policy
from relax_engine.components.role import Role, RoleContext, ingress
from relax_engine.components.train_group import TrainGroup, load_weights
from relax_engine.observe.metrics import MetricsLog
from relax_engine.rollout.staleness import split_stale
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.weight_sync.messages import Receiver, SyncReport, WeightSyncError
from relax_engine.weight_sync.probe import probe_engine
from relax_engine.weight_sync.receivers import EngineReceiver, RoleReceiver

logger = logging.getLogger(__name__)

RUN_STATE = "run_state.json"
SYNC_GAP = "weight_sync/logprob_max_abs_diff"
"""Largest engine-trainer log-prob difference after the last sync: on the step's samples, or on a few probed rows."""
LOG_PROB_GAP = "train/rollout_logprob_gap"
"""Largest engine-trainer log-prob difference on the step's own samples, under the weights that made them."""
_PROBE_ROWS = 4
_FORWARD_BUDGET = 16384


class Actor(Role):
    """Trains partitions `start_step .. num_steps - 1`, one weight version each.

    Order of one step: take the partition -> drop what is too stale -> (colocate) old and reference
    log-probs, advantages -> optimizer steps -> checkpoint -> weight sync -> drop the partition. The
    partition goes last: its admission slots are free only when engines hold the weights that it
    made, which is what bounds the staleness of the next samples.
    """

    role: ClassVar[str] = "actor"

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self.supervised = self.args.loss_type == "sft"
        self.colocate = self.config.mode == "colocate"
        self.algorithm = AlgorithmSettings.from_config(self.args)
        self.spec = registry.get(self.algorithm.advantage_estimator)
        self.checkpoints = CheckpointManager(self.args.save) if self.args.save else None
        continues = context.run_state.get("iteration") == context.start_step
        self.metrics = MetricsLog(
            Path(context.run_dir) / "metrics.jsonl",
            start_step=context.start_step,
            last=context.run_state.get("metrics") if continues else None,
        )
        self.version = context.start_step
        self._step_metrics: dict[str, float] = {}
        self._dropped_stale = 0
        self.engine_urls: list[str] = []
        self.forward_roles: list[str] = []

    async def setup(self) -> None:
        """Start the ranks and load weights: the checkpoint's, or the initial ones."""
        await asyncio.to_thread(self._setup)

    def _setup(self) -> None:
        args = self.args
        self.group = TrainGroup(
            self.config, self.context.slots, role=self.role, trainable=True, timeout_s=args.wait_timeout
        )
        needs_reference = self.colocate and self.algorithm.needs_reference and not self.supervised
        if needs_reference or not self.context.resume_from:
            load_weights(self.group, args.ref_load)
        if needs_reference:
            self.group.snapshot("reference")
        if self.context.resume_from:
            self.group.load(self.context.resume_from, optimizer=not self.context.weights_only)

    async def run(self, engine_urls: Sequence[str], forward_roles: Sequence[str]) -> dict[str, Any]:
        """Train all partitions; returns the run's totals."""
        self.engine_urls = list(engine_urls)
        self.forward_roles = list(forward_roles)
        if not self.supervised:
            await self._publish(self.context.start_step, None)
        for rollout_id in range(self.context.start_step, self.context.num_steps):
            if self.stopping:
                break
            self.step = rollout_id
            await self._step(rollout_id)
        return self.outcome()

    async def close(self) -> None:
        """End the rank processes."""
        await asyncio.to_thread(self.group.close)

    async def _step(self, rollout_id: int) -> None:
        started = time.time()
        partition = f"{'sft' if self.supervised else 'train'}_{rollout_id}"
        batch, meta = await asyncio.to_thread(self._take, partition)
        waited = time.time() - started
        metrics = await asyncio.to_thread(self._train, batch)
        metrics |= meta.get("metrics", {})
        metrics["perf/wait_time"] = waited
        self.version = rollout_id + 1
        await asyncio.to_thread(self._checkpoint, rollout_id, meta.get("data_position", {}), metrics)
        if not self.supervised:
            metrics |= await self._publish(self.version, batch)
        stats = await asyncio.to_thread(
            self.stream.finish_step,
            partition,
            version=None if self.supervised else self.version,
            dropped_stale=self._dropped_stale,
        )
        metrics |= stats.metrics()
        metrics["perf/step_time"] = time.time() - started
        metrics["perf/wait_time_ratio"] = waited / max(metrics["perf/step_time"], 1e-9)
        await asyncio.to_thread(self.metrics.write, rollout_id, metrics)
        self.emit("step", step=rollout_id, metrics=metrics)

    def _take(self, partition: str) -> tuple[ColumnBatch, dict[str, Any]]:
        """All rows of a sealed partition, as soon as every column is there, and what it was sealed with."""
        columns = actor_columns(self.config)
        parts = []
        sequence = 0
        while True:
            delivery = self.stream.take(
                "actor_train", partition, sequence, columns, None, deadline_s=self.args.wait_timeout
            )
            if delivery.end:
                break
            parts.append(self.stream.fetch(delivery))
            sequence += 1
        return ColumnBatch.concat(parts), delivery.meta

    def _train(self, batch: ColumnBatch) -> dict[str, float]:
        args = self.args
        if not self.supervised:
            batch, self._dropped_stale, self._step_metrics = split_stale(
                batch, self.version, self.config.staleness_bound
            )
            batch = self._complete(batch)
        if batch.num_rows == 0:
            logger.warning("step %d: all samples were too stale to train on", self.step)
            return self._step_metrics
        totals: list[dict[str, float]] = []
        with self.phase("train"):
            for rows in np.array_split(np.arange(batch.num_rows), steps_per_rollout(self.config)):
                part = batch.select(rows)
                if self.colocate or self.supervised:
                    part = self._with_advantages(part)
                totals.append(
                    self.group.train_step(
                        part,
                        temperature=1.0 if self.supervised else args.rollout_temperature,
                        max_tokens=args.max_tokens_per_gpu,
                        micro_batch_size=args.micro_batch_size,
                    )
                )
        metrics = {f"train/{name}": float(np.mean([each[name] for each in totals])) for name in totals[0]}
        tokens = int(batch["tokens"].lengths.sum())
        seconds = self.phases[-1].end - self.phases[-1].start
        metrics["perf/actor_train_time"] = seconds
        metrics["perf/actor_train_tok_per_s"] = tokens / max(seconds, 1e-9)
        metrics["perf/samples"] = float(batch.num_rows)
        metrics |= self._step_metrics | step_sample_size(metrics, prefix="train/")
        if trains_on_policy(self.config) and not self.supervised:
            metrics[LOG_PROB_GAP] = metrics["train/train_rollout_logprob_abs_diff/max"]
            # Every sample of the step was made by the weights of the last sync: no better probe.
            metrics[SYNC_GAP] = metrics[LOG_PROB_GAP]
        return metrics

    def _complete(self, batch: ColumnBatch) -> ColumnBatch:
        """Add the log-prob columns that no other role has added."""
        args = self.args
        if batch.num_rows == 0:
            return batch
        budget = args.log_probs_max_tokens_per_gpu or _FORWARD_BUDGET
        added: dict[str, Column] = {}
        wanted = self._needed_columns() | ({"log_probs"} if args.get_mismatch_metrics else set())
        for column, weights in (("log_probs", None), ("ref_log_probs", "reference")):
            if column in wanted and column not in batch:
                with self.phase(column):
                    added[column] = self.group.forward_log_probs(
                        batch, temperature=args.rollout_temperature, max_tokens=budget, weights=weights
                    )
        if "log_probs" in added:
            gap = np.abs(added["log_probs"].values - batch["rollout_log_probs"].values)
            self._step_metrics[LOG_PROB_GAP] = float(gap.max(initial=0.0))
        batch = batch.with_columns(**added)
        if "log_probs" in batch:
            self._step_metrics |= mismatch(batch)
        return batch

    def _needed_columns(self) -> set[str]:
        """What advantages and loss read."""
        from relax_engine.algorithms.batch import needed_columns
        from relax_engine.algorithms.objective import make_policy_loss

        on_policy = old_is_current(self.config)
        loss = make_policy_loss(self.algorithm, true_on_policy=on_policy)
        return {*loss.columns, *needed_columns(self.spec, self.algorithm, true_on_policy=on_policy)}

    def _with_advantages(self, batch: ColumnBatch) -> ColumnBatch:
        if self.supervised:
            return batch.with_columns(loss_weights=supervised_weights(batch))
        with self.phase("advantages"):
            return batch.with_columns(**advantage_columns(batch, self.config))

    def _checkpoint(self, rollout_id: int, data_position: dict[str, Any], metrics: dict[str, float]) -> None:
        args = self.args
        last = rollout_id + 1 == self.context.num_steps
        if self.checkpoints is None or not (
            last or (args.save_interval and (rollout_id + 1) % args.save_interval == 0)
        ):
            return
        state = {
            "iteration": rollout_id + 1,
            "weight_version": rollout_id + 1,
            "data_position": data_position,
            "metrics": metrics,
        }
        with self.phase("save"), self.checkpoints.writing(rollout_id + 1) as directory:
            self.group.save(str(directory), {})
            Path(directory, RUN_STATE).write_text(json.dumps(state))
        if args.max_actor_ckpt_to_keep:
            self.checkpoints.prune(args.max_actor_ckpt_to_keep)

    async def _publish(self, version: int, batch: ColumnBatch | None) -> dict[str, float]:
        """Sync the weights to every engine and forward role, and check that they compute the same."""
        timeout = self.args.weight_sync_timeout
        receivers: list[Receiver] = [
            EngineReceiver(url, timeout, resume_memory=self.colocate and self.args.offload_rollout)
            for url in self.engine_urls
        ]
        receivers += [RoleReceiver(name) for name in self.forward_roles]
        with self.phase("weight_sync"):
            report: SyncReport = await asyncio.to_thread(self.group.push_weights, receivers, version)
            lost = {role: report.quarantined[role] for role in self.forward_roles if role in report.quarantined}
            if lost:
                raise WeightSyncError(
                    f"weights of version {version} did not reach {lost}, whose log-probs would be stale"
                )
            self.engine_urls = [url for url in self.engine_urls if url in report.committed]
            rollout = serve.get_app_handle("rollout")
            await rollout.weights_committed.remote(version, report.quarantined)
        metrics = {
            "weight_sync/seconds": report.seconds,
            "weight_sync/bytes": float(report.nbytes),
            "weight_sync/buckets": float(report.buckets),
            "weight_sync/gigabytes_per_second": report.gigabytes_per_second,
            "weight_sync/quarantined": float(len(report.quarantined)),
            "weight_sync/version": float(version),
        }
        if batch is not None and batch.num_rows and not trains_on_policy(self.config):
            metrics[SYNC_GAP] = await self._probe(batch)
        return metrics

    async def _probe(self, batch: ColumnBatch) -> float:
        """Largest log-prob difference between engines and trainer on a few rows, under the new weights."""
        rows = batch.select(np.arange(min(_PROBE_ROWS, batch.num_rows))).only(["tokens", "response_lengths"])
        with self.phase("probe"):
            expected = await asyncio.to_thread(
                self.group.forward_log_probs, rows, temperature=1.0, max_tokens=_FORWARD_BUDGET
            )
            gaps = await asyncio.gather(
                *(
                    probe_engine(url, rows, expected, timeout_s=self.args.rollout_http_timeout)
                    for url in self.engine_urls
                )
            )
        return max(gaps, default=0.0)


ActorDeployment = serve.deployment(serve.ingress(ingress(Actor))(Actor))

"""Training on one partition: from parts of rows to optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from relax_engine.algorithms import registry
from relax_engine.algorithms.batch import batch_totals, needed_columns
from relax_engine.algorithms.corrections.mismatch import step_sample_size
from relax_engine.algorithms.distillation import DistillationSettings
from relax_engine.algorithms.objective import make_policy_loss
from relax_engine.algorithms.reduction import BatchTotals, loss_scale
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.components.advantages import advantage_columns, batch_stage_columns, mismatch
from relax_engine.components.critic_link import CriticTargets
from relax_engine.components.mode import (
    computes_in_process,
    forward_budget,
    forward_columns,
    needs_whole_step,
    old_is_current,
    records_routing,
    steps_per_rollout,
    teacher_columns,
)
from relax_engine.components.old_policies import OldPolicies
from relax_engine.components.partition import PartitionReader
from relax_engine.components.source_metrics import SOURCE_COLUMNS, source_metrics
from relax_engine.components.supervised import supervised_columns, supervised_reduction
from relax_engine.components.teacher_scorers import model_columns
from relax_engine.components.throughput import Throughput
from relax_engine.components.train_group import TrainGroup
from relax_engine.config import RunConfig
from relax_engine.config.roles import uses_reference
from relax_engine.multimodal.media import TRAIN_INPUTS
from relax_engine.observe.bundle import RecordedStep
from relax_engine.rollout.staleness import StalenessCheck
from relax_engine.stream.columns import OWN_EXPERTS, ROUTED_EXPERTS, Column, ColumnBatch
from relax_engine.stream.row_sums import row_means

LOG_PROB_GAP = "train/rollout_logprob_gap"
"""Largest engine-trainer log-prob difference on the step's own samples, under the weights that made them."""
REFERENCE, TEACHER = "reference", "teacher"
"""The snapshots that hold the reference policy, and the teacher of distillation."""

_SHOWN = ("rewards", "log_probs", "ref_log_probs", "advantages", "returns", "values")

PhaseTimer = Callable[[str], AbstractContextManager[None]]


class PartitionTrainer:
    """Trains partitions, part by part as their rows arrive.

    A part passes: staleness check -> (in process) old and reference log-probs -> advantages ->
    gradient. After a step's last part the accumulated gradient is divided by the size of the step,
    which is known only then, and the optimizer takes its step. So a step has the gradient of its
    rows however they were divided.

    Three things need more rows than a part before a gradient can be had. Advantages that look at the
    whole step (`needs_whole_step`) wait for its last part; the forward passes are done by then. An
    algorithm with a batch stage sees the whole step under the weights that it starts from. Old
    log-probs of several steps on one partition, computed in process, are those of the weights before
    the first step: all parts of the partition pass their forward passes before it.
    """

    def __init__(
        self,
        config: RunConfig,
        group: TrainGroup,
        phase: PhaseTimer,
        *,
        throughput: Throughput,
        old_policies: OldPolicies | None = None,
        record: Callable[[ColumnBatch], None] | None = None,
    ) -> None:
        """`throughput` counts passes; `record` is shown every part as it is trained, and returns at once."""
        self.config = config
        self.args = config.flat
        self.group = group
        self.old_policies = old_policies
        self.throughput = throughput
        self._record = record
        self.supervised = config.supervised
        self.settings = AlgorithmSettings.from_config(self.args)
        self.distillation = DistillationSettings.from_config(self.args)
        self._phase = phase
        self._has_stage = (
            not self.supervised and registry.get(self.settings.advantage_estimator).batch_stage is not None
        )
        self._makes_advantages = computes_in_process(config) and not self.supervised
        self._temperature = 1.0 if self.supervised else self.args.rollout_temperature
        self._forward_columns = self._missing_columns()
        self._records_routing = records_routing(config) and not self.supervised
        self._keeps_steps = self.args.save_debug_train_data is not None and not self.supervised
        self._log_prob_gap: float | None = None

    def train(
        self, reader: PartitionReader, version: int, *, update: bool = True, targets: CriticTargets | None = None
    ) -> PartitionOutcome:
        """All optimizer steps of a partition, with weights of `version` before the first.

        Args:
            update: False leaves the optimizer steps out, and with them the gradients.
            targets: takes what a critic is to learn from the rows, where advantages are computed in process.
        """
        check = StalenessCheck(version, self.config.staleness_bound)
        outcome = PartitionOutcome(check, list(self.args.opd_teacher_routes))
        self._log_prob_gap = None
        steps: Iterable[Iterable[ColumnBatch]] = (
            self._prepared(reader.parts(step), outcome, targets) for step in range(steps_per_rollout(self.config))
        )
        if "log_probs" in self._forward_columns and steps_per_rollout(self.config) > 1:
            steps = [list(parts) for parts in steps]
        for parts in steps:
            self._step(parts, outcome, update=update, targets=targets)
        outcome.log_prob_gap = self._log_prob_gap
        return outcome

    def _prepared(
        self, parts: Iterable[ColumnBatch], outcome: PartitionOutcome, targets: CriticTargets | None
    ) -> Iterable[ColumnBatch]:
        """Parts without rows that are too old, with the log-probs that this process computes."""
        for part in parts:
            if targets is not None:
                targets.expect(part)
            kept = part if self.supervised else outcome.staleness.keep(part)
            if kept.num_rows:
                complete = self._with_log_probs(kept)
                outcome.add(complete)
                yield complete

    def _step(
        self, parts: Iterable[ColumnBatch], outcome: PartitionOutcome, *, update: bool, targets: CriticTargets | None
    ) -> None:
        """One optimizer step; none when every row was too old, or without `update`."""
        totals = BatchTotals(0, 0)
        if self._has_stage or (self._makes_advantages and needs_whole_step(self.config)):
            waiting = list(parts)
            parts = [ColumnBatch.concat(waiting)] if waiting else []
        accumulated = False
        for part in parts:
            trained = self._with_advantages(part)
            if targets is not None:
                targets.add(trained)
            if not update:
                continue
            if self._has_stage:
                trained = self._with_stage(trained)
            if self._keeps_steps:
                outcome.recorded.append(trained)
            if self._record is not None:
                self._record(trained)
            outcome.show(trained)
            self.throughput.trained(trained["tokens"].lengths)
            masks = trained["loss_masks"]
            totals += batch_totals({name: column.values for name, column in trained.items()}, masks.offsets)
            with self._phase("train"):
                self.group.accumulate(
                    trained,
                    temperature=self._temperature,
                    max_tokens=self.args.max_tokens_per_gpu,
                    micro_batch_size=self.args.micro_batch_size,
                )
            accumulated = True
        if accumulated:
            reduction = supervised_reduction(self.config) if self.supervised else self.settings.reduction
            with self._phase("optimizer"):
                outcome.steps.append(self.group.finish_step(loss_scale(totals, reduction)))
            if self._keeps_steps:
                outcome.recorded_steps.append(RecordedStep(ColumnBatch.concat(outcome.recorded), outcome.steps[-1]))
                outcome.recorded = []

    def _with_stage(self, batch: ColumnBatch) -> ColumnBatch:
        """Add what the algorithm derives from all rows of the step and the present policy."""
        self.throughput.forward("log_probs", batch["tokens"].lengths)
        with self._phase("log_probs"):
            present = self.group.forward_log_probs(
                batch, temperature=self._temperature, max_tokens=forward_budget(self.config)
            )
        return batch.with_columns(**batch_stage_columns(batch, present, self.config))

    def _with_log_probs(self, batch: ColumnBatch) -> ColumnBatch:
        """Add the log-prob columns that no other role has added."""
        added: dict[str, Column] = {}
        if "log_probs" in self._forward_columns:
            with self._phase("log_probs"):
                added |= (self.old_policies or self.group).forward_policy(
                    batch,
                    temperature=self._temperature,
                    max_tokens=forward_budget(self.config),
                    experts=self._records_routing,
                )
            self.throughput.forward("log_probs", batch["tokens"].lengths)
            if not self.supervised:
                gap = np.abs(added["log_probs"].values - batch["rollout_log_probs"].values)
                self._log_prob_gap = max(self._log_prob_gap or 0.0, float(gap.max(initial=0.0)))
        other = _with_routing_of_its_own(batch)
        if "ref_log_probs" in self._forward_columns:
            with self._phase("ref_log_probs"):
                added["ref_log_probs"] = self.group.forward_log_probs(
                    other, temperature=self._temperature, max_tokens=forward_budget(self.config), weights=REFERENCE
                )
            self.throughput.forward("ref_log_probs", batch["tokens"].lengths)
        if "teacher_log_probs" in self._forward_columns:
            with self._phase("teacher_log_probs"):
                added |= model_columns(
                    self.group,
                    other,
                    top_k=self.distillation.opd_log_prob_top_k,
                    max_tokens=forward_budget(self.config),
                    weights=TEACHER,
                )
        return batch.with_columns(**added)

    def _with_advantages(self, batch: ColumnBatch) -> ColumnBatch:
        if self.supervised:
            return batch.with_columns(**supervised_columns(batch, self.config))
        if not self._makes_advantages:
            return batch
        with self._phase("advantages"):
            return batch.with_columns(**advantage_columns(batch, self.config))

    def _missing_columns(self) -> list[str]:
        """The log-prob columns that advantages, loss and metrics read, and that no other role adds."""
        if self.supervised:
            pairs = self.args.loss_type == "dpo"
            return (["log_probs"] if pairs else []) + (["ref_log_probs"] if uses_reference(self.config) else [])
        on_policy = old_is_current(self.config)
        spec = registry.get(self.settings.advantage_estimator)
        wanted = {
            *make_policy_loss(self.settings, true_on_policy=on_policy, distillation=self.distillation).columns,
            *needed_columns(spec, self.settings, true_on_policy=on_policy, distillation=self.distillation),
            *(("log_probs",) if self.args.get_mismatch_metrics else ()),
        }
        elsewhere = [*forward_columns(self.config).values(), *teacher_columns(self.config)]
        names = ("log_probs", "ref_log_probs", "teacher_log_probs")
        return [name for name in names if name in wanted and name not in elsewhere]


def _with_routing_of_its_own(batch: ColumnBatch) -> ColumnBatch:
    """The rows as another model than the policy computes them: with the experts that it chooses itself."""
    return batch.only([name for name in batch if name not in (ROUTED_EXPERTS, OWN_EXPERTS)])


class PartitionOutcome:
    """What training on a partition gave: metrics of each optimizer step, rows, and their ages."""

    PROBE_ROWS = 4

    def __init__(self, staleness: StalenessCheck, sources: Sequence[str] = ()) -> None:
        self.staleness = staleness
        self.sources = sources
        """Names of the teachers, where samples have different ones."""
        self.steps: list[dict[str, float]] = []
        self.rows = 0
        self.tokens = 0
        self.response_tokens = 0
        self.samples: list[int] = []
        """Index of each trained row over the whole run."""
        self.log_prob_gap: float | None = None
        self.probe: ColumnBatch | None = None
        """A few trained rows without media, tokens only; None where all have some."""
        self.recorded: list[ColumnBatch] = []
        """Parts of the step under way, for `recorded_steps`."""
        self.recorded_steps: list[RecordedStep] = []
        """Every step as it was trained, where the run keeps it (`--save-debug-train-data`)."""
        self._shown: dict[str, list[np.ndarray]] = {}
        self._policies: list[ColumnBatch] = []
        self._distilled: list[ColumnBatch] = []

    def add(self, batch: ColumnBatch) -> None:
        """Count rows that are trained."""
        if self.probe is None:
            media = batch[TRAIN_INPUTS].values if TRAIN_INPUTS in batch else [None] * batch.num_rows
            plain = [row for row, tensors in enumerate(media) if not tensors][: self.PROBE_ROWS]
            self.probe = batch.select(plain).only(["tokens", "response_lengths"]) if plain else None
        self.rows += batch.num_rows
        self.samples += batch["sample_indices"].values.tolist()
        self.tokens += int(batch["tokens"].lengths.sum())
        self.response_tokens += int(batch["response_lengths"].values.sum())
        if "log_probs" in batch and "rollout_log_probs" in batch:
            self._policies.append(batch.only(["log_probs", "rollout_log_probs", "loss_masks"]))
        if self.sources:
            self._distilled.append(batch.only(SOURCE_COLUMNS))

    def show(self, trained: ColumnBatch) -> None:
        """Look at what rows are trained on."""
        masks = trained["loss_masks"]
        for name in _SHOWN:
            if name in trained:
                column = trained[name]
                means = column.values if column.offsets is None else row_means(column.values, masks, masks.values)
                self._shown.setdefault(name, []).append(means)

    def metrics(self) -> dict[str, float]:
        """`train/...` means over the optimizer steps (none when nothing was trained), `mismatch/...` and staleness.

        `rollout/rewards` and others of `_SHOWN` are means over samples, of columns of tokens of each sample's mean over
        tokens in the loss; samples without such tokens are left out.
        """
        names = self.steps[0] if self.steps else ()
        metrics = {f"train/{name}": float(np.mean([step[name] for step in self.steps])) for name in names}
        metrics["perf/samples"] = float(self.rows)
        for name, parts in self._shown.items():
            values = np.concatenate(parts)
            if np.isfinite(values).any():
                metrics[f"rollout/{name}"] = float(np.nanmean(values))
        if self._policies:
            metrics |= mismatch(ColumnBatch.concat(self._policies))
        if self._distilled:
            metrics |= source_metrics(ColumnBatch.concat(self._distilled), self.sources)
        return metrics | step_sample_size(metrics, prefix="train/") | self.staleness.metrics()

"""From placed groups to sealed partitions of the stream.

What lives here: writing groups, and what a partition is sealed with. What does not: how groups come to be and which
partition they go to (`rollout.flow`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from relax_engine.components.mode import rows_per_part
from relax_engine.config import RunConfig
from relax_engine.multimodal.model import family_of
from relax_engine.observe.bundle import write_samples
from relax_engine.observe.rollouts.media import MediaStore
from relax_engine.observe.rollouts.recorder import Recorder
from relax_engine.observe.rollouts.tables import samples_table
from relax_engine.rollout.agents.rollout import AgentRollout
from relax_engine.rollout.convert import leave_one_out_metrics, rollout_metrics, to_columns
from relax_engine.rollout.custom_rollout import CustomRollout
from relax_engine.rollout.flow import GroupFlow
from relax_engine.rollout.hooks import RolloutHooks
from relax_engine.rollout.prefetch import PromptPrefetcher
from relax_engine.rollout.recorded_rollout import RecordedRollout
from relax_engine.rollout.reward_stage import RewardStage
from relax_engine.rollout.teachers import teacher_indices
from relax_engine.stream.client import StreamClient
from relax_engine.types import SampleGroup

logger = logging.getLogger(__name__)


class PartitionWriter:
    """Writes the groups of `train_<rollout_id>` as the flow places them, and seals it.

    The seal holds what is under way after the partition: a checkpoint taken when it was trained resumes with every
    group that was not in it or in an earlier one, and with what was already sampled of them. In colocate mode readers
    see no row before all are sampled and `hand_over`, which frees the devices for them, has returned.
    """

    def __init__(
        self,
        config: RunConfig,
        stream: StreamClient,
        flow: GroupFlow | CustomRollout | RecordedRollout,
        prompts: PromptPrefetcher,
        hooks: RolloutHooks,
        hand_over: Callable[[], Awaitable[None]],
        recorder: Recorder | None,
        media: MediaStore,
        agents: AgentRollout | None = None,
    ) -> None:
        """`media` keeps the images and audio of what the `recorder` records."""
        self.args = config.flat
        self.stream, self.flow, self.prompts, self.hooks = stream, flow, prompts, hooks
        self.hand_over = hand_over
        self.recorder, self.media, self.agents = recorder, media, agents
        self._at_once = config.mode == "colocate"
        self.rewards = RewardStage.from_config(self.args)
        self.teacher = partial(teacher_indices, args=self.args) if self.args.opd_teacher_routes else None
        self._transfer = rows_per_part(config) // self.args.n_samples_per_prompt
        self._media = family_of(self.args.hf_checkpoint) is not None

    async def write(self, rollout_id: int) -> dict[str, float]:
        """One partition from its first group to its seal; returns its mean reward and its seconds."""
        partition = f"train_{rollout_id}"
        started = time.time()
        groups: list[SampleGroup] = []
        sent = 0
        async for group in self.flow.partition(rollout_id):
            groups.append(group)
            if not self._at_once and len(groups) - sent >= self._transfer:
                await self._put(rollout_id, groups[sent:])
                sent = len(groups)
        await self.hand_over()
        for start in range(sent, len(groups), self._transfer):
            await self._put(rollout_id, groups[start : start + self._transfer])
        if self.args.save_debug_rollout_data is not None:
            await asyncio.to_thread(write_samples, self.args.save_debug_rollout_data, rollout_id, groups)
        metrics = self._metrics(rollout_id, groups, time.time() - started)
        meta = {"data_position": self.position(), "metrics": metrics}
        await asyncio.to_thread(self.stream.seal, partition, meta=meta)
        rewards = [sample.get_reward_value(self.args.reward_key) for group in groups for sample in group]
        return {"reward": sum(rewards) / max(1, len(rewards)), "seconds": metrics["perf/rollout_time"]}

    def position(self) -> dict[str, Any]:
        """Where a run goes on that trained everything placed so far."""
        state = self.flow.state()
        position = self.prompts.source.position_at(state["next_group"], state["pending"])
        return {**position.to_dict(), "groups": state["groups"]}

    async def _put(self, rollout_id: int, groups: Sequence[SampleGroup]) -> None:
        self.hooks.filter_samples(groups)
        batch = to_columns(
            groups,
            self.rewards,
            self.teacher,
            routed_experts=self.args.use_rollout_routing_replay,
            media=self._media,
        )
        await self.stream.aput(f"train_{rollout_id}", batch, deadline_s=self.args.wait_timeout)
        if self.recorder is not None:
            samples = [sample for group in groups for sample in group]
            make = partial(samples_table, rollout_id, samples, batch, time.time(), self.media)
            self.recorder.offer(len(samples), make)

    def _metrics(self, rollout_id: int, groups: list[SampleGroup], seconds: float) -> dict[str, float]:
        extra = {f"rollout/groups/{name}": float(count) for name, count in self.flow.counts.items()}
        self.flow.counts.clear()
        if self.agents is not None:
            counts = self.agents.take_counts()
            logger.info("AGENTIC ROLLOUT event=accounting_end rollout=%d %s", rollout_id, counts)
            extra |= {f"rollout/agents/{name}": float(count) for name, count in counts.items()}
        self.hooks.process_all(self.flow.seen, self.prompts)
        self.flow.seen.clear()
        # All groups of a partition may have been written by a process that died before it sealed it.
        logged = not groups or self.hooks.log_rollout(rollout_id, groups, extra, seconds)
        metrics = {} if logged else rollout_metrics(groups, self.args.reward_key)
        tokens = sum(sample.response_length for group in groups for sample in group)
        if groups and self.args.advantage_estimator == "rloo":
            metrics |= leave_one_out_metrics(groups, self.args.reward_key)
        metrics["perf/rollout_time"] = seconds
        longest = max((sample.response_length for group in groups for sample in group), default=0)
        metrics["perf/longest_sample_tokens_per_sec"] = longest / max(seconds, 1e-9)
        if self.recorder is not None:
            metrics["observe/rollouts_dropped"] = float(self.recorder.dropped)
            metrics["observe/media_left_out"] = float(self.media.left_out)
        metrics["perf/rollout_tokens_per_second"] = tokens / max(seconds, 1e-9)
        return metrics | extra

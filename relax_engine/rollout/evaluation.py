"""Scoring a policy on a data set: every prompt, `samples_per_prompt` responses, one pass."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.types import SampleGroup, SampleStatus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from relax_engine.rewards.executor import RewardExecutor

_GROUPS_PER_REQUEST = 32


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Scores of one pass. `rewards` has shape `[prompts, samples_per_prompt]`."""

    rewards: np.ndarray
    lengths: np.ndarray
    truncated_ratio: float
    groups: list[SampleGroup]

    @property
    def versions(self) -> list[int]:
        """Weight versions that sampled the responses, ascending: one, unless weights changed meanwhile."""
        return sorted({s.version for group in self.groups for sample in group for s in sample.weight_versions})

    @property
    def mean_reward(self) -> float:
        """Mean over all samples: accuracy where rewards are 0 or 1."""
        return float(self.rewards.mean())

    def to_data(self) -> dict[str, list[Any]]:
        """What hooks see of a data set: `rewards`, `truncated` and `samples`, an entry each per sample."""
        samples = [sample for group in self.groups for sample in group]
        return {
            "rewards": self.rewards.reshape(-1).tolist(),
            "truncated": [sample.status is SampleStatus.TRUNCATED for sample in samples],
            "samples": samples,
        }

    def metrics(self, prefix: str) -> dict[str, float]:
        """Named metrics: score, pass@k of rewards equal to 1, lengths, truncation."""
        metrics = {
            prefix: self.mean_reward,
            f"{prefix}-truncated_ratio": self.truncated_ratio,
            f"{prefix}/response_len/mean": float(self.lengths.mean()),
            f"{prefix}/response_len/median": float(np.median(self.lengths)),
            f"{prefix}/response_len/max": float(self.lengths.max()),
            f"{prefix}/response_len/min": float(self.lengths.min()),
        }
        size = self.rewards.shape[1]
        if size > 1:
            metrics[f"{prefix}-pass@{size}"] = float((self.rewards == 1).any(axis=1).mean())
        return metrics


async def evaluate_dataset(
    generate: Callable[[Sequence[SampleGroup]], Awaitable[None]],
    data: DataSettings,
    rewards: RewardExecutor,
    tokenizer: PreTrainedTokenizerBase,
    *,
    workers: int = 1,
    samples_per_prompt: int = 1,
    reward_key: str | None = None,
    limit: int | None = None,
) -> EvaluationResult:
    """Generate and score; prompts in file order, in fixed-size requests, `workers` of them at a time."""
    with contextlib.closing(PromptDataSource(data, tokenizer, samples_per_prompt)) as source:
        count = len(source) if limit is None else min(limit, len(source))
        groups = source.get_groups(count)
    chunks = [groups[start : start + _GROUPS_PER_REQUEST] for start in range(0, count, _GROUPS_PER_REQUEST)]

    async def work(mine: Sequence[list[SampleGroup]]) -> None:
        for chunk in mine:
            await generate(chunk)
            await rewards.score([sample for group in chunk for sample in group if sample.reward is None])

    async with asyncio.TaskGroup() as tasks:
        for index in range(workers):
            tasks.create_task(work(chunks[index::workers]))
    samples = [sample for group in groups for sample in group]
    return EvaluationResult(
        rewards=np.array([[sample.get_reward_value(reward_key) for sample in group] for group in groups]),
        lengths=np.array([sample.response_length for sample in samples]),
        truncated_ratio=float(np.mean([sample.status is SampleStatus.TRUNCATED for sample in samples])),
        groups=groups,
    )

"""Which reward scores a run, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relax_engine.rewards.terms import RewardTerm, read_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """The reward flags, detached from the rest of the configuration.

    Attributes:
        rm_type: Registered reward for samples whose `metadata["rm_type"]` names none.
        custom_rm_path: A reward function of your own, `package.module.function` or
            `path/file.py:function`; it scores every sample.
        group_rm: The function gets all samples of a prompt group and returns a list.
        reward_key: The score's key in rewards that are dictionaries.
        rm_type_infer: Guess the reward of a row that names none from its label and metadata.
        rm_type_fallback: The reward of rows for which none is known; `zero` scores them 0.
        terms: What the reward is the weighted sum of; empty for a single reward.
        failure_score: The score of a sample whose call fails; None makes that an error.
        timeout_s: Deadline of one call, in seconds.
        num_workers: Most worker processes for synchronous functions.
        max_concurrency: Most calls running at one time.
    """

    rm_type: str | None = None
    custom_rm_path: str | None = None
    group_rm: bool = False
    reward_key: str | None = None
    rm_type_infer: bool = False
    rm_type_fallback: str | None = None
    terms: tuple[RewardTerm, ...] = ()
    failure_score: float | None = None
    timeout_s: float = 60.0
    num_workers: int = 16
    max_concurrency: int = 64

    def __post_init__(self) -> None:
        for name in ("timeout_s", "num_workers", "max_concurrency"):
            if getattr(self, name) <= 0:
                raise ValueError(f"RewardSettings.{name} must be positive, got {getattr(self, name)}")
        if self.terms and self.group_rm:
            raise ValueError("--reward-terms are scored sample by sample, --group-rm group by group: choose one")

    @classmethod
    def from_config(cls, config: Any) -> RewardSettings:
        """Read the flags from `config.flat`."""
        return cls(
            rm_type=config.rm_type,
            custom_rm_path=config.custom_rm_path,
            group_rm=config.group_rm,
            reward_key=config.reward_key,
            rm_type_infer=config.rm_type_infer,
            rm_type_fallback=config.rm_type_fallback,
            terms=read_terms(config.reward_terms),
            failure_score=config.reward_failure_score,
            timeout_s=config.reward_timeout,
            num_workers=config.reward_num_workers,
            max_concurrency=config.reward_max_concurrency,
        )

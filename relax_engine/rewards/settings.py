"""Which reward scores a run, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """The reward flags, detached from the rest of the configuration.

    Attributes:
        rm_type: Registered reward for samples whose `metadata["rm_type"]` names none.
        custom_rm_path: A reward function of your own, `package.module.function` or
            `path/file.py:function`; it scores every sample.
        group_rm: The function gets all samples of a prompt group and returns a list.
        reward_key: The score's key in rewards that are dictionaries.
        timeout_s: Deadline of one call, in seconds.
        num_workers: Most worker processes for synchronous functions.
        max_concurrency: Most calls running at one time.
    """

    rm_type: str | None = None
    custom_rm_path: str | None = None
    group_rm: bool = False
    reward_key: str | None = None
    timeout_s: float = 60.0
    num_workers: int = 16
    max_concurrency: int = 64

    def __post_init__(self) -> None:
        for name in ("timeout_s", "num_workers", "max_concurrency"):
            if getattr(self, name) <= 0:
                raise ValueError(f"RewardSettings.{name} must be positive, got {getattr(self, name)}")

    @classmethod
    def from_config(cls, config: Any) -> RewardSettings:
        """Read the flags from `config.flat`."""
        return cls(
            rm_type=config.rm_type,
            custom_rm_path=config.custom_rm_path,
            group_rm=config.group_rm,
            reward_key=config.reward_key,
            timeout_s=config.reward_timeout,
            num_workers=config.reward_num_workers,
            max_concurrency=config.reward_max_concurrency,
        )

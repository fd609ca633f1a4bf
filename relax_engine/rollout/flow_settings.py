"""How a rollout fills its partitions, and what its flow of groups (`flow.py`) asks of its surroundings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from relax_engine.config import RunConfig
from relax_engine.config.roles import generates_ahead
from relax_engine.types import Sample, SampleGroup


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """How a rollout fills its partitions.

    Attributes:
        groups: Groups of a partition.
        surplus: Groups under way for a partition beyond those it has places for; 0 with `ahead`.
        ahead: Whether groups of later partitions start before a partition is full.
        batched: Whether groups that start together travel in one request per engine.
        partial: Whether what was cut off is continued, instead of begun again.
        mask_off_policy: Whether tokens older than the newest of their group are kept out of the loss.
        max_staleness: Weight versions that a trained token may be old.
        max_attempts: Rollouts' worth of groups that a filter may leave out for one partition.
        deadline_s: Longest wait for any next event.
    """

    groups: int
    surplus: int
    ahead: bool
    batched: bool
    partial: bool
    mask_off_policy: bool
    max_staleness: int
    max_attempts: int
    deadline_s: float

    @classmethod
    def from_config(cls, config: RunConfig) -> FlowSettings:
        """From the run's configuration."""
        args, ahead = config.flat, generates_ahead(config)
        surplus = 0 if ahead else args.over_sampling_batch_size - args.rollout_batch_size
        return cls(
            groups=args.rollout_batch_size,
            surplus=surplus,
            ahead=ahead,
            batched=not (ahead or surplus or args.use_agentic_rollout),
            partial=args.partial_rollout,
            mask_off_policy=args.mask_offpolicy_in_partial_rollout,
            max_staleness=config.staleness_bound,
            max_attempts=args.dynamic_sampling_max_attempts,
            deadline_s=args.wait_timeout,
        )


@dataclass(frozen=True, slots=True)
class FlowHooks:
    """What the flow asks of its surroundings.

    Attributes:
        admit: Numbers for so many new groups, once the staleness gate has slots for them.
        prompt: The group of a number, not begun.
        score: Fills the rewards of samples.
        give_up: Told the groups that end here, for the accounting and their slots.
        record: Told the name of a stretch of work, and when it began (seconds since the epoch).
    """

    admit: Callable[[int], Awaitable[list[int]]]
    prompt: Callable[[int], Awaitable[SampleGroup]]
    score: Callable[[Sequence[Sample]], Awaitable[None]]
    give_up: Callable[[Sequence[SampleGroup]], Awaitable[None]]
    record: Callable[[str, float], None]

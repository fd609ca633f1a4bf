"""What is simulated: the mode, sizes, phase times and devices of a run.

What lives here: the inputs and their checks. What does not: reading them from a run (`measured.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from relax_engine.errors import RelaxError
from relax_engine.simulation.timing import NOTHING, Timing

Mode = Literal["colocate", "fully_async", "hybrid"]

ROLES: dict[Mode, tuple[str, ...]] = {
    "colocate": ("actor",),
    "fully_async": ("rollout", "actor_fwd", "reference", "actor"),
    "hybrid": ("rollout", "actor"),
}
"""Roles with devices of their own. In colocate the actor's are everybody's."""


class PlanError(RelaxError):
    """Inputs that describe no run."""


class Plan(BaseModel):
    """A run in phase times. Names are those of the flags where there is one.

    `generation` and `reward` are times of one request, `handover` of a message; all others of a whole step's batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Mode = Field(default="fully_async", description="colocate, fully_async or hybrid.")
    rollout_batch_size: int = Field(ge=1, description="Prompt groups of one step.")
    max_staleness: float = Field(
        default=0,
        ge=0,
        description="Largest lag in weight versions; a fraction lets part of a step's groups be generated ahead.",
    )
    num_iters_per_train_update: int = Field(default=1, ge=1, description="Parts in which a step's groups go on.")
    streaming: bool = Field(
        default=True, description="Train each part as it comes; false where advantages look at the whole batch."
    )
    over_sampling_batch_size: int | None = Field(
        default=None, ge=1, description="Groups started for a step (colocate); as many as are trained by default."
    )
    partial_rollout: bool = Field(
        default=False, description="Surplus groups of a step go on in the next (colocate), instead of starting again."
    )
    concurrency: int | None = Field(
        default=None, ge=1, description="Requests in generation at once on the devices of `generation`; default any."
    )
    request_groups: int = Field(default=1, ge=1, description="Prompt groups of one request.")

    generation: Timing = Field(description="One request, from its first token to its last.")
    reward: Timing = Field(default=NOTHING, description="Scoring one request.")
    actor_fwd: Timing = Field(default=NOTHING, description="Log-probs of the old policy.")
    reference: Timing = Field(default=NOTHING, description="Log-probs of the reference.")
    advantages: Timing = Field(default=NOTHING, description="Advantages.")
    train: Timing = Field(description="Forward, backward and optimizer.")
    weight_sync: Timing = Field(default=NOTHING, description="Pushing the weights; generation pauses meanwhile.")
    handover: Timing = Field(default=NOTHING, description="Rows of one role reaching the next (not in colocate).")
    other: Timing = Field(default=NOTHING, description="The rest of the actor's step: checkpoint, probe, calls.")

    resource: dict[str, int] = Field(
        default_factory=dict, description="Devices by role; timings scale from the devices they hold on."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        unknown = set(self.resource) - set(ROLES[self.mode])
        if unknown:
            raise ValueError(
                f"resource names {sorted(unknown)}, but {self.mode} gives devices to {', '.join(ROLES[self.mode])}"
            )
        if self.mode == "colocate" and self.max_staleness:
            raise ValueError(f"max_staleness={self.max_staleness:g}: colocate generates nothing ahead; it must be 0")
        if self.mode != "colocate" and self.over_sampling_batch_size is not None:
            raise ValueError(f"over_sampling_batch_size is simulated in colocate only, not in {self.mode}")
        if self.over_sampling_batch_size is not None and self.over_sampling_batch_size < self.rollout_batch_size:
            raise ValueError(
                f"over_sampling_batch_size={self.over_sampling_batch_size} is less than "
                f"rollout_batch_size={self.rollout_batch_size}"
            )
        if self.rollout_batch_size % self.request_groups:
            raise ValueError(
                f"request_groups={self.request_groups} does not divide rollout_batch_size={self.rollout_batch_size}"
            )
        return self

    @classmethod
    def of(cls, value: Plan | Mapping[str, Any] | str | Path) -> Plan:
        """A plan from a plan, its fields, or a YAML or JSON file of them.

        Raises:
            PlanError: unreadable, unknown fields, or values that do not fit together.
        """
        if isinstance(value, Plan):
            return value
        if isinstance(value, str | Path):
            try:
                value = yaml.safe_load(Path(value).read_text())
            except (OSError, yaml.YAMLError) as error:
                raise PlanError(f"cannot read a plan from {value}: {error}") from error
        if not isinstance(value, Mapping):
            raise PlanError(f"a plan is a mapping of fields, got {type(value).__name__}")
        try:
            return cls(**value)
        except ValidationError as error:
            raise PlanError("\n".join(_describe(record) for record in error.errors(include_url=False))) from None

    def replace(self, **changes: Any) -> Plan:
        """A copy with `changes`, checked as a whole.

        Raises:
            PlanError: as for `of`.
        """
        return Plan.of({**self.model_dump(exclude_unset=True), **changes})

    def devices(self, role: str) -> int | None:
        """Devices of a role; in colocate everybody has the actor's."""
        return self.resource.get("actor" if self.mode == "colocate" else role)

    @property
    def slots(self) -> int | None:
        """Requests in generation at once on the rollout's devices; None for any number."""
        devices = self.devices("rollout")
        if self.concurrency is None or devices is None or self.generation.devices is None:
            return self.concurrency
        return max(1, self.concurrency * devices // self.generation.devices)


def _describe(record: Any) -> str:
    where = ".".join(str(part) for part in record["loc"])
    return f"plan: {where + ': ' if where else ''}{record['msg'].removeprefix('Value error, ')}"

"""Schedules of the retraining, read from the YAML file that `$RELAX_SCHEDULES` names when workflows are packaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from relax_engine.errors import ConfigError
from tasks.types import TrainingOverrides

VARIABLE = "RELAX_SCHEDULES"


class Schedule(BaseModel):
    """One launch plan: when it starts (`cron`, five fields, UTC) and with which inputs of `retraining`."""

    model_config = ConfigDict(extra="forbid")

    cron: str
    train_prompts: str
    heldout_prompts: str
    base_model: str
    config: str
    format: str = "verl"
    overrides: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    margin: float = 0.0

    def inputs(self, name: str) -> dict[str, Any]:
        """What the workflow is called with."""
        values = self.model_dump(exclude={"cron", "overrides"})
        return {**values, "name": name, "overrides": TrainingOverrides(**self.overrides)}


def read_schedules() -> dict[str, Schedule]:
    """Name of the pipeline -> its schedule; none where the variable is not set.

    Raises:
        ConfigError: the file is not a mapping of names to schedules.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return {}
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ConfigError(f"{path}, which ${VARIABLE} names, holds no mapping from pipelines to schedules")
    schedules = {}
    for name, values in content.items():
        try:
            schedules[str(name)] = Schedule.model_validate(values)
            schedules[str(name)].inputs(str(name))
        except (ValidationError, TypeError) as error:
            raise ConfigError(f"the schedule of {name!r} in {path}: {error}") from None
    return schedules

"""The configuration of one run, in whichever of four ways it was given.

What lives here: `RunConfig` and its conversions. What does not: fields (`sections/`), command lines
(`parse`), and the question whether a configuration can run (`doctor`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from relax_engine.config.derive import derived_defaults
from relax_engine.config.fields import all_fields
from relax_engine.config.files import read_config_file, with_custom_settings
from relax_engine.config.flat import FlatView
from relax_engine.config.messages import describe
from relax_engine.config.model_presets import with_model_preset
from relax_engine.config.naming import sectioned
from relax_engine.config.sections.access import Access
from relax_engine.config.sections.agentic import Agentic
from relax_engine.config.sections.algorithm import Algorithm
from relax_engine.config.sections.checkpoint import Checkpoint
from relax_engine.config.sections.data import Data
from relax_engine.config.sections.debug import Debug
from relax_engine.config.sections.distillation import Distillation
from relax_engine.config.sections.elastic import Elastic
from relax_engine.config.sections.evaluation import Evaluation
from relax_engine.config.sections.health import Health
from relax_engine.config.sections.logging import Logging
from relax_engine.config.sections.lora import Lora
from relax_engine.config.sections.media import Media
from relax_engine.config.sections.model import Model
from relax_engine.config.sections.optimizer import Optimizer
from relax_engine.config.sections.parallelism import Parallelism
from relax_engine.config.sections.resources import Resources
from relax_engine.config.sections.reward import Reward
from relax_engine.config.sections.rollout import Rollout
from relax_engine.config.sections.weight_sync import WeightSync
from relax_engine.errors import ConfigError
from relax_engine.utils.redact import redact_value

Mode = Literal["colocate", "fully_async", "hybrid"]


class RunConfig(BaseModel):
    """Everything that decides what a run does.

    Immutable. Fields whose default depends on others are filled in when the configuration is built, so
    every reader sees the value in force; `replace` derives them anew from what was set explicitly.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    resources: Resources = Field(default_factory=Resources)
    data: Data = Field(default_factory=Data)
    media: Media = Field(default_factory=Media)
    rollout: Rollout = Field(default_factory=Rollout)
    reward: Reward = Field(default_factory=Reward)
    algorithm: Algorithm = Field(default_factory=Algorithm)
    distillation: Distillation = Field(default_factory=Distillation)
    model: Model = Field(default_factory=Model)
    lora: Lora = Field(default_factory=Lora)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    parallelism: Parallelism = Field(default_factory=Parallelism)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    weight_sync: WeightSync = Field(default_factory=WeightSync)
    health: Health = Field(default_factory=Health)
    elastic: Elastic = Field(default_factory=Elastic)
    access: Access = Field(default_factory=Access)
    logging: Logging = Field(default_factory=Logging)
    agentic: Agentic = Field(default_factory=Agentic)
    debug: Debug = Field(default_factory=Debug)
    custom: dict[str, Any] = Field(default_factory=dict, description="Keys of --custom-config-path that are no flags.")

    @model_validator(mode="after")
    def _fill_in_derived(self) -> Self:
        by_section: dict[str, dict[str, Any]] = {}
        for name, value in derived_defaults(self._field_values()).items():
            by_section.setdefault(all_fields()[name].section, {})[name] = value
        for section, values in by_section.items():
            # A copy, because a caller may own the section; its set of explicitly given fields stays as it was.
            copy = getattr(self, section).model_copy()
            copy.__dict__.update(values)
            self.__dict__[section] = copy
        return self

    @classmethod
    def from_flat(cls, **values: Any) -> Self:
        """Build from values by flag name (`rollout_batch_size=32`, `sglang_mem_fraction_static=0.8`).

        Raises:
            ConfigError: an unknown name (with the nearest known one), or values of a wrong type or out of bounds.
        """
        return cls.from_sections(sectioned(values))

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> Self:
        """Build from `{section: {field: value}}`, and the files that flags name.

        Raises:
            ConfigError: as for `from_flat`.
        """
        return cls._build(with_custom_settings(with_model_preset(sections)))

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Build from a YAML file of flat or sectioned keys.

        Raises:
            ConfigError: the file cannot be read, or as for `from_flat`.
        """
        return cls.from_flat(**read_config_file(path))

    @classmethod
    def _build(cls, sections: Mapping[str, Any]) -> Self:
        try:
            return cls.model_validate(sections)
        except ValidationError as error:
            raise ConfigError(describe(error)) from None

    def _field_values(self) -> dict[str, Any]:
        return {name: getattr(getattr(self, spec.section), name) for name, spec in all_fields().items()}

    @cached_property
    def flat(self) -> FlatView:
        """All fields, pass-through arguments and custom keys by name; what user hooks receive as `args`."""
        values = self._field_values()
        passed = {f"sglang_{key}": value for key, value in self.rollout.sglang_args.items()}
        passed |= {f"router_{key}": value for key, value in self.rollout.router_args.items()}
        return FlatView(passed | self.custom | values)

    @property
    def mode(self) -> Mode:
        """The execution mode."""
        if self.resources.hybrid:
            return "hybrid"
        return "fully_async" if self.resources.fully_async else "colocate"

    @property
    def rollouts_ahead(self) -> int:
        """Rollouts that sampling may run ahead of training: `max_staleness`, and 0 in colocate mode."""
        return 0 if self.mode == "colocate" else self.rollout.max_staleness

    @property
    def supervised(self) -> bool:
        """Whether the rows come from files (`sft`, `dpo`, `seq_cls`), rather than from sampling and rewards."""
        return self.algorithm.loss_type in ("sft", "dpo", "seq_cls")

    @property
    def staleness_bound(self) -> int:
        """The oldest that a trained sample may be, in weight versions.

        It is what sampling runs ahead, or what partial rollout carries over in colocate mode, and the versions that
        `update_weights_interval` does not publish.
        """
        carried = self.rollout.max_staleness if self.rollout.partial_rollout else 0
        return max(self.rollouts_ahead, carried) + self.weight_sync.update_weights_interval - 1

    def explicit(self) -> dict[str, Any]:
        """The fields that were given, by flat name, without defaults and derived values."""
        given: dict[str, Any] = {}
        for name, spec in all_fields().items():
            section = getattr(self, spec.section)
            if name in section.model_fields_set:
                given[name] = getattr(section, name)
        return given

    def changed(self) -> dict[str, Any]:
        """The fields that were given and are not what they would have been anyway, by flat name."""
        values = self._field_values()

        def otherwise(name: str) -> Any:
            default = all_fields()[name].default
            return derived_defaults({**values, name: None}).get(name) if default is None else default

        return {name: value for name, value in self.explicit().items() if value != otherwise(name)}

    def replace(self, **changes: Any) -> Self:
        """A copy with `changes` by flag name; derived defaults follow the changes.

        Raises:
            ConfigError: as for `from_flat`.
        """
        sections = sectioned(self.explicit() | changes)
        if "custom_config_path" in changes:
            return self.from_sections(sections)
        return self._build({**sections, "custom": {**self.custom, **sections.get("custom", {})}})

    def to_dict(self) -> dict[str, Any]:
        """All values in force by section, ready for JSON."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """All values in force as sectioned YAML for people and records; `from_yaml` reads it back.

        Credentials are hidden: what is written here is shown, kept beside results and published.
        """
        return yaml.safe_dump(redact_value(self.to_dict()), sort_keys=False, allow_unicode=True)

    def digest(self) -> str:
        """SHA-256 (hex) of all values in force; equal configurations have equal digests."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Pydantic's copy, without the cached flat view of the original."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("flat", None)
        return copy

    def __getstate__(self) -> dict[Any, Any]:
        """Pickle without the cached flat view."""
        state = super().__getstate__()
        return {**state, "__dict__": {key: value for key, value in state["__dict__"].items() if key != "flat"}}

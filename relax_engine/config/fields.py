"""The index of every field: its section, flag, type, bounds and help, read from the section classes.

What lives here: facts about fields. What does not: parsing (`flags`, `parse`) and values (`run_config`).
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from relax_engine.config.sections.access import Access
from relax_engine.config.sections.agentic import Agentic
from relax_engine.config.sections.algorithm import Algorithm
from relax_engine.config.sections.base import Section
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

SECTIONS: Mapping[str, type[Section]] = {
    "resources": Resources,
    "data": Data,
    "media": Media,
    "rollout": Rollout,
    "reward": Reward,
    "algorithm": Algorithm,
    "distillation": Distillation,
    "model": Model,
    "lora": Lora,
    "optimizer": Optimizer,
    "parallelism": Parallelism,
    "checkpoint": Checkpoint,
    "evaluation": Evaluation,
    "weight_sync": WeightSync,
    "health": Health,
    "elastic": Elastic,
    "access": Access,
    "logging": Logging,
    "agentic": Agentic,
    "debug": Debug,
}

PASS_THROUGH: Mapping[str, str] = {"sglang_": "sglang_args", "router_": "router_args"}
"""Prefixes whose unlisted names are passed on, and the field that collects them."""


def flag_name(name: str) -> str:
    """`rollout_batch_size` -> `--rollout-batch-size`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of one section."""

    name: str
    section: str
    info: FieldInfo

    @property
    def flag(self) -> str:
        """The command-line spelling, with dashes."""
        return flag_name(self.name)

    @property
    def is_bool(self) -> bool:
        """Whether the flag stands alone, without a value."""
        return self.info.annotation is bool

    @property
    def takes_many(self) -> bool:
        """Whether the flag takes several values."""
        annotation = self.info.annotation
        return get_origin(annotation) is list or annotation == dict[str, list[str]]

    @property
    def default(self) -> Any:
        """The default value."""
        return self.info.get_default(call_default_factory=True, validated_data={})

    @property
    def default_text(self) -> str:
        """The default as it would be typed; empty for none, for an empty container and for a flag that is off."""
        default = self.default
        if isinstance(default, bool):
            return "on" if default else ""
        if default in (None, [], {}):
            return ""
        return json.dumps(default) if isinstance(default, dict | list) else str(default)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values of an enumerated field, else empty."""
        for annotation in _alternatives(self.info.annotation):
            if get_origin(annotation) is Literal:
                return get_args(annotation)
        return ()

    @property
    def unit(self) -> str | None:
        """What one of the number is."""
        extra = self.info.json_schema_extra
        return str(extra["unit"]) if isinstance(extra, dict) and "unit" in extra else None

    @property
    def bounds(self) -> str:
        """The bounds, as in `>= 0, < 1`; empty without bounds."""
        symbols = {annotated_types.Ge: ">=", annotated_types.Gt: ">", annotated_types.Le: "<=", annotated_types.Lt: "<"}
        parts = []
        for item in self.info.metadata:
            symbol = symbols.get(type(item))
            if symbol:
                parts.append(f"{symbol} {getattr(item, type(item).__name__.lower())}")
        return ", ".join(parts)

    @property
    def type_name(self) -> str:
        """The type as a reader of the documentation would name it."""
        if self.choices:
            return " | ".join(str(choice) for choice in self.choices)
        first = _alternatives(self.info.annotation)[0]
        origin = get_origin(first)
        if origin is list:
            return f"list of {get_args(first)[0].__name__}"
        if origin is dict:
            return "name path ..." if self.takes_many else "JSON"
        return str(getattr(first, "__name__", first))

    @property
    def help(self) -> str:
        """The docstring under the field, on one line."""
        return " ".join((self.info.description or "").split())


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(item for item in get_args(annotation) if item is not type(None))
    return (annotation,)


@cache
def all_fields() -> Mapping[str, FieldSpec]:
    """Every field by its flat name, in the order of the sections.

    Raises:
        RuntimeError: two sections share a field name.
    """
    index: dict[str, FieldSpec] = {}
    for section, model in SECTIONS.items():
        for name, info in model.model_fields.items():
            if name in index:
                raise RuntimeError(f"field {name} occurs in sections {index[name].section} and {section}")
            index[name] = FieldSpec(name, section, info)
    return index


def pass_through_field(name: str) -> tuple[str, str] | None:
    """The collecting field and the bare name of a pass-through such as `sglang_mem_fraction_static`."""
    if name in all_fields():
        return None
    for prefix, field in PASS_THROUGH.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return field, name[len(prefix) :]
    return None

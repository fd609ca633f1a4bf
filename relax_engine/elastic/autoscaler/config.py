"""The autoscaler's configuration: thresholds, durations, steps, cooldowns and bounds, read from YAML.

What lives here: values and what must hold between them. What does not: what they are compared with (`rules.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator

from relax_engine.config.files import read_config_file
from relax_engine.config.sections.base import Section, flag
from relax_engine.errors import ConfigError
from relax_engine.utils.suggest import nearest

FLAG = "--autoscaler-config"


class ScaleOutRules(Section):
    """Engines are added when ANY of the four conditions holds."""

    token_usage: float = flag(0.85, gt=0, le=1)
    """Mean share of the engines' cache in use above which engines are added."""
    token_usage_duration: float = flag(30.0, ge=0, le=3600)
    """Seconds for which it must have been above that without a break."""
    queued_per_engine: float = flag(10.0, ge=0)
    """Waiting requests per engine above which engines are added."""
    queue_time_p95: float = flag(5.0, gt=0)
    """Seconds of waiting, 95th percentile over `latency_window`, above which engines are added."""
    ttft_p95: float = flag(10.0, gt=0)
    """Seconds to the first token, 95th percentile over `latency_window`, above which engines are added."""
    latency_window: float = flag(60.0, gt=0, le=3600)
    """Seconds over which the percentiles are taken."""
    usage_base: float = flag(0.7, ge=0, le=1)
    """One engine is added for each `usage_per_engine` of token usage above this."""
    usage_per_engine: float = flag(0.1, gt=0, le=1)
    """Token usage that one added engine stands for."""
    queue_base: int = flag(5, ge=0)
    """Waiting requests per engine that are taken for normal."""
    queued_per_added_engine: int = flag(20, ge=1)
    """One engine is added for so many waiting requests above the normal ones."""
    max_step: int = flag(4, ge=1, le=64)
    """Most engines that are added at a time."""
    cooldown: float = flag(60.0, ge=0, le=86400)
    """Seconds without an action before engines are added again."""


class ScaleInRules(Section):
    """One engine is removed when ALL of these hold, no request waits, and every engine gave its metrics."""

    token_usage: float = flag(0.3, ge=0, lt=1)
    """Mean share of the engines' cache in use below which an engine is removed."""
    token_usage_duration: float = flag(120.0, ge=0, le=86400)
    """Seconds for which it must have been below that without a break."""
    throughput_variation: float = flag(0.1, gt=0)
    """Generated tokens per second must vary less than this over that time (standard deviation over mean)."""
    projected_usage: float = flag(0.5, gt=0, le=1)
    """The usage of the engines that would be left must stay below this."""
    cooldown: float = flag(300.0, ge=0, le=86400)
    """Seconds without an action before an engine is removed again."""


class AutoscalerConfig(Section):
    """The whole file."""

    enabled: bool = True
    """Act from the start; otherwise only after `POST /autoscaler/enable`."""
    recommend_only: bool = False
    """Decide and record, but never ask the rollout for anything."""
    model_name: str = "default"
    """Which engines: those of this model."""
    min_engines: int = flag(1, ge=1, le=4096)
    """Fewest engines. The initial ones of a run stay in any case."""
    max_engines: int = flag(32, ge=1, le=4096)
    """Most engines."""
    collect_interval: float = flag(10.0, gt=0, le=600)
    """Seconds between two looks at the engines' metrics."""
    decide_interval: float = flag(30.0, gt=0, le=3600)
    """Seconds between two decisions."""
    history: int = flag(200, ge=1, le=100_000)
    """Decisions that are remembered."""
    request_timeout: float = flag(10.0, gt=0, le=600)
    """Seconds that the rollout and engines have to answer."""
    scale_out: ScaleOutRules = ScaleOutRules()
    """When engines are added."""
    scale_in: ScaleInRules = ScaleInRules()
    """When an engine is removed."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_engines > self.max_engines:
            raise ValueError(f"min_engines {self.min_engines} is above max_engines {self.max_engines}")
        if self.scale_in.token_usage >= self.scale_out.token_usage:
            raise ValueError(
                f"scale_in.token_usage {self.scale_in.token_usage:g} must be below scale_out.token_usage "
                f"{self.scale_out.token_usage:g}, or engines would come and go"
            )
        if self.scale_in.projected_usage >= self.scale_out.token_usage:
            raise ValueError(
                f"scale_in.projected_usage {self.scale_in.projected_usage:g} must be below scale_out.token_usage "
                f"{self.scale_out.token_usage:g}, or a removed engine would be missed at once"
            )
        if self.decide_interval < self.collect_interval:
            raise ValueError(
                f"decide_interval {self.decide_interval:g} is shorter than collect_interval {self.collect_interval:g}"
            )
        return self

    @property
    def longest_gap(self) -> float:
        """Seconds between two looks at the metrics after which what came before counts no longer."""
        return 3.0 * self.collect_interval

    @property
    def memory(self) -> float:
        """Seconds of metrics that the rules look at, and a gap more."""
        longest = (
            self.scale_out.token_usage_duration,
            self.scale_out.latency_window,
            self.scale_in.token_usage_duration,
        )
        return max(longest) + self.longest_gap


def read_autoscaler_config(path: str | Path) -> AutoscalerConfig:
    """The configuration in a YAML file; what it leaves out has its default.

    Raises:
        ConfigError: it cannot be read, or values are unknown (with the nearest known name), of a wrong type or out of
            bounds.
    """
    try:
        return AutoscalerConfig.model_validate(read_config_file(path, FLAG))
    except ValidationError as error:
        lines = [_describe(record) for record in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{FLAG} {path}: {line}" for line in lines)) from None


def _describe(record: Any) -> str:
    location = [str(part) for part in record["loc"]]
    name = ".".join(location)
    if record["type"] == "extra_forbidden":
        section = AutoscalerConfig.model_fields[location[0]].annotation if len(location) > 1 else AutoscalerConfig
        known = getattr(section, "model_fields", {})
        match = nearest(location[-1], known)
        hint = f"did you mean {match}?" if match else f"known are {', '.join(known)}"
        return f"there is no {name}; {hint}"
    if record["type"] == "value_error":
        return str(record["ctx"]["error"])
    return f"{name} {record['input']!r}: {record['msg'][:1].lower() + record['msg'][1:]}"

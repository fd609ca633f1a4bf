"""What an algorithm's declared constraints say about a configuration.

What lives here: turning an `AlgorithmSpec` into findings. What does not: rules that hold for every
algorithm (`relax_engine.config.doctor`). Nothing here names an algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from relax_engine.algorithms.spec import AlgorithmSpec


@dataclass(frozen=True, slots=True)
class Violation:
    """A flag that contradicts the algorithm: its field name and value, why, and the way out."""

    field: str
    value: object
    message: str


def violations(spec: AlgorithmSpec, config: Any) -> list[Violation]:
    """Everything in `config` that `spec` cannot work with.

    `config` is any object whose attributes are flag field names; missing ones count as unset.
    """
    return list(_violations(spec, config))


def _violations(spec: AlgorithmSpec, config: Any) -> Iterator[Violation]:
    def value(field: str, default: object) -> Any:
        return getattr(config, field, default)

    def found(field: str, default: object, reason: str, fix: str) -> Violation:
        got = value(field, default)
        return Violation(field, got, f"{_flag(field)} {got}: {spec.name} {reason}; {fix}")

    group_size = value("n_samples_per_prompt", spec.min_group_size)
    if group_size < spec.min_group_size:
        yield found(
            "n_samples_per_prompt",
            spec.min_group_size,
            "compares the samples of a group",
            f"use --n-samples-per-prompt {spec.min_group_size} or more",
        )
    if not spec.accepts_kl_coef and value("kl_coef", 0.0) != 0.0:
        yield found(
            "kl_coef",
            0.0,
            "has no per-token reward for a KL penalty to enter, so the coefficient would be ignored",
            "use --use-kl-loss with --kl-loss-coef",
        )
    if spec.forbids_stale and value("max_staleness", 0) > 0:
        yield found(
            "max_staleness", 0, "has no importance ratio, so stale data bias its gradient", "use --max-staleness 0"
        )
    if spec.forbids_stale and value("partial_rollout", False):
        yield found("partial_rollout", False, "needs responses of one weight version", "remove --partial-rollout")
    if spec.requires_per_token_loss and not value("calculate_per_token_loss", True):
        yield found(
            "calculate_per_token_loss",
            False,
            "is a mean over all tokens of the batch",
            "add --calculate-per-token-loss",
        )
    if spec.requires_rewards_normalization and value("disable_rewards_normalization", False):
        yield found(
            "disable_rewards_normalization",
            False,
            "is defined by its reward normalisation",
            "remove --disable-rewards-normalization",
        )
    normalize = value("normalize_advantages", spec.normalize_advantages == "required")
    if normalize and spec.normalize_advantages == "forbidden":
        yield found(
            "normalize_advantages",
            True,
            "has a baseline of its own, which whitening would undo",
            "remove --normalize-advantages",
        )
    if not normalize and spec.normalize_advantages == "required":
        yield found("normalize_advantages", False, "normalises advantages over the batch", "add --normalize-advantages")
    for rule in spec.constraints:
        got = value(rule.field, rule.default)
        if not rule.holds(got):
            yield Violation(
                rule.field, got, f"{_flag(rule.field)} {got}: {spec.name} {rule.reason}; it needs {rule.requirement}"
            )


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")

"""What an algorithm's declared constraints say about a configuration.

What lives here: turning an `AlgorithmSpec` into findings. What does not: rules that hold for every
algorithm (`relax_engine.config.doctor`). Nothing here names an algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from relax_engine.algorithms.spec import AlgorithmSpec, Constraint


@dataclass(frozen=True, slots=True)
class Violation:
    """A flag that contradicts the algorithm: its field name and value, why, and the way out."""

    field: str
    value: object
    reason: str
    fix: str


def violations(spec: AlgorithmSpec, config: Any) -> list[Violation]:
    """Everything in `config` that `spec` cannot work with.

    `config` is any object whose attributes are flag field names; missing ones count as unset.
    """
    found = []
    for rule in (*_declared(spec, config), *spec.constraints):
        value = getattr(config, rule.field, rule.default)
        if not rule.holds(value):
            found.append(Violation(rule.field, value, f"{spec.name} {rule.reason}", rule.fix))
    return found


def _declared(spec: AlgorithmSpec, config: Any) -> Iterator[Constraint]:
    """The rules that the spec's attributes stand for."""
    yield Constraint(
        field="n_samples_per_prompt",
        holds=lambda size: size >= spec.min_group_size,
        reason="compares the samples of a group",
        fix=f"--n-samples-per-prompt {spec.min_group_size} or more",
        default=spec.min_group_size,
    )
    if not spec.accepts_kl_coef:
        yield Constraint(
            field="kl_coef",
            holds=lambda coefficient: coefficient == 0.0,
            reason=spec.why_no_kl_coef,
            fix="use --use-kl-loss with --kl-loss-coef",
            default=0.0,
        )
    if spec.forbids_stale:
        yield Constraint(
            field="max_staleness",
            holds=lambda versions: versions == 0,
            reason="has no importance ratio, so stale data bias its gradient",
            fix="--max-staleness 0",
            default=0,
        )
        yield _off("partial_rollout", "needs responses of one weight version")
    if spec.requires_token_sums and getattr(config, "loss_constant_length", None) is None:
        yield _on("calculate_per_token_loss", "counts every token the same, whatever the length of its response")
    if spec.requires_rewards_normalization:
        yield _off("disable_rewards_normalization", "is defined by its reward normalisation")
    if spec.normalize_advantages == "required":
        yield _on("normalize_advantages", "normalises advantages over the batch")
    if spec.normalize_advantages == "forbidden":
        yield _off("normalize_advantages", "has a baseline of its own, which whitening would undo")


def _on(field: str, reason: str) -> Constraint:
    return Constraint(field=field, holds=bool, reason=reason, fix=f"add {_flag(field)}", default=True)


def _off(field: str, reason: str) -> Constraint:
    return Constraint(
        field=field, holds=lambda given: not given, reason=reason, fix=f"remove {_flag(field)}", default=False
    )


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")

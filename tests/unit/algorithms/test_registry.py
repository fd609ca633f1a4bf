"""Looking algorithms up, declaring one's own, and what constraints say about a configuration."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import pytest

from relax_engine.algorithms import AlgorithmSettings, Violation, get, names, register, violations
from relax_engine.algorithms.registry import BUILTIN
from relax_engine.algorithms.spec import Constraint

GRPO = get("grpo")


def test_unknown_name_lists_the_nearest_and_all() -> None:
    with pytest.raises(KeyError, match=r"unknown algorithm 'gropo'; did you mean 'grpo'\? \(known: .*grpo"):
        get("gropo")


def test_own_algorithm_is_found_and_names_stay_unique() -> None:
    mine = dataclasses.replace(GRPO, name="test_registry_mine")
    assert register(mine) is get("test_registry_mine")
    assert register(mine) is mine  # registering the same object again is harmless
    assert "test_registry_mine" in names()
    with pytest.raises(ValueError, match="already registered"):
        register(dataclasses.replace(GRPO, name="test_registry_mine"))
    with pytest.raises(ValueError, match="already registered"):
        register(GRPO)


def test_names_and_constraints_do_not_import_torch() -> None:
    code = (
        "import sys, relax_engine.algorithms as A; A.names(); A.violations(A.get('grpo'), object());"
        "sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'megatron')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_settings_take_defaults_for_missing_attributes() -> None:
    settings = AlgorithmSettings.from_config(SimpleNamespace(eps_clip=0.1, unrelated=3))
    assert (settings.eps_clip, settings.clip_high, settings.kl_loss_type) == (0.1, 0.1, "k1")
    assert settings.reduction == "sample_mean"
    assert AlgorithmSettings(calculate_per_token_loss=True).reduction == "token_mean"
    assert AlgorithmSettings(calculate_per_token_loss=True, loss_constant_length=9).reduction == "constant"


@pytest.mark.parametrize("name", ["gspo", "rloo"])
def test_kl_in_the_reward_is_refused_with_the_reason_and_what_to_use(name: str) -> None:
    allowed = SimpleNamespace(kl_coef=0.0, n_samples_per_prompt=8)
    assert violations(get(name), allowed) == []
    (found,) = violations(get(name), SimpleNamespace(kl_coef=0.1))
    assert (found.field, found.value) == ("kl_coef", 0.1)
    assert found.reason == f"{name} {get(name).why_no_kl_coef}"
    assert found.fix == "use --use-kl-loss with --kl-loss-coef"


def test_everything_else_takes_a_kl_penalty() -> None:
    refuse = [name for name in BUILTIN if violations(get(name), SimpleNamespace(kl_coef=0.1))]
    assert refuse == ["gspo", "rloo"]


def test_every_declared_constraint_is_enforced() -> None:
    strict = dataclasses.replace(
        GRPO,
        name="strict",
        min_group_size=2,
        forbids_stale=True,
        requires_token_sums=True,
        requires_rewards_normalization=True,
        normalize_advantages="required",
        accepts_kl_coef=False,
        constraints=(Constraint(field="gamma", holds=lambda g: g == 1, reason="adds up", fix="--gamma 1"),),
    )
    config = SimpleNamespace(
        n_samples_per_prompt=1,
        kl_coef=0.5,
        max_staleness=2,
        partial_rollout=True,
        calculate_per_token_loss=False,
        disable_rewards_normalization=True,
        normalize_advantages=False,
        gamma=0.9,
    )
    found = {violation.field: violation for violation in violations(strict, config)}
    assert set(found) == set(vars(config))
    assert found["max_staleness"].fix == "--max-staleness 0"
    assert found["partial_rollout"].fix == "remove --partial-rollout"
    assert found["normalize_advantages"].fix == "add --normalize-advantages"
    assert found["gamma"] == Violation("gamma", 0.9, "strict adds up", "--gamma 1")
    satisfied = SimpleNamespace(n_samples_per_prompt=2, calculate_per_token_loss=True, normalize_advantages=True)
    assert violations(strict, SimpleNamespace(**vars(satisfied), gamma=1)) == []
    forbids = dataclasses.replace(GRPO, normalize_advantages="forbidden")
    (only,) = violations(forbids, SimpleNamespace(normalize_advantages=True))
    assert only.fix == "remove --normalize-advantages"

"""The role table of the modes."""

from __future__ import annotations

import pytest

from relax_engine.config import RunConfig
from relax_engine.config.roles import data_parallel_size, devices_needed, required_roles, sharing_roles

RESOURCE = {
    "actor": (1, 4),
    "critic": (1, 3),
    "rollout": (1, 2),
    "reference": (1, 1),
    "actor_fwd": (1, 1),
    "advantages": (1, 0),
}


@pytest.mark.parametrize(
    ("flags", "roles", "devices"),
    [
        ({}, ("rollout", "actor"), 4),
        ({"loss_type": "sft"}, ("sft", "actor"), 4),
        ({"fully_async": True}, ("rollout", "advantages", "actor"), 6),
        ({"fully_async": True, "max_staleness": 1}, ("rollout", "actor_fwd", "advantages", "actor"), 7),
        (
            {"fully_async": True, "num_steps_per_rollout": 2, "use_kl_loss": True, "kl_loss_coef": 0.1},
            ("rollout", "actor_fwd", "reference", "advantages", "actor"),
            8,
        ),
        (
            {"fully_async": True, "max_staleness": 1, "use_rollout_logprobs": True},
            ("rollout", "advantages", "actor"),
            6,
        ),
        ({"fully_async": True, "use_kl_loss": True}, ("rollout", "advantages", "actor"), 6),
        ({"hybrid": True, "max_staleness": 2, "use_kl_loss": True, "kl_loss_coef": 0.1}, ("rollout", "actor"), 6),
        ({"fully_async": True, "max_staleness": 3, "true_on_policy_mode": True}, ("rollout", "advantages", "actor"), 6),
        ({"fully_async": True, "keep_old_actor": True}, ("rollout", "actor_fwd", "advantages", "actor"), 7),
        ({"fully_async": True, "update_weights_interval": 2}, ("rollout", "actor_fwd", "advantages", "actor"), 7),
    ],
)
def test_roles_and_devices(flags: dict[str, object], roles: tuple[str, ...], devices: int) -> None:
    config = RunConfig.from_flat(resource=RESOURCE, **flags)
    assert required_roles(config) == roles
    assert devices_needed(config) == devices


@pytest.mark.parametrize(
    ("flags", "roles", "shared", "devices"),
    [
        ({}, ("rollout", "critic", "actor"), ("rollout", "critic", "actor"), 4),
        ({"hybrid": True, "max_staleness": 1}, ("rollout", "critic", "actor"), ("critic", "actor"), 6),
        (
            {"fully_async": True, "max_staleness": 1, "kl_coef": 0.1},
            ("rollout", "actor_fwd", "reference", "critic", "advantages", "actor"),
            (),
            11,
        ),
        ({"loss_type": "sft"}, ("sft", "actor"), (), 4),
    ],
)
def test_an_algorithm_with_values_has_a_critic_in_every_mode(
    flags: dict[str, object], roles: tuple[str, ...], shared: tuple[str, ...], devices: int
) -> None:
    config = RunConfig.from_flat(resource=RESOURCE, advantage_estimator="ppo", **flags)
    assert required_roles(config) == roles
    assert sharing_roles(config) == shared
    assert devices_needed(config) == devices


def test_data_parallel_size() -> None:
    config = RunConfig.from_flat(resource={"actor": (1, 8), "rollout": (1, 1)}, tensor_model_parallel_size=2)
    assert data_parallel_size(config) == 4


@pytest.mark.parametrize(
    ("flags", "ahead", "bound"),
    [
        ({}, 0, 0),
        ({"max_staleness": 2}, 0, 0),  # colocate
        ({"max_staleness": 2, "hybrid": True}, 2, 2),
        ({"max_staleness": 2, "fully_async": True}, 2, 2),
        ({"max_staleness": 2, "fully_async": True, "update_weights_interval": 3}, 2, 4),
        ({"update_weights_interval": 3}, 0, 2),
    ],
)
def test_staleness_is_what_sampling_runs_ahead_and_what_is_not_published(
    flags: dict[str, object], ahead: int, bound: int
) -> None:
    config = RunConfig.from_flat(**flags)
    assert (config.rollouts_ahead, config.staleness_bound) == (ahead, bound)


@pytest.mark.parametrize(("flags", "offloads"), [({}, True), ({"hybrid": True}, False), ({"fully_async": True}, False)])
def test_engines_give_memory_back_where_they_share_devices(flags: dict[str, object], offloads: bool) -> None:
    assert RunConfig.from_flat(**flags).flat.offload_rollout is offloads

"""What a configuration asks of the roles."""

import pytest

from relax_engine.components.mode import (
    ROLLOUT_COLUMNS,
    actor_columns,
    forward_columns,
    old_is_current,
    steps_per_rollout,
    trains_on_policy,
)
from relax_engine.config import RunConfig


def config(**flags: object) -> RunConfig:
    return RunConfig.from_flat(hf_checkpoint="m", rollout_batch_size=8, n_samples_per_prompt=4, **flags)


KL = {"use_kl_loss": True, "kl_loss_coef": 0.1}
ASYNC = {"fully_async": True, "max_staleness": 1}


@pytest.mark.parametrize(
    ("flags", "steps"),
    [({}, 1), ({"global_batch_size": 8}, 4), ({"num_steps_per_rollout": 2}, 2), ({"global_batch_size": 32}, 1)],
)
def test_optimizer_steps_of_one_rollout(flags: dict, steps: int) -> None:
    assert steps_per_rollout(config(**flags)) == steps


def test_on_policy_is_one_step_on_fresh_samples() -> None:
    assert trains_on_policy(config())
    assert not trains_on_policy(config(num_steps_per_rollout=2))
    assert not trains_on_policy(config(**ASYNC))
    assert trains_on_policy(config(fully_async=True, max_staleness=0))
    # Colocate is on-policy whatever --max-staleness says.
    assert trains_on_policy(config(max_staleness=3))


def test_the_old_policy_is_the_current_one() -> None:
    assert old_is_current(config())
    assert not old_is_current(config(**ASYNC))
    # Decoupled PPO starts anew from the weights of each step, which its only update does not leave.
    assert old_is_current(config(**ASYNC, use_decoupled_ppo=True))
    assert not old_is_current(config(**ASYNC, use_decoupled_ppo=True, num_steps_per_rollout=2))


@pytest.mark.parametrize(
    ("flags", "roles"),
    [
        ({}, {}),
        (KL, {}),  # in colocate the actor does it
        ({"fully_async": True}, {}),
        (ASYNC, {"actor_fwd": "log_probs"}),
        (ASYNC | {"use_rollout_logprobs": True}, {}),
        (ASYNC | {"use_decoupled_ppo": True, "num_steps_per_rollout": 2}, {}),
        (ASYNC | {"use_decoupled_ppo": True, "advantage_estimator": "m2po"}, {"actor_fwd": "log_probs"}),
        (ASYNC | KL, {"actor_fwd": "log_probs", "reference": "ref_log_probs"}),
        ({"fully_async": True, **KL}, {"reference": "ref_log_probs"}),
        ({"fully_async": True, "use_kl_loss": True}, {}),  # with coefficient 0 nobody reads the column
        (ASYNC | {"loss_type": "sft"}, {}),
    ],
)
def test_forward_roles_exist_where_their_column_is_read(flags: dict, roles: dict) -> None:
    assert forward_columns(config(**flags)) == roles


def test_the_actor_waits_for_what_it_cannot_compute() -> None:
    assert actor_columns(config(loss_type="sft")) == ["tokens", "response_lengths", "loss_masks"]
    assert actor_columns(config(**KL)) == list(ROLLOUT_COLUMNS)
    streamed = set(actor_columns(config(**ASYNC, **KL))) - set(ROLLOUT_COLUMNS)
    assert streamed == {"log_probs", "ref_log_probs", "advantages", "returns", "loss_weights"}


def test_the_actor_waits_for_everything_that_the_batch_stage_makes() -> None:
    made = actor_columns(config(**ASYNC, tis_batch_normalize=True, custom_pg_loss_reducer_function_path="a.b"))
    assert set(made) - set(ROLLOUT_COLUMNS) == {
        "log_probs", "advantages", "returns", "loss_weights", "tis_mean", "reducer_scale"
    }  # fmt: skip
    assert "ppo_kl_m2_before" in actor_columns(config(**ASYNC, advantage_estimator="m2po"))

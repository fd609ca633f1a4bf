"""What a configuration asks of the roles."""

import pytest

from relax_engine.components.mode import (
    ROLLOUT_COLUMNS,
    actor_columns,
    forward_columns,
    old_is_current,
    published_version,
    publishes,
    rows_per_advantages,
    rows_per_part,
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
    [
        ({}, 1),
        ({"global_batch_size": 8}, 4),
        ({"num_steps_per_rollout": 2}, 2),
        ({"global_batch_size": 32}, 1),
        ({"global_batch_size": 8, "loss_type": "sft"}, 1),
    ],
)
def test_optimizer_steps_of_one_rollout(flags: dict, steps: int) -> None:
    assert steps_per_rollout(config(**flags)) == steps


HYBRID = {"hybrid": True, "max_staleness": 1}


@pytest.mark.parametrize(
    ("flags", "current_is_old", "fresh"),
    [
        ({}, True, True),
        ({"max_staleness": 3}, True, True),  # colocate is on-policy whatever --max-staleness says
        ({"num_steps_per_rollout": 2}, False, False),
        ({"update_weights_interval": 2}, True, False),
        ({"fully_async": True}, True, True),
        (ASYNC, False, False),
        (ASYNC | {"true_on_policy_mode": True}, True, False),
        # The actor's own log-probs before its only step are those of the policy it trains.
        (HYBRID, True, False),
        (HYBRID | {"num_steps_per_rollout": 2}, False, False),
        (HYBRID | {"keep_old_actor": True}, False, False),
        ({"keep_old_actor": True}, False, True),
        # Decoupled PPO starts anew from the weights of each step, which its only update does not leave.
        (ASYNC | {"use_decoupled_ppo": True}, True, False),
        (ASYNC | {"use_decoupled_ppo": True, "num_steps_per_rollout": 2}, False, False),
    ],
)
def test_when_the_current_policy_is_the_old_one(flags: dict, current_is_old: bool, fresh: bool) -> None:
    assert old_is_current(config(**flags)) is current_is_old
    assert trains_on_policy(config(**flags)) is fresh


@pytest.mark.parametrize(
    ("flags", "part", "advantages"),
    [
        ({}, 32, 32),
        ({"num_iters_per_train_update": 4}, 8, 8),
        ({"num_iters_per_train_update": 3}, 12, 12),  # 8 groups in parts of 3, 3 and 2
        ({"num_iters_per_train_update": 100}, 4, 4),  # groups stay whole
        ({"num_iters_per_train_update": 2, "num_steps_per_rollout": 2}, 8, 8),
        ({"num_iters_per_train_update": 2, "num_steps_per_rollout": 2, "normalize_advantages": True}, 8, 16),
        ({"num_iters_per_train_update": 2, "advantage_estimator": "m2po"}, 16, 16),
        ({"num_iters_per_train_update": 3, "loss_type": "sft", "global_batch_size": 32}, 11, 11),
    ],
)
def test_rows_that_travel_together(flags: dict, part: int, advantages: int) -> None:
    assert (rows_per_part(config(**flags)), rows_per_advantages(config(**flags))) == (part, advantages)


def test_which_versions_engines_get() -> None:
    rare = config(update_weights_interval=3)
    assert [version for version in range(2, 12) if publishes(rare, version, start=2, end=11)] == [2, 3, 6, 9, 11]
    assert [published_version(rare, version, end=11) for version in (3, 5, 6, 10, 11)] == [3, 3, 6, 9, 11]
    assert all(publishes(config(), version, start=0, end=9) for version in range(10))


@pytest.mark.parametrize(
    ("flags", "roles"),
    [
        ({}, {}),
        (KL, {}),  # in colocate the actor does it
        ({"fully_async": True}, {}),
        (ASYNC, {"actor_fwd": "log_probs"}),
        (ASYNC | {"use_rollout_logprobs": True}, {}),
        (ASYNC | {"use_decoupled_ppo": True, "num_steps_per_rollout": 2}, {}),
        (ASYNC | {"advantage_estimator": "m2po"}, {}),
        (ASYNC | KL, {"actor_fwd": "log_probs", "reference": "ref_log_probs"}),
        ({"fully_async": True, **KL}, {"reference": "ref_log_probs"}),
        ({"fully_async": True, "use_kl_loss": True}, {}),  # with coefficient 0 nobody reads the column
        (ASYNC | {"loss_type": "sft"}, {}),
    ],
)
def test_forward_roles_exist_where_their_column_is_read(flags: dict, roles: dict) -> None:
    assert forward_columns(config(**flags)) == roles


def test_pairs_are_trained_together() -> None:
    pairs = config(loss_type="dpo", global_batch_size=6, num_iters_per_train_update=4)
    assert actor_columns(pairs) == ["tokens", "response_lengths", "loss_masks", "sample_indices", "group_index"]
    assert rows_per_part(pairs) == 4  # two of the six pairs
    assert rows_per_part(config(loss_type="sft", global_batch_size=6, num_iters_per_train_update=4)) == 2


def test_the_actor_waits_for_what_it_cannot_compute() -> None:
    assert actor_columns(config(loss_type="sft")) == ["tokens", "response_lengths", "loss_masks", "sample_indices"]
    assert actor_columns(config(**KL)) == list(ROLLOUT_COLUMNS)
    streamed = set(actor_columns(config(**ASYNC, **KL))) - set(ROLLOUT_COLUMNS)
    assert streamed == {"log_probs", "ref_log_probs", "advantages", "returns", "loss_weights"}


def test_the_actor_waits_for_everything_that_advantages_bring_along() -> None:
    made = actor_columns(config(**ASYNC, tis_batch_normalize=True, custom_pg_loss_reducer_function_path="a.b"))
    assert set(made) - set(ROLLOUT_COLUMNS) == {
        "log_probs", "advantages", "returns", "loss_weights", "tis_mean", "reducer_scale"
    }  # fmt: skip
    # M2PO's bounds are the actor's own, and its old policy is the one that sampled.
    bounded = set(actor_columns(config(**ASYNC, advantage_estimator="m2po"))) - set(ROLLOUT_COLUMNS)
    assert bounded == {"advantages", "returns", "loss_weights"}

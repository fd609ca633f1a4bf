"""What the critic's flags mean, and what the actor hands over to it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.critic import explained_variance
from relax_engine.components.critic_link import CriticTargets
from relax_engine.components.critic_settings import critic_config, critic_roots, initial_critic, trains_actor
from relax_engine.components.mode import actor_columns, checkpoint_is_due, value_columns
from relax_engine.components.partition import ROW_NUMBERS
from relax_engine.config import RunConfig
from relax_engine.stream.columns import Column, ColumnBatch


def config(**flags: Any) -> RunConfig:
    resource = {"actor": (1, 1), "critic": (1, 1), "rollout": (1, 1)}
    return RunConfig.from_flat(**{"hf_checkpoint": "m", "advantage_estimator": "ppo", "resource": resource, **flags})


def test_the_critic_has_a_learning_rate_and_a_warm_up_of_its_own() -> None:
    own = critic_config(config(lr=1e-6, lr_warmup_iters=5, critic_lr=1e-5, critic_lr_warmup_iters=2))
    assert (own.flat.lr, own.flat.lr_warmup_iters) == (1e-5, 2)
    assert critic_config(config(lr=1e-6, lr_warmup_iters=5)).flat.lr == 1e-6
    assert critic_config(config(lr_warmup_iters=5)).flat.lr_warmup_iters == 0


def test_directories_follow_the_actors() -> None:
    flat = config(load="in", save="out").flat
    assert (flat.critic_load, flat.critic_save) == ("in/critic", "out/critic")
    assert critic_roots(config(load="in", save="out")) == ["in/critic", "out/critic"]
    assert critic_roots(config(load="in", save="in")) == ["in/critic"]
    without = RunConfig.from_flat(load="in", save="out")
    assert (without.flat.critic_load, without.flat.critic_lr) == (None, None)


def test_a_model_directory_is_where_the_critic_starts_and_not_where_it_resumes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    given = config(critic_load=str(tmp_path), save="out", ref_load="ref")
    assert initial_critic(given) == str(tmp_path)
    assert critic_config(given).flat.hf_checkpoint == str(tmp_path)
    assert critic_roots(given) == ["out/critic"]
    assert initial_critic(config(critic_load="checkpoints", ref_load="ref")) == "ref"


def test_a_new_critic_may_start_as_that_of_another_run_but_not_as_its_own_left_over(tmp_path: Path) -> None:
    for name in ("other", "run/critic"):
        with CheckpointManager(tmp_path / name).writing(1) as directory:
            (directory / "weights").write_bytes(b"1")
    other, run = str(tmp_path / "other"), str(tmp_path / "run")
    assert initial_critic(config(critic_load=other, ref_load="ref")) == other
    assert initial_critic(config(load=run, save=run, ref_load="ref")) == "ref"
    assert initial_critic(config(critic_load=other, critic_save=other, save=run, ref_load="ref")) == "ref"


def test_the_actor_waits_for_values_where_it_makes_advantages() -> None:
    assert "values" in actor_columns(config())
    assert "values" in actor_columns(config(hybrid=True))
    assert "values" not in actor_columns(config(fully_async=True))
    assert value_columns(config(fully_async=True)) == ["values"]
    assert value_columns(config(advantage_estimator="grpo")) == []


@pytest.mark.parametrize(
    ("flags", "trained"),
    [({}, [0, 1, 2]), ({"num_critic_only_steps": 2}, [2]), ({"critic_train_only": True}, [])],
)
def test_rollouts_on_which_the_actor_is_trained(flags: dict[str, Any], trained: list[int]) -> None:
    assert [step for step in range(3) if trains_actor(config(**flags), step)] == trained


def test_checkpoints_are_due_at_the_interval_and_at_the_end() -> None:
    every_second = config(save="s", save_interval=2)
    assert [step for step in range(5) if checkpoint_is_due(every_second, step, 5)] == [1, 3, 4]
    assert [step for step in range(5) if checkpoint_is_due(config(save="s"), step, 5)] == [4]


class Sink:
    """Takes what is put."""

    def put_columns(self, partition: str, rows: list[int], batch: ColumnBatch) -> None:
        self.put = (partition, rows, batch)


def part(rows: list[int], lengths: list[int]) -> ColumnBatch:
    return ColumnBatch(
        {
            ROW_NUMBERS: Column.fixed(rows, np.int64),
            "response_lengths": Column.fixed(lengths, np.int32),
            "returns": Column.ragged([np.full(n, row) for row, n in zip(rows, lengths, strict=True)], np.float32),
            "loss_weights": Column.ragged([np.full(n, 0.5) for n in lengths], np.float32),
        }
    )


def test_every_row_comes_back_and_dropped_ones_weigh_nothing() -> None:
    """Parts arrive in any order; rows 0 and 1 were too old to train on."""
    targets, sink = CriticTargets(), Sink()
    for rows, lengths in (([2, 3], [1, 0]), ([0, 1], [2, 3])):
        targets.expect(part(rows, lengths))
    targets.add(part([2, 3], [1, 0]))
    targets.send(sink, "train_4")  # type: ignore[arg-type]
    partition, rows, batch = sink.put
    assert (partition, rows) == ("train_4", [0, 1, 2, 3])
    assert batch["returns"].lengths.tolist() == [2, 3, 1, 0]
    assert batch["returns"].values.tolist() == [0, 0, 0, 0, 0, 2]
    assert batch["loss_weights"].values.tolist() == [0, 0, 0, 0, 0, 0.5]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2, 3, 99], 1.0), ([2, 2, 2, 99], 0.0), ([0, 0, 0, 99], 0.0), ([3, 2, 1, 99], -3.0)],
)
def test_explained_variance_of_unmasked_tokens(values: list[float], expected: float) -> None:
    batch = ColumnBatch(
        {
            "loss_masks": Column.ragged([[1, 1], [1, 0]], np.uint8),
            "returns": Column.ragged([[1, 2], [3, -50]], np.float32),
            "values": Column.ragged([values[:2], values[2:]], np.float32),
        }
    )
    assert explained_variance(batch) == pytest.approx(expected)


def test_equal_returns_leave_nothing_to_explain() -> None:
    column = Column.ragged([[1, 1]], np.float32)
    batch = ColumnBatch({"loss_masks": column, "returns": column, "values": Column.ragged([[0, 5]], np.float32)})
    assert explained_variance(batch) == 0.0

"""PPO with its critic in every mode: values travel, the critic learns, and both resume together."""

import math
import shutil
from pathlib import Path
from typing import Any

import core_rewards
import pytest
import torch
from safetensors import safe_open

from relax_engine.checkpoint.dcp_reader import DcpReader
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS, SAMPLES, ALONE = 4, 16, 2
PPO: dict[str, Any] = {
    "advantage_estimator": "ppo",
    "resource": {"actor": [1, 1], "critic": [1, 1], "rollout": [1, 1]},
    "custom_rm_path": f"{core_rewards.HERE}:one",
    "num_rollout": STEPS,
    "num_steps_per_rollout": 2,
    "critic_lr": 5e-4,
}
EMBEDDING = ("embedding.word_embeddings.weight", "model.embed_tokens.weight")


def run(tiny: Any, run_dir: Path, **flags: Any) -> list[dict[str, Any]]:
    """The metrics of a run, and of those that it continues."""
    config = tiny.config(run_dir, save=str(run_dir / "ckpt"), load=str(run_dir / "ckpt"), **{**PPO, **flags})
    train(config)
    return read_metrics(run_dir / "metrics.jsonl")


@pytest.fixture(scope="module")
def whole(ray_cluster: None, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Colocate, the first two rollouts for the critic alone."""
    run_dir = tmp_path_factory.mktemp("whole")
    return run_dir, run(tiny, run_dir, num_critic_only_steps=ALONE, save_interval=1)


def embedding(checkpoint: Path) -> torch.Tensor:
    reader = DcpReader(checkpoint)
    return reader.read(EMBEDDING[0], (0, 0), reader.shape(EMBEDDING[0]))


def test_the_critic_learns_what_every_response_is_worth(whole: Any) -> None:
    _, records = whole
    assert [record["step"] for record in records] == list(range(STEPS))
    # With gamma = lambda = 1 the return of every token is the reward, 1, and a new head says 0.
    assert all(record["critic/returns"] == pytest.approx(1.0, abs=1e-5) for record in records)
    assert records[0]["critic/values"] < 0.6
    losses = [record["critic/value_loss"] for record in records]
    assert losses[0] > losses[1] > losses[-1] > 0
    for record in records:
        assert record["critic/loss"] == record["critic/value_loss"]
        assert record["critic/grad_norm"] > 0
        assert record["critic/lr"] == pytest.approx(5e-4)
        assert 0 <= record["critic/value_clipfrac"] <= 1


def test_critic_only_steps_leave_the_policy_and_count_versions(whole: Any, tiny: Any) -> None:
    run_dir, records = whole
    with safe_open(tiny.model / "model.safetensors", "pt") as file:
        initial = file.get_tensor(EMBEDDING[1])
    saved = {iteration: embedding(run_dir / "ckpt" / f"iter_{iteration:07d}") for iteration in range(1, STEPS + 1)}
    unchanged = [iteration for iteration, tensor in saved.items() if torch.equal(tensor, initial)]
    assert unchanged == list(range(1, ALONE + 1))
    for record in records:
        assert ("train/loss" in record) == (record["step"] >= ALONE)
        assert record["weight_sync/version"] == record["step"] + 1
        assert record["rollout/staleness/count/0"] == SAMPLES
        assert record["stream/trained"] == (record["step"] + 1) * SAMPLES
    assert all(math.isfinite(record["train/loss"]) and record["train/grad_norm"] > 0 for record in records[ALONE:])


def test_both_checkpoints_have_the_same_iterations(whole: Any) -> None:
    run_dir, _ = whole
    names = [f"iter_{iteration:07d}" for iteration in range(1, STEPS + 1)]
    for root in (run_dir / "ckpt", run_dir / "ckpt" / "critic"):
        assert sorted(path.name for path in root.glob("iter_*")) == names
    critic = DcpReader(run_dir / "ckpt" / "critic" / names[-1])
    assert critic.shape("score.weight") == (1, 128)
    assert "output_layer.weight" not in critic
    assert "optimizer.state.exp_avg.score.weight" in critic


@pytest.mark.long
def test_a_continued_run_repeats_the_numbers_of_actor_and_critic(whole: Any, tiny: Any, tmp_path: Path) -> None:
    """The actor's newest checkpoint has no critic beside it: both go on from the one before."""
    run_dir, expected = whole
    for name in ("iter_0000002", "iter_0000003", "critic/iter_0000002"):
        shutil.copytree(run_dir / "ckpt" / name, tmp_path / "ckpt" / name)
    records = run(tiny, tmp_path, num_critic_only_steps=ALONE, save_interval=1, max_actor_ckpt_to_keep=2)
    assert [record["step"] for record in records] == [1, 2, 3]  # the checkpoint brings the line of its own step
    for ours, theirs in zip(records[1:], expected[2:], strict=True):
        compared = [name for name in theirs if name.startswith(("train/", "critic/", "rollout/"))]
        assert len(compared) > 20
        assert {name: ours.get(name) for name in compared} == {name: theirs[name] for name in compared}
    kept = sorted(path.name for path in (tmp_path / "ckpt" / "critic").glob("iter_*"))
    assert kept == ["iter_0000003", "iter_0000004"]


@pytest.mark.long
def test_fully_async_streams_values_and_returns(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    """With a KL penalty in the reward, so that returns need columns of all other roles."""
    resource = {role: [1, 1] for role in ("actor", "critic", "rollout", "actor_fwd", "reference")}
    records = run(
        tiny,
        tmp_path,
        fully_async=True,
        max_staleness=1,
        resource={**resource, "advantages": [1, 0]},
        custom_rm_path=f"{core_rewards.HERE}:spread",
        kl_coef=0.05,
        num_rollout=3,
        num_iters_per_train_update=2,
        save_interval=2,
    )
    for record in records:
        assert record["critic/value_loss"] > 0
        assert math.isfinite(record["train/loss"])
        assert record["rollout/staleness/max"] <= 1
        assert record["critic/explained_variance"] <= 1
    assert records[-1]["stream/trained"] == 3 * SAMPLES
    saved = sorted(path.name for path in (tmp_path / "ckpt" / "critic").glob("iter_*"))
    assert saved == ["iter_0000002", "iter_0000003"]


@pytest.mark.long
def test_hybrid_keeps_the_critic_beside_the_actor(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    records = run(tiny, tmp_path, hybrid=True, max_staleness=1, num_rollout=3, num_iters_per_train_update=2)
    losses = [record["critic/value_loss"] for record in records]
    assert losses[0] > losses[-1] > 0
    assert records[-1]["stream/trained"] == 3 * SAMPLES
    assert all(math.isfinite(record["train/loss"]) for record in records)
    # Samples that waited for an update are compared with the weights that made them.
    (stale,) = [record for record in records[1:] if record["rollout/staleness/min"] == 1][:1]
    assert stale["train/ratio/max"] > 1 + 1e-5

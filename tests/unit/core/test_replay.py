"""Recomputing a recorded run: what agrees, and what a wrong value looks like."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relax_engine.algorithms import registry
from relax_engine.algorithms.objective import LossInputs, make_policy_loss
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.cli.replay import main
from relax_engine.components.advantages import advantage_columns
from relax_engine.config import RunConfig
from relax_engine.core.replay import replay
from relax_engine.observe.bundle import (
    BundleError,
    RecordedStep,
    read_samples,
    read_steps,
    recorded_rollouts,
    write_samples,
    write_steps,
)
from relax_engine.rollout.convert import to_columns
from relax_engine.rollout.reward_stage import RewardStage
from relax_engine.stream.columns import Column
from relax_engine.types import Sample, SampleGroup, SampleStatus, WeightVersionSpan

REWARDS = """
def longer_is_better(args, sample):
    return sample.response_length / 10
"""
GROUPS, SIZE = 3, 4


def make_groups(rng: np.random.Generator) -> list[SampleGroup]:
    groups = []
    for number in range(GROUPS):
        group = []
        for member in range(SIZE):
            length = int(rng.integers(1, 9))
            tokens = rng.integers(0, 50, size=2 + length).tolist()
            group.append(
                Sample(
                    group_index=number,
                    index=number * SIZE + member,
                    tokens=tokens,
                    rollout_tokens=tokens[2:],
                    response_length=length,
                    loss_mask=[1] * length,
                    rollout_log_probs=rng.normal(-2, 1, size=length).astype(np.float32).tolist(),
                    weight_versions=[WeightVersionSpan(0, 0, length)],
                    reward=length / 10,
                    status=SampleStatus.COMPLETED,
                    metadata={"n": number},
                )
            )
        groups.append(group)
    return groups


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """What a run of GRPO with recomputed old log-probs and a KL term leaves behind, two rollouts of it."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    root = tmp_path / "bundle"
    config = RunConfig.from_flat(
        dump_details=str(root),
        custom_rm_path=f"{tmp_path / 'rewards.py'}:longer_is_better",
        rollout_batch_size=GROUPS,
        n_samples_per_prompt=SIZE,
        num_steps_per_rollout=2,
        use_kl_loss=True,
        kl_loss_coef=0.1,
        kl_loss_type="low_var_kl",
        num_rollout=2,
        hf_checkpoint="model",
        reward_num_workers=1,
    )
    root.mkdir()
    (root / "config.yaml").write_text(config.to_yaml())
    rng = np.random.default_rng(0)
    settings = AlgorithmSettings.from_config(config.flat)
    spec = registry.get("grpo")
    for rollout_id in range(2):
        groups = make_groups(rng)
        write_samples(config.flat.save_debug_rollout_data, rollout_id, groups)
        batch = to_columns(groups, RewardStage(spec, settings))
        steps = []
        # Two steps of one and a half groups would split a group; one of two groups and one of one do not.
        for rows in (np.arange(8), np.arange(8, 12)):
            part = batch.select(rows)
            shape = part["rollout_log_probs"]
            noise = rng.normal(0, 0.1, size=(2, len(shape.values))).astype(np.float32)
            part = part.with_columns(
                log_probs=Column(shape.values + noise[0], shape.offsets),
                ref_log_probs=Column(shape.values + noise[1], shape.offsets),
            )
            part = part.with_columns(**advantage_columns(part, config))
            tensors = {name: torch.from_numpy(np.array(column.values)) for name, column in part.items()}
            loss, _ = make_policy_loss(settings)(
                tensors["log_probs"], None, LossInputs(tensors, torch.from_numpy(np.array(shape.offsets)))
            )
            # The mean over samples of the mean over tokens.
            steps.append(RecordedStep(part, {"loss": float(loss) / len(rows)}))
        write_steps(config.flat.save_debug_train_data, rollout_id, steps)
    return root


def test_files_give_back_what_was_written(bundle: Path, tmp_path: Path) -> None:
    template = f"{bundle}/rollout_data/{{rollout_id}}.jsonl"
    assert recorded_rollouts(template) == [0, 1]
    groups = read_samples(template, 1)
    assert write_samples(f"{tmp_path}/{{rollout_id}}", 5, groups).name == "5"
    assert read_samples(f"{tmp_path}/{{rollout_id}}", 5) == groups
    steps = read_steps(f"{bundle}/train_data/{{rollout_id}}.npz", 0)
    assert [step.batch.num_rows for step in steps] == [8, 4]
    assert steps[0].batch["tokens"].offsets is not None
    assert steps[0].batch["raw_reward"].offsets is None
    with pytest.raises(BundleError, match=r"no recorded rollout 7: .*7\.jsonl does not exist"):
        read_samples(template, 7)


def test_a_bundle_agrees_with_itself_wherever_it_is(bundle: Path, tmp_path: Path, capsys: Any) -> None:
    moved = bundle.rename(tmp_path / "moved")
    found = replay(moved)
    assert max(difference.largest for difference in found) < 1e-6
    assert {difference.quantity for difference in found} == {
        "reward",
        "step 0 normalised reward",
        "step 0 advantages",
        "step 0 returns",
        "step 0 loss",
        "step 1 normalised reward",
        "step 1 advantages",
        "step 1 returns",
    }
    assert [d.compared for d in found if d.quantity == "reward"] == [GROUPS * SIZE] * 2
    assert main([str(moved)]) == 0
    assert "the replay agrees with the run" in capsys.readouterr().out


def tamper(bundle: Path, column: str, position: int, value: float) -> None:
    template = f"{bundle}/train_data/{{rollout_id}}.npz"
    steps = read_steps(template, 1)
    values = np.array(steps[0].batch[column].values)
    values[position] = value
    batch = steps[0].batch.with_columns(**{column: Column(values, steps[0].batch[column].offsets)})
    write_steps(template, 1, [RecordedStep(batch, steps[0].metrics), steps[1]])


def test_a_reward_that_the_run_got_wrong_is_named(bundle: Path, capsys: Any) -> None:
    """And everything that follows from it."""
    path = bundle / "rollout_data" / "1.jsonl"
    lines = path.read_text().splitlines()
    group = json.loads(lines[1])
    group[2]["reward"] += 3.0
    path.write_text("\n".join([lines[0], json.dumps(group), lines[2]]) + "\n")
    assert [d.rollout_id for d in replay(bundle) if d.largest > 1e-6] == [1]
    worst = max(replay(bundle, [1]), key=lambda difference: difference.largest)
    assert (worst.quantity, worst.where) == ("reward", "sample 6")
    assert worst.largest == pytest.approx(3.0)
    assert main([str(bundle), "--rollout-id", "1"]) == 1
    assert "DIFFERS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "quantities"),
    [
        ("rewards", {"step 0 normalised reward"}),
        ("advantages", {"step 0 advantages"}),
        ("log_probs", {"step 0 loss"}),
    ],
)
def test_a_wrong_column_shows_where_it_matters(bundle: Path, column: str, quantities: set[str]) -> None:
    tamper(bundle, column, 3, 2.5)
    assert {d.quantity for d in replay(bundle) if d.largest > 1e-4} == quantities


def test_the_loss_of_stale_rows_needs_log_probs_of_the_current_policy(bundle: Path) -> None:
    """Where the ratio is to the engine's and nobody recomputed them, there is nothing to compare the loss with."""
    file, template = bundle / "config.yaml", f"{bundle}/train_data/{{rollout_id}}.npz"
    config = RunConfig.from_yaml(file).replace(use_rollout_logprobs=True)
    for rollout_id in range(2):
        steps = read_steps(template, rollout_id)
        kept = [name for name in steps[0].batch if name != "log_probs"]
        write_steps(template, rollout_id, [RecordedStep(step.batch.only(kept), step.metrics) for step in steps])
    for flags, compared in (({}, True), ({"hybrid": True, "max_staleness": 1}, False)):
        file.write_text(config.replace(**flags).to_yaml())
        assert ("step 0 loss" in {difference.quantity for difference in replay(bundle)}) is compared


def test_a_directory_that_is_no_bundle(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no replay bundle.*--dump-details"):
        replay(tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"no rollout \[4\]; it has \[0, 1\]"):
        replay(bundle, [4])


def test_metadata_that_no_file_can_hold_is_named(tmp_path: Path) -> None:
    sample = dataclasses.replace(Sample(group_index=3), metadata={"image": object()})
    with pytest.raises(BundleError, match="group 3 of rollout 2 cannot be saved"):
        write_samples(f"{tmp_path}/{{rollout_id}}", 2, [[sample]])

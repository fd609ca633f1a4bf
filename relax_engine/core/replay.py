"""`replay`: recompute a recorded run's rewards, advantages and losses, without Ray, engines or a model.

What is compared is what a fault in scoring, grouping, masking or the objective would change. Log-probs are taken as
recorded: they are the model's, and everything else follows from them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relax_engine.algorithms.batch import batch_totals
from relax_engine.algorithms.distillation import DistillationSettings
from relax_engine.algorithms.objective import LossInputs, make_policy_loss
from relax_engine.algorithms.reduction import loss_scale
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.components.advantages import advantage_columns
from relax_engine.config import RunConfig
from relax_engine.config.roles import old_policy_is_current
from relax_engine.observe.bundle import BundleError, RecordedStep, read_samples, read_steps, recorded_rollouts
from relax_engine.rewards.executor import RewardExecutor
from relax_engine.rewards.settings import RewardSettings
from relax_engine.rollout.convert import to_columns
from relax_engine.rollout.reward_stage import RewardStage
from relax_engine.types import SampleGroup

_PER_TOKEN = ("advantages", "returns")


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of one rollout: how many values were compared, and the pair that is furthest apart.

    `where` names the sample (and response token) of that pair; NaN equals NaN.
    """

    rollout_id: int
    quantity: str
    compared: int
    largest: float
    recorded: float
    recomputed: float
    where: str


def replay(directory: str | Path, rollout_ids: Sequence[int] | None = None) -> list[Difference]:
    """Recompute what the bundle `directory` (`--dump-details`) holds of the rollouts, by default all.

    Raises:
        BundleError: the directory is no bundle, or has no such rollout.
        RewardError: a reward function failed.
    """
    root = Path(directory)
    path = root / "config.yaml"
    if not path.is_file():
        raise BundleError(f"{root} is no replay bundle: it has no config.yaml; make one with --dump-details")
    # Relative to where the bundle is now, not to where the run wrote it.
    config = RunConfig.from_yaml(path).replace(
        dump_details=str(root),
        save_debug_rollout_data=f"{root}/rollout_data/{{rollout_id}}.jsonl",
        save_debug_train_data=f"{root}/train_data/{{rollout_id}}.npz",
    )
    recorded = recorded_rollouts(config.flat.save_debug_rollout_data)
    wanted = recorded if rollout_ids is None else list(rollout_ids)
    missing = sorted(set(wanted) - set(recorded))
    if missing or not recorded:
        raise BundleError(f"{root} has no rollout {missing or ''}; it has {recorded or 'none'}")
    with ThreadPoolExecutor(1, thread_name_prefix="replay") as executor:
        return executor.submit(asyncio.run, _replay(config, wanted)).result()


async def _replay(config: RunConfig, rollout_ids: Sequence[int]) -> list[Difference]:
    args = config.flat
    found: list[Difference] = []
    with RewardExecutor(RewardSettings.from_config(args), args) as rewards:
        for rollout_id in rollout_ids:
            groups = read_samples(args.save_debug_rollout_data, rollout_id)
            again = copy.deepcopy(groups)
            for sample in (sample for group in again for sample in group):
                sample.reward = None
            await rewards.score([sample for group in again for sample in group])
            found.append(_rewards(config, rollout_id, groups, again))
            steps = read_steps(args.save_debug_train_data, rollout_id)
            found += _steps(config, rollout_id, again, steps)
    return found


def _rewards(config: RunConfig, rollout_id: int, old: list[SampleGroup], new: list[SampleGroup]) -> Difference:
    key = config.flat.reward_key
    samples = [sample for group in old for sample in group]
    recorded = np.array([sample.get_reward_value(key) for sample in samples])
    again = np.array([sample.get_reward_value(key) for group in new for sample in group])
    return _compare(rollout_id, "reward", recorded, again, [f"sample {sample.index}" for sample in samples])


def _steps(
    config: RunConfig, rollout_id: int, groups: list[SampleGroup], steps: Sequence[RecordedStep]
) -> Iterator[Difference]:
    """Normalised rewards, advantages and returns of all steps, and the loss of the first.

    Later steps of a rollout are taken with weights that the bundle does not hold.
    """
    fresh = to_columns(groups, RewardStage.from_config(config.flat))
    row_of = {int(index): row for row, index in enumerate(fresh["sample_indices"].values)}
    for number, step in enumerate(steps):
        batch = step.batch
        names = [f"sample {index}" for index in batch["sample_indices"].values]
        rows = [row_of[int(index)] for index in batch["sample_indices"].values]
        rewards = fresh["rewards"].values[rows]
        yield _compare(rollout_id, f"step {number} normalised reward", batch["rewards"].values, rewards, names)
        made = advantage_columns(batch.with_columns(rewards=fresh.select(rows)["rewards"]), config)
        columns = {name: column.values for name, column in made.items()}
        places = _token_names(batch["sample_indices"].values, batch["loss_masks"].lengths)
        for name in _PER_TOKEN:
            yield _compare(rollout_id, f"step {number} {name}", batch[name].values, columns[name], places)
        loss = _loss(config, batch, columns) if number == 0 else None
        if loss is not None:
            yield _compare(rollout_id, "step 0 loss", np.array([step.metrics["loss"]]), np.array([loss]), ["the step"])


def _loss(config: RunConfig, batch: Any, columns: dict[str, np.ndarray]) -> float | None:
    """The objective before the first update, where the current policy is the one of the recorded log-probs.

    None where it takes more of the model than these: entropies, log-probs of a teacher's choice, a user's loss, or the
    ratio to the policy that sampled stale rows where nobody computed the current policy's log-probs.
    """
    import torch

    settings = AlgorithmSettings.from_config(config.flat)
    loss = make_policy_loss(
        settings,
        true_on_policy=old_policy_is_current(config),
        args=config.flat,
        distillation=DistillationSettings.from_config(config.flat),
    )
    if loss.needs_entropy or loss.candidates or config.flat.loss_type != "policy_loss":
        return None
    values = {name: column.values for name, column in batch.items()} | columns
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in values.items() if value.dtype != object}
    if "log_probs" not in tensors and config.staleness_bound > 0 and loss.compares_with_sampler:
        return None
    current = tensors["log_probs" if "log_probs" in tensors else "rollout_log_probs"]
    offsets = torch.from_numpy(np.array(batch["loss_masks"].offsets))
    total, _ = loss(current, None, LossInputs(tensors, offsets, torch.from_numpy(batch["tokens"].lengths)))
    return float(total) * loss_scale(batch_totals(values, batch["loss_masks"].offsets), settings.reduction)


def _token_names(indices: np.ndarray, lengths: np.ndarray) -> list[str]:
    return [
        f"sample {index}, token {token}"
        for index, length in zip(indices, lengths, strict=True)
        for token in range(length)
    ]


def _compare(
    rollout_id: int, quantity: str, recorded: np.ndarray, recomputed: np.ndarray, names: Sequence[str]
) -> Difference:
    old, new = np.asarray(recorded, np.float64), np.asarray(recomputed, np.float64)
    gap = np.abs(old - new)
    gap[np.isnan(old) & np.isnan(new)] = 0.0
    gap[np.isnan(gap)] = np.inf
    if not len(gap):
        return Difference(rollout_id, quantity, 0, 0.0, 0.0, 0.0, "")
    at = int(gap.argmax())
    return Difference(rollout_id, quantity, len(gap), float(gap[at]), float(old[at]), float(new[at]), names[at])

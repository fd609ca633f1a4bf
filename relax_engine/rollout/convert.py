"""Scored samples to the columns of a training batch, and the metrics of a rollout.

Rewards are normalised here, where whole groups are together; advantages come later.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from relax_engine.multimodal.media import TRAIN_INPUTS
from relax_engine.rollout.partial import oldest_counted_version
from relax_engine.rollout.pool import RolloutError
from relax_engine.rollout.reward_stage import RewardStage
from relax_engine.stream.columns import ROUTED_EXPERTS, Column, ColumnBatch
from relax_engine.types import Sample, SampleGroup, SampleStatus

_LONG, _REPETITION = 10_000, 10


def to_columns(
    groups: Sequence[SampleGroup],
    rewards: RewardStage,
    teacher: Callable[[Sequence[Sample]], np.ndarray] | None = None,
    *,
    routed_experts: bool = False,
    media: bool = False,
) -> ColumnBatch:
    """One row per sample, groups contiguous. See `docs/design/stream.md` for the columns.

    Args:
        groups: Scored groups.
        rewards: Makes raw and processed rewards of their samples.
        teacher: Gives the index of each sample's teacher, where there are several.
        routed_experts: Add the experts that tokens were sent to.
        media: Whether the model reads media: then there is the column `multimodal_train_inputs`, a dictionary of arrays
            or None in each row.

    Raises:
        RolloutError: a response without them.
    """
    samples = [sample for group in groups for sample in group]
    raw, processed = rewards(samples)
    group_index = np.array([sample.group_index for sample in samples], np.int64)
    extra = {} if teacher is None else {"teacher": Column.fixed(teacher(samples))}
    if routed_experts:
        extra[ROUTED_EXPERTS] = Column.ragged(_routed_experts(samples), np.int16)
    if media:
        extra[TRAIN_INPUTS] = Column.objects([sample.multimodal_train_inputs for sample in samples])
    masks = [
        np.zeros(sample.response_length, np.uint8) if sample.remove_sample else np.asarray(sample.loss_mask, np.uint8)
        for sample in samples
    ]
    return ColumnBatch(
        {
            "tokens": Column.ragged([sample.tokens for sample in samples], np.int32),
            "response_lengths": Column.fixed([sample.response_length for sample in samples], np.int32),
            "loss_masks": Column.ragged(masks, np.uint8),
            "rollout_log_probs": Column.ragged([sample.rollout_log_probs or [] for sample in samples], np.float32),
            "raw_reward": Column.fixed(raw),
            "rewards": Column.fixed(processed),
            "group_index": Column.fixed(group_index),
            "sample_indices": Column.fixed([sample.index for sample in samples], np.int64),
            "truncated": Column.fixed([sample.status is SampleStatus.TRUNCATED for sample in samples], np.uint8),
            "first_version": Column.fixed([_first_version(sample) for sample in samples], np.int32),
            "last_version": Column.fixed([_last_version(sample) for sample in samples], np.int32),
            **extra,
        }
    )


def _routed_experts(samples: Sequence[Sample]) -> list[np.ndarray]:
    """Of each sample one line for each token: the experts that it was sent to, -1 where it was not computed."""
    width = next((s.rollout_routed_experts.shape[1] for s in samples if s.rollout_routed_experts is not None), 0)
    rows = []
    for sample in samples:
        sent = sample.rollout_routed_experts
        if sent is None and sample.response_length:
            raise RolloutError(
                f"sample {sample.index} of group {sample.group_index} has a response, and nothing says which experts "
                "it was sampled with (--use-rollout-routing-replay): its generation function has to fill "
                "sample.rollout_routed_experts"
            )
        sent = np.empty((0, width), np.int16) if sent is None else sent
        rows.append(np.pad(sent, ((0, len(sample.tokens) - len(sent)), (0, 0)), constant_values=-1))
    return rows


def _first_version(sample: Sample) -> int:
    """The oldest version that sampled a token which counts in the loss; -1 where there is none."""
    version = oldest_counted_version(sample)
    return -1 if version is None else version


def _last_version(sample: Sample) -> int:
    """The newest version that sampled a token of the response; -1 for an empty one."""
    return max((span.version for span in sample.weight_versions), default=-1)


def rollout_metrics(groups: Sequence[SampleGroup], reward_key: str | None) -> dict[str, float]:
    """`rollout/...` metrics of one partition."""
    samples = [sample for group in groups for sample in group]
    rewards = np.array([sample.get_reward_value(reward_key) for sample in samples])
    lengths = np.array([sample.response_length for sample in samples])
    spread = [np.std([sample.get_reward_value(reward_key) for sample in group]) for group in groups]
    metrics = {
        "rollout/raw_reward": float(np.nanmean(rewards)),
        "rollout/response_len/mean": float(lengths.mean()),
        "rollout/response_len/median": float(np.median(lengths)),
        "rollout/response_len/max": float(lengths.max()),
        "rollout/response_len/min": float(lengths.min()),
        "rollout/truncated_ratio": float(np.mean([sample.status is SampleStatus.TRUNCATED for sample in samples])),
        "rollout/repetition_frac": float(np.mean([repeats_itself(sample.response) for sample in samples])),
        "rollout/zero_std_ratio": float(np.mean(np.asarray(spread) == 0.0)),
    }
    metrics |= _pass_rates(groups, reward_key) | _ends(samples) | _cached(samples)
    alike = [group[0].get_reward_value(reward_key) for group, std in zip(groups, spread, strict=True) if std == 0.0]
    metrics |= {f"rollout/zero_std/count_{reward:g}": float(count) for reward, count in Counter(alike).items()}
    parts: dict[str, list[float]] = {}
    for sample in samples:
        if isinstance(sample.reward, dict):
            for key, value in sample.reward.items():
                if isinstance(value, (int, float)) and key != reward_key:
                    parts.setdefault(key, []).append(float(value))
    # The metrics above win over a reward's part of the same name.
    return {f"rollout/{key}": float(np.mean(values)) for key, values in parts.items()} | metrics


def _pass_rates(groups: Sequence[SampleGroup], reward_key: str | None) -> dict[str, float]:
    """`pass@k` for k = 1, 2, 4, ... up to the smallest group: the unbiased estimate `1 - C(n - c, k) / C(n, k)` of
    Chen et al. 2021 (arXiv:2107.03374), c of n samples having reward 1."""
    counts = [(len(group), sum(s.get_reward_value(reward_key) == 1 for s in group)) for group in groups]
    sizes = [2**power for power in range(min(n for n, _ in counts).bit_length())]
    return {
        f"rollout/passrate/pass@{k}": float(np.mean([1.0 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts]))
        for k in sizes
    }


def _ends(samples: Sequence[Sample]) -> dict[str, float]:
    """How generation ended, the mean log-prob of what was sampled, and turns where there are any."""
    metrics: dict[str, float] = {}
    for status, count in Counter(sample.status.value for sample in samples).items():
        metrics[f"rollout/stop_reason/{status}/count"] = float(count)
        metrics[f"rollout/stop_reason/{status}/ratio"] = count / len(samples)
    tokens = sum(len(sample.rollout_log_probs or ()) for sample in samples)
    if tokens:
        metrics["rollout/rollout_log_probs"] = sum(math.fsum(s.rollout_log_probs or ()) for s in samples) / tokens
    pictures = [len(s.multimodal_inputs.get("image") or ()) for s in samples if s.multimodal_inputs]
    if pictures:
        metrics |= {
            "rollout/image_count/mean": sum(pictures) / len(samples),
            "rollout/image_count/max": float(max(pictures)),
        }
    turns = [notes["turns"] for s in samples if (notes := s.metadata.get("environment")) and "turns" in notes]
    if turns:
        metrics |= {f"rollout/num_turn/{name}": float(of(turns)) for name, of in (("mean", np.mean), ("min", min))}
        metrics["rollout/num_turn/max"] = float(max(turns))
        metrics |= {f"rollout/num_turn/p{p}": float(np.percentile(turns, p)) for p in (50, 90, 95, 99)}
    return metrics


def _cached(samples: Sequence[Sample]) -> dict[str, float]:
    """What engines had in their prefix caches; nothing where requests were not the engine's own."""
    sent, cached = (sum(getattr(s, name) for s in samples) for name in ("sent_tokens", "cached_tokens"))
    if not sent:
        return {}
    return {
        "rollout/prefix_cache_hit_rate": cached / sent,
        "rollout/avg_cached_tokens_per_sample": cached / len(samples),
    }


def repeats_itself(text: str) -> bool:
    """Whether a long response goes round in circles: zlib makes less than a tenth of its last 10,000 characters."""
    if len(text) <= _LONG:
        return False
    end = text[-_LONG:].encode()
    return len(end) > _REPETITION * len(zlib.compress(end, 9))


def leave_one_out_metrics(groups: Sequence[SampleGroup], reward_key: str | None) -> dict[str, float]:
    """`rollout/rloo/...`: what RLOO's baselines make of the rewards; penalties that come after them are left aside.

    The baseline of a sample is the mean reward of its group's others (Ahmadian et al. 2024, arXiv:2402.14740). A token
    has no signal where the advantage of its sample is 0.
    """
    advantages, tokens = [], []
    for group in groups:
        rewards = np.array([sample.get_reward_value(reward_key) for sample in group])
        others = (rewards.sum() - rewards) / max(1, len(group) - 1)
        advantages.append(rewards - others)
        tokens.append(np.array([sample.effective_response_length for sample in group]))
    flat, lengths = np.concatenate(advantages), np.concatenate(tokens)
    still = np.abs(flat) < 1e-12
    samples = [sample for group in groups for sample in group]
    return {
        "rollout/rloo/baseline_mean": float(np.mean([s.get_reward_value(reward_key) for s in samples])),
        "rollout/rloo/adv_abs_mean": float(np.abs(flat).mean()),
        "rollout/rloo/no_signal_frac": float(lengths[still].sum() / max(1, lengths.sum())),
        "rollout/rloo/empty_response_frac": float(np.mean([s.response_length == 0 for s in samples])),
        "rollout/rloo/zero_adv_group_frac": float(np.mean([bool((np.abs(a) < 1e-12).all()) for a in advantages])),
    }

"""From a scored rollout to the rewards that advantages are made of: shaping, normalisation, or a user's function.

What lives here: the order of these, and the contract of `--custom-reward-post-process-path`. What does not: formulas
(`relax_engine.algorithms.shaping`, `.rewards`) and scoring (`relax_engine.rewards`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from relax_engine.algorithms import registry
from relax_engine.algorithms.rewards import normalize_rewards
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.shaping import ShapingSettings, shape_rewards
from relax_engine.algorithms.spec import AlgorithmSpec
from relax_engine.types import Sample
from relax_engine.utils.hooks import load_function


@dataclass(frozen=True, slots=True)
class RewardStage:
    """Turns the samples of whole groups into `(raw, processed)` rewards, f32 `[rows]` each.

    `raw` is what the reward said, for the logs. `processed` is `post_process`'s answer, or else the raw reward with
    length penalties added and then normalised in its group as the algorithm asks. A sample that brings a
    `custom_advantage` has that instead.
    """

    spec: AlgorithmSpec
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    shaping: ShapingSettings = field(default_factory=ShapingSettings)
    reward_key: str | None = None
    post_process: Callable[..., Any] | None = None
    deferred: bool = False
    """Samples were not scored: what `post_process` returns as raw (else as processed) becomes the sample's reward."""
    args: Any = None

    @classmethod
    def from_config(cls, args: Any) -> Self:
        """What the flags ask for.

        Raises:
            ValueError, ImportError: `--custom-reward-post-process-path` names no function.
        """
        settings = AlgorithmSettings.from_config(args)
        path = args.custom_reward_post_process_path
        return cls(
            registry.get(settings.advantage_estimator),
            settings,
            ShapingSettings.from_config(args),
            args.reward_key,
            load_function(path) if path else None,
            args.defer_reward_to_post_process,
            args,
        )

    def __call__(self, samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
        """The rewards of `samples`, groups complete.

        Raises:
            ValueError: a sample was not scored, or the user's function returned another number of rewards.
        """
        if self.post_process is not None:
            raw, processed = self._custom(samples)
        else:
            raw = np.array([sample.get_reward_value(self.reward_key) for sample in samples], np.float32)
            groups = np.array([sample.group_index for sample in samples], np.int64)
            lengths = [sample.response_length for sample in samples]
            shaped = shape_rewards(raw, lengths, groups, self.shaping)
            # Contexts of one session are one sample of their group, worth the reward of the first.
            first, place = _logical(samples)
            processed = normalize_rewards(self.spec, shaped[first], groups[first], self.algorithm)[place]
        for row, sample in enumerate(samples):
            if sample.custom_advantage is not None:
                processed[row] = sample.custom_advantage
        return raw, processed

    def _custom(self, samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
        assert self.post_process is not None
        result = self.post_process(self.args, list(samples))
        raw, processed = result if isinstance(result, tuple) else (None, result)
        if raw is None and self.deferred:
            raw = processed
        elif raw is None:
            raw = [sample.get_reward_value(self.reward_key) for sample in samples]
        rewards = np.array(raw, np.float32), np.array(processed, np.float32)
        if any(values.shape != (len(samples),) for values in rewards):
            name = getattr(self.post_process, "__name__", type(self.post_process).__name__)
            raise ValueError(
                f"--custom-reward-post-process-path: {name} returned rewards of shape "
                f"{[list(values.shape) for values in rewards]} for {len(samples)} samples; return a list with one "
                "number per sample, or (raw list, processed list)"
            )
        if self.deferred:
            for sample, value in zip(samples, rewards[0].tolist(), strict=True):
                sample.reward = value if self.reward_key is None else {self.reward_key: value}
        return rewards


def _logical(samples: Sequence[Sample]) -> tuple[list[int], list[int]]:
    """The first row of each logical sample, and for each row the place of its sample among these."""
    first: dict[tuple[int, int], int] = {}
    for row, sample in enumerate(samples):
        first.setdefault((sample.group_index, sample.index), row)
    places = {key: place for place, key in enumerate(first)}
    return list(first.values()), [places[sample.group_index, sample.index] for sample in samples]

"""The sample: one prompt with one response, from the data source to the optimizer step.

What lives here: plain data that every part of the engine exchanges. What does not: columns
(`relax_engine.stream.columns`), configuration (`relax_engine.config`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Message = dict[str, Any]


class SampleStatus(enum.StrEnum):
    """Where a sample's generation stands."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


class NamesRewardKey(Protocol):
    """Something with the flag `--reward-key`, as `args` is."""

    @property
    def reward_key(self) -> str | None:
        """Key of the score in rewards that are dictionaries."""


@dataclass(slots=True)
class WeightVersionSpan:
    """Response tokens `[start, end)` were sampled from the weights of `version`."""

    version: int
    start: int
    end: int


@dataclass(slots=True)
class Sample:
    """One response to one prompt.

    `group_index` names the prompt group (its `n_samples_per_prompt` samples), `index` the logical
    sample. `tokens` are prompt and response ids; `loss_mask` and `rollout_log_probs` have one entry
    per response token, and log-probs are natural logarithms under the *sampling* distribution.
    """

    Status: ClassVar[type[SampleStatus]] = SampleStatus

    group_index: int = 0
    index: int = 0
    prompt: str | list[Message] = ""
    tokens: list[int] = field(default_factory=list)
    rollout_tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    """Media by kind (`image`, `video`, `audio`), JSON-ready; see `relax_engine.multimodal.content`."""
    multimodal_train_inputs: dict[str, Any] | None = None
    """Arrays that the model's encoders read, by transformers' names; see `relax_engine.multimodal.processor`."""
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | list[float] | None = None
    custom_advantage: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[WeightVersionSpan] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: NDArray[np.int16] | None = field(default=None, compare=False)
    """The experts that each token but the last was sent to, `[tokens - 1, layers * k]`, with
    `--use-rollout-routing-replay`."""
    remove_sample: bool = False
    abort_count: int = 0
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    timings: dict[str, float] = field(default_factory=dict, compare=False)
    """When its group was `admitted`, sampling `started`, it was `generated` and `scored`; seconds since the epoch."""
    engine: str | None = field(default=None, compare=False)
    """Address of the engine that was asked last."""
    sent_tokens: int = field(default=0, compare=False)
    """Tokens of the prompts of its engine requests, and how many of them engines had in their prefix caches."""
    cached_tokens: int = field(default=0, compare=False)

    @property
    def prompt_length(self) -> int:
        """Number of prompt tokens."""
        return len(self.tokens) - self.response_length

    @property
    def effective_response_length(self) -> int:
        """Number of response tokens that count in the loss."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    @property
    def first_version(self) -> int | None:
        """Weight version that produced the first response token; None before generation."""
        return self.weight_versions[0].version if self.weight_versions else None

    def update_from_meta_info(self, args: Any, meta_info: Mapping[str, Any]) -> None:
        """Take status and weight versions from an engine's `meta_info`, once its tokens were appended.

        For generation functions of users; `args` is not read.
        """
        kinds = {"stop": SampleStatus.COMPLETED, "length": SampleStatus.TRUNCATED, "abort": SampleStatus.ABORTED}
        self.status = kinds[meta_info["finish_reason"]["type"]]
        start = self.response_length - int(meta_info["completion_tokens"])
        for span in meta_info.get("weight_versions") or []:
            self.weight_versions.append(
                WeightVersionSpan(int(span["version"]), start + int(span["start"]), start + int(span["end"]))
            )

    def get_reward_value(self, reward_key: str | NamesRewardKey | None = None) -> float:
        """The scalar reward; `reward_key`, or that of `args`, picks the entry of a dict reward.

        Raises:
            ValueError: the sample was not scored, or the key is missing.
        """
        if reward_key is not None and not isinstance(reward_key, str):
            reward_key = reward_key.reward_key
        reward = self.reward
        if reward is None:
            raise ValueError(f"sample {self.index} (group {self.group_index}) has no reward")
        if isinstance(reward, Mapping):
            if reward_key is None:
                raise ValueError(
                    f"sample {self.index}: the reward is a dict with keys {sorted(reward)}; name one with --reward-key"
                )
            if reward_key not in reward:
                raise ValueError(f"sample {self.index}: --reward-key {reward_key!r} is not among {sorted(reward)}")
            reward = reward[reward_key]
        if isinstance(reward, list):
            raise ValueError(f"sample {self.index}: a list reward has no single value")
        return float(reward)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; inverse of `from_dict` but for `multimodal_train_inputs`, which are made again."""
        data = dataclasses.asdict(dataclasses.replace(self, multimodal_train_inputs=None))
        data["status"] = self.status.value
        if self.rollout_routed_experts is not None:
            data["rollout_routed_experts"] = self.rollout_routed_experts.tolist()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sample:
        """Build a sample from `to_dict`'s output.

        Raises:
            TypeError: an unknown field.
        """
        values = dict(data)
        values["status"] = SampleStatus(values.get("status", "pending"))
        values["weight_versions"] = [
            span if isinstance(span, WeightVersionSpan) else WeightVersionSpan(**span)
            for span in values.get("weight_versions", [])
        ]
        if values.get("rollout_routed_experts") is not None:
            import numpy as np

            values["rollout_routed_experts"] = np.asarray(values["rollout_routed_experts"], np.int16)
        return cls(**values)


SampleGroup = list[Sample]

ProgressCallback = Callable[[int, int], None]

"""Environments of other libraries as `build_env`, in one line each.

    build_env = gymnasium_env("FrozenLake-v1", action=int, is_slippery=False)
    build_env = reasoning_gym_env("spell_backward")

What lives here: the adapters. What does not: the libraries, which are imported when an environment is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relax_engine.rewards.extract import after_thoughts, last_answer
from relax_engine.rollout.environment import BaseInteractionEnv, Observation

BuildEnv = Callable[..., BaseInteractionEnv]


class GymnasiumEnv(BaseInteractionEnv):
    """A Gymnasium environment whose actions are read from text, and whose observations are shown as text."""

    def __init__(self, env: Any, seed: int, action: Callable[[str], Any], show: Callable[[Any], str]) -> None:
        self.env, self.seed, self._action, self._show = env, seed, action, show

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Begin with the sample's seed, so that the samples of a group face the same start."""
        observation, info = self.env.reset(seed=self.seed)
        return {"obs_str": self._show(observation)}, dict(info)

    def step(self, response_text: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Act; a response that names no action is shown why, and costs nothing but the turn."""
        try:
            action = self._action(_said(response_text))
        except (ValueError, TypeError, KeyError) as error:
            return {"obs_str": f"no action: {error}"}, 0.0, False, False, {"invalid": True}
        if not self.env.action_space.contains(action):
            message = f"no action: {action!r} is not in {self.env.action_space}"
            return {"obs_str": message}, 0.0, False, False, {"invalid": True}
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return {"obs_str": self._show(observation)}, float(reward), bool(terminated), bool(truncated), {}

    def close(self) -> None:
        """Close it."""
        self.env.close()


def gymnasium_env(
    name: str, *, action: Callable[[str], Any] = str, show: Callable[[Any], str] = str, **options: Any
) -> BuildEnv:
    """`build_env` of a Gymnasium environment.

    Args:
        name: Its registered name.
        action: An action from the response (its `<answer>`, if it has one); raises ValueError for none.
        show: Text of an observation.
        options: Of `gymnasium.make`.
    """

    def build_env(sample: Any = None, args: Any = None, **_: Any) -> BaseInteractionEnv:
        import gymnasium

        seed = int(sample.metadata.get("seed", sample.group_index))
        return GymnasiumEnv(gymnasium.make(name, **options), seed, action, show)

    return build_env


class ReasoningGymEnv(BaseInteractionEnv):
    """One question of a reasoning-gym dataset: a response is scored by the dataset, and more tries are left or not."""

    def __init__(self, dataset: Any, entry: dict[str, Any], tries: int) -> None:
        self.dataset, self.entry, self.tries = dataset, entry, tries
        self._turns = 0

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Show the question."""
        return {"obs_str": self.entry["question"]}, {}

    def step(self, response_text: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Score an answer."""
        self._turns += 1
        value = float(self.dataset.score_answer(_said(response_text), self.entry))
        over = self._turns >= self.tries
        return {"obs_str": "Not right. Try again."}, value, value >= 1.0, over, {"score": value}


def reasoning_gym_env(name: str, *, tries: int = 1, **options: Any) -> BuildEnv:
    """`build_env` of a reasoning-gym dataset; the row's metadata `source_index` (or `index`) says which question.

    Args:
        name: Of the dataset.
        tries: Answers that a sample may give.
        options: Of `reasoning_gym.create_dataset`, which must be those that the prompts were made with.
    """

    def build_env(sample: Any = None, args: Any = None, **_: Any) -> BaseInteractionEnv:
        import reasoning_gym

        index = int(sample.metadata.get("source_index", sample.metadata.get("index", 0)))
        dataset = reasoning_gym.create_dataset(name, **{"size": index + 1, **options})
        return ReasoningGymEnv(dataset, dataset[index], tries)

    return build_env


def _said(response: str) -> str:
    """The `<answer>` of a response, or what follows its thoughts."""
    text = after_thoughts(response)
    answer = last_answer(text)
    return (text if answer is None else answer).strip()

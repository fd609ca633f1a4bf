"""From rewards to what advantages are made of: order of shaping and normalisation, and the user's function."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax_engine.rollout.reward_stage import RewardStage
from relax_engine.types import Sample


def stage(**flags: Any) -> RewardStage:
    return RewardStage.from_config(
        SimpleNamespace(
            **{
                "reward_key": None,
                "custom_reward_post_process_path": None,
                "defer_reward_to_post_process": False,
                **flags,
            }
        )
    )


def samples(*rewards: Any, lengths: tuple[int, ...] | None = None) -> list[Sample]:
    return [
        Sample(group_index=row // 2, index=row, reward=reward, response_length=(lengths or [1] * len(rewards))[row])
        for row, reward in enumerate(rewards)
    ]


def test_penalties_come_before_the_normalisation_and_the_raw_reward_stays() -> None:
    flags = {"overlong_buffer_len": 5, "rollout_max_response_len": 10, "disable_grpo_std_normalization": True}
    raw, processed = stage(**flags)(samples(1.0, 1.0, 0.0, 1.0, lengths=(5, 10, 1, 1)))
    assert raw.tolist() == [1.0, 1.0, 0.0, 1.0]
    assert processed.tolist() == [0.5, -0.5, -0.5, 0.5]


def test_a_custom_advantage_is_taken_as_it_is() -> None:
    group = samples(1.0, 0.0)
    group[1].custom_advantage = -7.0
    assert stage(disable_grpo_std_normalization=True)(group)[1].tolist() == [0.5, -7.0]


CODE = """
def rank(args, samples):
    order = sorted(sample.get_reward_value(args.reward_key) for sample in samples)
    return [float(order.index(sample.get_reward_value(args.reward_key))) for sample in samples]

def both(args, samples):
    return [9.0] * len(samples), [args.offset + sample.reward["score"] for sample in samples]

def short(args, samples):
    return [0.0]
"""


def test_a_users_function_replaces_shaping_and_normalisation(tmp_path: Path) -> None:
    file = tmp_path / "post_process.py"
    file.write_text(CODE)
    scored = samples({"score": 3.0}, {"score": 1.0})
    ranked = stage(custom_reward_post_process_path=f"{file}:rank", reward_key="score")(scored)
    assert [values.tolist() for values in ranked] == [[3.0, 1.0], [1.0, 0.0]]
    both = stage(custom_reward_post_process_path=f"{file}:both", offset=0.5)(scored)
    assert [values.tolist() for values in both] == [[9.0, 9.0], [3.5, 1.5]]
    with pytest.raises(ValueError, match=r"short returned rewards of shape \[\[2\], \[1\]\] for 2 samples"):
        stage(custom_reward_post_process_path=f"{file}:short", reward_key="score")(scored)


def test_deferred_rewards_become_the_samples_own(tmp_path: Path) -> None:
    file = tmp_path / "deferred.py"
    file.write_text(
        "def raw_too(args, samples):\n    return [1.0, 3.0], [-1.0, 1.0]\n"
        "def one(args, samples):\n    return [0.5, 0.25]\n"
    )
    flags = {"defer_reward_to_post_process": True, "reward_key": "score"}
    unscored = samples(None, None)
    raw, processed = stage(custom_reward_post_process_path=f"{file}:raw_too", **flags)(unscored)
    assert (raw.tolist(), processed.tolist()) == ([1.0, 3.0], [-1.0, 1.0])
    assert [sample.get_reward_value("score") for sample in unscored] == [1.0, 3.0]
    raw, processed = stage(custom_reward_post_process_path=f"{file}:one", **flags)(unscored)
    assert raw.tolist() == processed.tolist() == [0.5, 0.25]

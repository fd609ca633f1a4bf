"""The reward function written in docs/rewards.md works as printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from relax_engine.rewards import RewardExecutor, RewardSettings
from relax_engine.types import Sample

DOCS = Path(__file__).parents[3] / "docs" / "rewards.md"


async def test_own_reward_in_a_file(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    file = tmp_path / "my_rewards.py"
    file.write_text(code)
    settings = RewardSettings(custom_rm_path=f"{file}:reward_func", reward_key="score")
    samples = [
        Sample(response="it is 42", response_length=3, label="42"),
        Sample(response="it is 42, I am sure", response_length=60, label="42"),
        Sample(response="no", response_length=1, label="42"),
    ]
    with RewardExecutor(settings, SimpleNamespace(rollout_max_response_len=100)) as executor:
        await executor.score(samples)
    assert [sample.get_reward_value("score") for sample in samples] == [1.0, 0.5, 0.5]
    assert [sample.reward["right"] for sample in samples] == [True, True, False]  # type: ignore[index, call-overload]

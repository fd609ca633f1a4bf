"""The reward function and the terms written in docs/rewards.md work as printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from relax_engine.config import parse_args
from relax_engine.config.doctor import check
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


def test_reward_terms_in_a_configuration_file(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    file = tmp_path / "run.yaml"
    file.write_text(text)
    config = parse_args(["--config", str(file)])
    terms = {term.name: term for term in RewardSettings.from_config(config.flat).terms}
    assert {name: (term.reward, term.weight) for name, term in terms.items()} == {
        "rm_type": ("rm_type", 1.0),
        "format": ("format", 0.1),
        "loops": ("repetition", 0.5),
        "judge": ("genrm", 0.3),
    }
    assert terms["loops"].arguments == {"ngram": 16}
    assert not [finding for finding in check(config) if "reward_terms" in str(finding) or "genrm_url" in str(finding)]

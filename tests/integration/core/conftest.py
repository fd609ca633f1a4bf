from dataclasses import dataclass
from pathlib import Path
from typing import Any

import core_rewards
import pytest

from relax_engine.config import RunConfig


@dataclass(frozen=True)
class Tiny:
    """A random model of a million parameters and a few hundred prompts."""

    model: Path
    prompts: Path

    def flags(self, run_dir: Path, **changes: Any) -> dict[str, Any]:
        """A run of three steps of 16 samples, by flag name."""
        return {
            "hf_checkpoint": str(self.model),
            "prompt_data": [str(self.prompts)],
            "input_key": "prompt",
            "label_key": "label",
            "apply_chat_template": True,
            "run_dir": str(run_dir),
            "num_rollout": 3,
            "rollout_batch_size": 4,
            "n_samples_per_prompt": 4,
            "rollout_max_prompt_len": 32,
            "rollout_max_response_len": 10,
            "rollout_shuffle": True,
            "max_tokens_per_gpu": 2048,
            "custom_rm_path": f"{core_rewards.HERE}:spread",
            "lr": 1e-3,
            "wait_timeout": 60.0,
            "role_deadline": 90.0,
            "rollout_engine_init_timeout": 90.0,
            "rollout_http_timeout": 60.0,
            "weight_sync_timeout": 60.0,
            **changes,
        }

    def config(self, run_dir: Path, **changes: Any) -> RunConfig:
        """The same as a configuration."""
        return RunConfig.from_flat(**self.flags(run_dir, **changes))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Made once for all runs."""
    from data_prep.convert import convert
    from examples.tiny_math.make_data import make_data
    from examples.tiny_math.make_model import make_model

    root = tmp_path_factory.mktemp("tiny")
    raw = make_data(root / "raw", train_rows=300, heldout_rows=1, sft_rows=1)
    convert(str(raw["train"]), root / "train.parquet")
    return Tiny(make_model(root / "model"), root / "train.parquet")

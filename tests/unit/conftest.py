"""Files that a complete configuration can point at."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class RunFiles:
    """A model directory, a training file and an evaluation file."""

    model: Path
    train: Path
    test: Path

    @property
    def flags(self) -> dict[str, object]:
        """The fields of a run on these files that the doctor has nothing to say about."""
        return {
            "hf_checkpoint": str(self.model),
            "prompt_data": [str(self.train)],
            "input_key": "prompt",
            "label_key": "label",
            "num_rollout": 2,
            "rollout_batch_size": 4,
            "n_samples_per_prompt": 2,
            "rm_type": "math",
        }


@pytest.fixture
def run_files(tmp_path: Path) -> RunFiles:
    """Write the files into the test's directory."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(QWEN3))
    (model / "tokenizer.json").write_text("{}")
    rows = pa.table({"prompt": ["1+1?", "2+2?"], "label": ["2", "4"], "extra_info": [{"n": 1}, {"n": 2}]})
    for name in ("train.parquet", "test.parquet"):
        pq.write_table(rows, tmp_path / name)
    return RunFiles(model, tmp_path / "train.parquet", tmp_path / "test.parquet")

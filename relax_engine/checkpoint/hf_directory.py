"""Everything of a Hugging Face model directory that is not weights: config, tokenizer, templates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from relax_engine.checkpoint.hf_reader import INDEX, read_config
from relax_engine.checkpoint.safetensors_writer import PlannedTensor

_COPIED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "additional_chat_templates",
    "*preprocessor_config.json",
    "processor_config.json",
    "LICENSE*",
)


def copy_companions(origin: Path, target: Path) -> None:
    """Copy tokenizer, chat templates, generation and processor settings and licence, where they exist."""
    for path in sorted({path for pattern in _COPIED for path in origin.glob(pattern)}):
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)


def write_config(origin: Path, target: Path, dtype: str) -> None:
    """The origin's ``config.json`` with the weights' type, under the key the origin uses for it."""
    config = read_config(origin)
    config["torch_dtype" if "torch_dtype" in config and "dtype" not in config else "dtype"] = dtype
    (target / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def shard_names(count: int) -> list[str]:
    """File names of ``count`` weight shards, as transformers names them."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def write_index(target: Path, names: Sequence[str], shards: Sequence[Sequence[PlannedTensor]]) -> None:
    """``model.safetensors.index.json``: which shard holds which tensor; nothing for a single shard."""
    if len(shards) == 1:
        return
    weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (target / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")

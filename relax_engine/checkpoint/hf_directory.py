"""Everything of a Hugging Face model directory that is not weights: config, tokenizer, templates."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from typing import Any

from relax_engine.checkpoint.files import Place, files_at, read_bytes
from relax_engine.checkpoint.hf_reader import CONFIG, INDEX, read_config
from relax_engine.checkpoint.output import Output
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


def copy_companions(origin: Place, target: Output) -> None:
    """Copy tokenizer, chat templates, generation and processor settings and licence, where they exist."""
    files = files_at(origin)
    for name, size in files.sizes().items():
        if any(fnmatch.fnmatchcase(name.partition("/")[0], pattern) for pattern in _COPIED):
            with target.file(name) as path:
                path.write_bytes(read_bytes(files, name, size))


def write_config(origin: Place, target: Output, dtype: str, quantization: Mapping[str, Any] | None) -> None:
    """The origin's ``config.json`` with the weights' type, under the key the origin uses for it, and quantisation."""
    config = read_config(origin)
    config["torch_dtype" if "torch_dtype" in config and "dtype" not in config else "dtype"] = dtype
    config.pop("quantization_config", None)
    if quantization is not None:
        config["quantization_config"] = quantization
    with target.file(CONFIG) as path:
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def shard_names(count: int) -> list[str]:
    """File names of ``count`` weight shards, as transformers names them."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def write_index(target: Output, names: Sequence[str], shards: Sequence[Sequence[PlannedTensor]]) -> None:
    """``model.safetensors.index.json``: which shard holds which tensor; nothing for a single shard."""
    if len(shards) == 1:
        return
    weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    with target.file(INDEX) as path:
        path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")

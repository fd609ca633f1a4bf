"""Directories of adapters as PEFT writes and reads them: `adapter_config.json` and `adapter_model.safetensors`.

What lives here: the two files. The format is that of PEFT's LoRA (https://huggingface.co/docs/peft/main/en/developer_guides/checkpoint):
tensors `base_model.model.<layer>.lora_A.weight` and `...lora_B.weight`, and in the configuration `r`, `lora_alpha`
and the layers' names. What does not: where adapters come from (`exporter.py`, the training backend).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from relax_engine.checkpoint.adapters import AdapterMap, AdapterShape
from relax_engine.checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError
from relax_engine.checkpoint.output import Output
from relax_engine.checkpoint.safetensors_writer import PlannedTensor, write_safetensors

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PLAIN = {"use_rslora": False, "use_dora": False, "bias": "none", "fan_in_fan_out": False}
"""Variants of LoRA that compute something else, and their values here."""


def write_peft(output: Output, adapters: Mapping[str, Tensor], shape: AdapterShape, base: str) -> None:
    """Write both files; `adapters` are tensors by Hugging Face name, `base` is the model they belong to."""
    named = {_PREFIX + name: tensor.contiguous() for name, tensor in adapters.items()}
    plan = [PlannedTensor(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named.items()]
    with output.file(WEIGHTS) as path:
        write_safetensors(path, plan, ((name, [tensor]) for name, tensor in named.items()), lambda _: None)
    layers = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in adapters})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": shape.rank,
        "lora_alpha": shape.alpha,
        "lora_dropout": 0.0,
        "target_modules": layers,
        "inference_mode": True,
        **_PLAIN,
    }
    with output.file(CONFIG) as path:
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_peft(directory: str | Path, wanted: AdapterMap) -> dict[str, Tensor]:
    """The adapters in a PEFT directory, by Hugging Face name, which must be those of `wanted`.

    Raises:
        CheckpointNotFoundError: one of the files is missing.
        DamagedCheckpointError: another rank, scale, variant or set of layers than `wanted`.
    """
    place = Path(directory)
    for name in (CONFIG, WEIGHTS):
        if not (place / name).is_file():
            raise CheckpointNotFoundError(f"{place} has no {name}; give a directory that PEFT's save_pretrained wrote")
    _check_config(place, json.loads((place / CONFIG).read_text(encoding="utf-8")), wanted.shape)
    found = {name.removeprefix(_PREFIX): tensor for name, tensor in load_file(place / WEIGHTS).items()}
    for problem, names in (
        ("lacks", wanted.owner.keys() - found.keys()),
        ("has, beyond the layers of --lora-target-modules,", found.keys() - wanted.owner.keys()),
    ):
        if names:
            raise DamagedCheckpointError(f"{place} {problem} {_few(names)}")
    return found


def _check_config(place: Path, config: Mapping[str, Any], shape: AdapterShape) -> None:
    given = {"r": config.get("r"), "lora_alpha": config.get("lora_alpha")}
    if given != {"r": shape.rank, "lora_alpha": shape.alpha}:
        raise DamagedCheckpointError(
            f"{place} holds adapters of {given}; give --lora-rank {given['r']} --lora-alpha {given['lora_alpha']}"
        )
    variants = {key: config[key] for key, plain in _PLAIN.items() if config.get(key, plain) != plain}
    if variants or config.get("rank_pattern") or config.get("alpha_pattern") or config.get("modules_to_save"):
        raise DamagedCheckpointError(
            f"{place} holds a variant of LoRA that is not offered: "
            f"{variants or 'rank_pattern, alpha_pattern or modules_to_save'}"
        )


def _few(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:4]) + (f" and {len(ordered) - 4} more" if len(ordered) > 4 else "")

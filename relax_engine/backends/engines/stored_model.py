"""A version of the weights in an object store, made a model directory that any server can load."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import save_file

from relax_engine.weight_sync.store import latest_version, read_version

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth")


def download_newest(store: str, model_path: str | Path, directory: Path) -> str | None:
    """Write the newest version of the weight store at URL `store` into `directory`; returns the version's name.

    Configuration and tokenizer are those of the model directory `model_path`. None where the store has no version yet,
    and `directory` is left as it is.

    Raises:
        WeightStoreError: the version cannot be read.
    """
    url = latest_version(store)
    if url is None:
        return None
    shutil.copytree(model_path, directory, ignore=shutil.ignore_patterns(*_WEIGHTS), dirs_exist_ok=True)
    manifest, tensors = read_version(url, {})
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors}, directory / "model.safetensors", {"format": "pt"}
    )
    return str(manifest.version)

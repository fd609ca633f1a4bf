"""One rank of a Megatron world that loads an imported checkpoint and saves one of its own.

Run as ``python backend_world.py RANK SIZE PORT HF_DIR IMPORTED_DIR SAVED_DIR OUT_FILE``: loads IMPORTED_DIR and
writes the model's Hugging Face tensors to OUT_FILE; then fills the model with 1.5 times HF_DIR's weights and
saves it, optimizer included, to SAVED_DIR.
"""

from __future__ import annotations

import random
import sys

import numpy as np
import torch
from safetensors.torch import save_file

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import BackendSettings, OptimizerSettings, ParallelLayout
from relax_engine.checkpoint.hf_reader import HfReader


def main(rank: int, size: int, port: str, hf_dir: str, imported: str, saved: str, out_file: str) -> None:
    torch.set_num_threads(1)
    random.seed(0)  # both are saved with the checkpoint, and are compared between two saves
    np.random.seed(0)
    settings = BackendSettings(hf_dir, ParallelLayout(tensor=size), OptimizerSettings())
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=f"tcp://127.0.0.1:{port}")
    assert backend.load(imported, optimizer=False) == {}
    tensors = {name: tensor.clone() for name, tensor in backend.named_hf_tensors()}
    if rank == 0:
        save_file(tensors, out_file)
    reader = HfReader(hf_dir)
    backend.load_hf_tensors((name, reader.tensor(name) * 1.5) for name in reader.names())
    backend.save(saved, extra={"step": 4})
    backend.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

"""Import and export of a checkpoint of a billion parameters, beside a plain copy of the same bytes.

    python benchmarks/export.py [--repeats 3] [--out benchmarks/results/export.json]

The model has the sizes of Llama-3.2-1B (1.24 billion parameters, bfloat16, 2.5 GB) and random weights. Each repeat
imports the Hugging Face directory, copies the resulting checkpoint (and flushes it to the disk, as export does),
exports it, and exports it to FP8 blocks, each in a process of its own, on one thread. Rates are bytes of the
checkpoint per second; the ratio is that of the medians. Peak memory is resident memory above that of the process
after its imports. The round trip is compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARD_MB = 512
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def make_model(folder: Path) -> None:
    """Random weights in files of at most `SHARD_MB`."""
    import torch
    from safetensors.torch import save_file

    from relax_engine.checkpoint.families import model_spec
    from relax_engine.checkpoint.mapping import WeightMap

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    weights = WeightMap(model_spec(CONFIG))
    generator = torch.Generator().manual_seed(0)
    shard: dict[str, Any] = {}
    places: dict[str, str] = {}
    sizes, shards = 0, 0
    names = [*weights.parameters, None]
    for name in names:
        if name is None or sizes > SHARD_MB * 2**20:
            file = f"model-{shards:05d}.safetensors"
            save_file(shard, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(shard, file)
            shard, sizes, shards = {}, 0, shards + 1
        if name is not None:
            full = torch.empty(weights.parameters[name].shape, dtype=torch.bfloat16).normal_(generator=generator)
            shard |= {hf_name: part.contiguous() for hf_name, part in weights.split(name, full)}
            sizes += full.nbytes
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def same_weights(one: Path, two: Path) -> bool:
    """Whether two directories hold the same tensors, bit for bit."""
    import torch

    from relax_engine.checkpoint.hf_reader import HfReader

    first, second = HfReader(one), HfReader(two)
    names = sorted(first.names())
    if names != sorted(second.names()):
        return False
    return all(
        torch.equal(first.tensor(name).view(torch.int16), second.tensor(name).view(torch.int16)) for name in names
    )


def peak_bytes() -> int:
    """Highest resident memory since it was last reset."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def measure(task: str, work: Path) -> dict[str, float]:
    """Run one task in this process; seconds and bytes of memory above the start."""
    import torch

    from relax_engine.checkpoint.durable import sync_tree
    from relax_engine.checkpoint.exporter import export_checkpoint
    from relax_engine.checkpoint.fp8 import Fp8
    from relax_engine.checkpoint.importer import import_checkpoint

    torch.set_num_threads(1)
    torch.ones(4).to(torch.bfloat16).float()
    shard = SHARD_MB * 2**20

    def copy() -> None:
        shutil.copytree(work / "run/iter_0000000", work / "copy")
        sync_tree(work / "copy")

    tasks = {
        "import": lambda: import_checkpoint(work / "hf", work / "run"),
        "copy": copy,
        "export": lambda: export_checkpoint(
            work / "run", work / "out", origin_hf_dir=work / "hf", max_shard_bytes=shard
        ),
        "export_fp8": lambda: export_checkpoint(
            work / "run", work / "fp8", origin_hf_dir=work / "hf", max_shard_bytes=shard, fp8=Fp8("block")
        ),
    }
    Path("/proc/self/clear_refs").write_text("5")
    before, start, cpu = peak_bytes(), time.perf_counter(), time.process_time()
    tasks[task]()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": peak_bytes() - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/export.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        (args.work / "result.json").write_text(json.dumps(measure(args.one, args.work)))
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        results = compare(Path(directory), args.repeats)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({name: value for name, value in results.items() if name != "runs"}, indent=1))


def compare(work: Path, repeats: int) -> dict[str, Any]:
    """Alternate the tasks, and put medians beside the raw runs."""
    make_model(work / "hf")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ("import", "copy", "export", "export_fp8")}
    identical = True
    for repeat in range(repeats):
        for name in runs:
            command = [sys.executable, __file__, "--one", name, "--work", str(work)]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=ROOT)
            runs[name].append(json.loads((work / "result.json").read_text()))
            print(f"{name} {repeat}: {runs[name][-1]}", flush=True)
        identical = identical and same_weights(work / "hf", work / "out")
        nbytes = sum(path.stat().st_size for path in (work / "run/iter_0000000").iterdir())
        for name in ("run", "copy", "out", "fp8"):
            shutil.rmtree(work / name)
    seconds = {name: statistics.median(run["seconds"] for run in runs[name]) for name in runs}
    cpu = {name: statistics.median(run["cpu_seconds"] for run in runs[name]) for name in runs}
    return {
        "parameters": 1_235_814_400,
        "nbytes": nbytes,
        "round_trip_is_bitwise_equal": identical,
        "mb_per_s": {name: round(nbytes / 1e6 / value, 1) for name, value in seconds.items()},
        "ratio_to_copy": {name: round(seconds["copy"] / seconds[name], 3) for name in runs},
        "cpu_ratio_to_copy": {name: round(cpu["copy"] / cpu[name], 3) for name in runs},
        "peak_mb": {name: round(max(run["peak_bytes"] for run in runs[name]) / 1e6, 1) for name in runs},
        "allowed_peak_mb": round(2 * SHARD_MB * 2**20 / 1e6 + 300, 1),
        "load1": os.getloadavg()[0],
        "runs": runs,
    }


if __name__ == "__main__":
    main()

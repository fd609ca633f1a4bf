"""Trained tokens per second: one optimizer step of this backend beside plain transformers and AdamW.

    python benchmarks/train_step.py [--steps 7] [--out benchmarks/results/train_step.json]

Randomly initialised Qwen3 models of about 10 and 100 million parameters, float32, one thread. A batch is rows of very
different lengths; every token but each row's first is trained, so nothing is saved by sharing prompts. Steps of both
alternate in one process, on the same batches and from the same weights; the losses of each step are compared. Plain
transformers runs in the faster of its two ways to treat rows of different length: padded, in micro-batches of rows
sorted by length, or packed into one row with positions that begin anew. Rates are medians over all steps but the
first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RATE, DECAY = 1e-4, 0.01
LONGEST, SHORTEST = 256, 16
SIZES: dict[str, dict[str, Any]] = {
    "10M": {"vocab_size": 8192, "hidden_size": 256, "layers": 10, "heads": 4, "rows": 32, "micro_rows": 8},
    "100M": {"vocab_size": 16384, "hidden_size": 640, "layers": 18, "heads": 10, "rows": 12, "micro_rows": 4},
}

Step = Callable[[list[np.ndarray]], float]


def make_model(folder: Path, size: dict[str, Any]) -> int:
    """Write a model directory; returns its number of parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=size["vocab_size"],
        hidden_size=size["hidden_size"],
        intermediate_size=3 * size["hidden_size"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["heads"] // 2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def make_batches(size: dict[str, Any], count: int) -> list[list[np.ndarray]]:
    """Rows of random tokens, of lengths from `SHORTEST` to `LONGEST`."""
    rng = np.random.default_rng(0)
    return [
        [
            rng.integers(0, size["vocab_size"], length).astype(np.int32)
            for length in rng.integers(SHORTEST, LONGEST + 1, size["rows"])
        ]
        for _ in range(count)
    ]


class SumOfLogProbs:
    """The mean negative log-likelihood, as a sum of weighted tokens."""

    columns = ("loss_weights",)
    needs_entropy = False

    def __call__(self, log_probs: Any, entropy: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
        return -(inputs.columns["loss_weights"] * log_probs).sum(), {}


def relax_step(folder: Path) -> Step:
    """One step of `MegatronBackend`."""
    from relax_engine.backends.megatron.backend import MegatronBackend
    from relax_engine.backends.megatron.settings import BackendSettings, OptimizerSettings, ParallelLayout
    from relax_engine.stream.columns import Column, ColumnBatch

    optimizer = OptimizerSettings(lr=RATE, weight_decay=DECAY, clip_grad=1.0)
    settings = BackendSettings(str(folder), ParallelLayout(), optimizer)
    backend = MegatronBackend(settings, rank=0, world_size=1, init_method="")
    backend.load_hf(folder)

    def step(rows: list[np.ndarray]) -> float:
        trained = [len(row) - 1 for row in rows]
        batch = ColumnBatch(
            {
                "tokens": Column.ragged(rows, np.int32),
                "response_lengths": Column.fixed(trained, np.int32),
                "loss_weights": Column.ragged([np.full(n, 1 / sum(trained)) for n in trained], np.float32),
            }
        )
        metrics = backend.train_step(batch, SumOfLogProbs(), temperature=1.0, max_tokens=2048, micro_batch_size=1)
        return metrics["loss"]

    return step


def transformers_step(folder: Path, size: dict[str, Any], *, packed: bool) -> Step:
    """One step of transformers' model with torch's fused AdamW and the same clipping."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    flat = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": flat, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, fused=True)

    def loss_of(rows: list[np.ndarray], total: int) -> Any:
        if packed:
            ids = torch.from_numpy(np.concatenate(rows))[None].long()
            places = torch.from_numpy(np.concatenate([np.arange(len(row)) for row in rows]))[None]
            logits = model(input_ids=ids, position_ids=places, use_cache=False).logits
            labels = torch.from_numpy(np.concatenate([np.append(row[1:], -100) for row in rows]))[None].long()
        else:
            longest = max(map(len, rows))
            padded = np.zeros((len(rows), longest), np.int64)
            target = np.full((len(rows), longest), -100, np.int64)
            for index, row in enumerate(rows):
                padded[index, : len(row)] = row
                target[index, : len(row) - 1] = row[1:]
            # Right padding: a causal model needs no mask for what comes before it.
            logits = model(input_ids=torch.from_numpy(padded), use_cache=False).logits
            labels = torch.from_numpy(target)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return loss / total

    def step(rows: list[np.ndarray]) -> float:
        total = sum(len(row) - 1 for row in rows)
        ordered = sorted(rows, key=len)
        optimizer.zero_grad()
        value = 0.0
        for first in range(0, len(rows), size["micro_rows"]):
            loss = loss_of(ordered[first : first + size["micro_rows"]], total)
            loss.backward()
            value += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return value

    return step


def compare(name: str, steps: int) -> dict[str, Any]:
    """Alternate the three on one size."""
    size = SIZES[name]
    batches = make_batches(size, steps + 1)
    with tempfile.TemporaryDirectory() as directory:
        parameters = make_model(Path(directory), size)
        runners = {
            "relax": relax_step(Path(directory)),
            "transformers_padded": transformers_step(Path(directory), size, packed=False),
            "transformers_packed": transformers_step(Path(directory), size, packed=True),
        }
        rates: dict[str, list[float]] = {runner: [] for runner in runners}
        cpu_rates: dict[str, list[float]] = {runner: [] for runner in runners}
        difference = 0.0
        for index, rows in enumerate(batches):
            tokens = sum(len(row) - 1 for row in rows)
            losses = {}
            for runner, step in runners.items():
                start, cpu = time.perf_counter(), time.process_time()
                losses[runner] = step(rows)
                if index:
                    rates[runner].append(tokens / (time.perf_counter() - start))
                    cpu_rates[runner].append(tokens / (time.process_time() - cpu))
            difference = max(difference, max(losses.values()) - min(losses.values()))
    medians = {runner: statistics.median(values) for runner, values in rates.items()}
    cpu_medians = {runner: statistics.median(values) for runner, values in cpu_rates.items()}
    peers = [runner for runner in runners if runner != "relax"]
    return {
        "parameters": parameters,
        "tokens_per_s": medians,
        "tokens_per_cpu_s": cpu_medians,
        "ratio": medians["relax"] / max(medians[peer] for peer in peers),
        "ratio_of_cpu_time": cpu_medians["relax"] / max(cpu_medians[peer] for peer in peers),
        "largest_loss_difference": difference,
        "rates": rates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", choices=sorted(SIZES), default=list(SIZES))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/train_step.json")
    args = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(1)
    results: dict[str, Any] = {"transformers": transformers.__version__, "torch": torch.__version__}
    for name in args.sizes:
        results[name] = compare(name, args.steps)
        shown = {key: value for key, value in results[name].items() if key != "rates"}
        print(name, json.dumps(shown, indent=1), flush=True)
    results["load1"] = os.getloadavg()[0]
    args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

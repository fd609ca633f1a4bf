"""Tokens per CPU-second of the embedded engine, beside transformers' `generate` and the GEMM roofline.

    python benchmarks/engine.py [--model-path DIR]

Without `--model-path` a random Qwen3 of about one million parameters is made. One run measures, in alternating
repetitions: the engine as launched (through HTTP, log-probs on, CPU time of its whole process), `generate`
of transformers with the same 64 sequences as one batch (temperature 1), and the float32 roofline: one large
product and the model's own shapes, by `torch.mm` and by oneDNN, which the engine uses. The raw numbers go to
`benchmarks/results/engine.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

GROUPS, SAMPLES = 8, 8
RESULTS = Path(__file__).parent / "results" / "engine.json"


def make_model(directory: Path) -> Path:
    """A random tied Qwen3 (hidden 128, 4 layers, vocabulary 304) with a word-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=304, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, intermediate_size=384, max_position_embeddings=1024, tie_word_embeddings=True, eos_token_id=2,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(304)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def best_gflops(shapes: Sequence[tuple[int, int, int]], seconds: float, *, packed: bool) -> float:
    """GFLOP/s of float32 products `[m, k] x [k, n]`, all `shapes` in turn: the best of the passes within `seconds`.

    `packed` uses oneDNN with reordered weights, as the engine does on a CPU; otherwise `torch.mm`.
    """
    import torch

    from relax_engine.backends.engines.local.linear import MatmulLinear, PackedLinear

    kind = PackedLinear if packed else MatmulLinear
    work = sum(2 * m * k * n for m, k, n in shapes)
    passes = max(1, int(2e8 / work))
    with torch.inference_mode():
        products = [(kind(torch.randn(n, k), None), torch.randn(m, k)) for m, k, n in shapes]
        best, deadline = 0.0, time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            started = time.thread_time()
            for _ in range(passes):
                for product, x in products:
                    product(x)
            best = max(best, passes * work / (time.thread_time() - started) / 1e9)
    return best


class TransformersRunner:
    """`generate` on one batch; CPU time of this process."""

    def __init__(self, model_path: Path, prompts: list[list[int]], new_tokens: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self.ids = torch.tensor([prompt for prompt in prompts for _ in range(SAMPLES)])
        self.new_tokens = new_tokens

    def run(self) -> float:
        """Tokens per CPU-second of one pass."""
        started = time.process_time()
        output = self.model.generate(
            self.ids, attention_mask=self._torch.ones_like(self.ids), do_sample=True, temperature=1.0, top_k=0,
            top_p=1.0, max_new_tokens=self.new_tokens, min_new_tokens=self.new_tokens, pad_token_id=0,
        )  # fmt: skip
        tokens = (output.shape[1] - self.ids.shape[1]) * output.shape[0]
        return tokens / (time.process_time() - started)


class EngineRunner:
    """The engine through HTTP; CPU time of all threads of its process."""

    def __init__(self, url: str, pid: int, prompts: list[list[int]], new_tokens: int) -> None:
        import psutil

        self.url, self.process = url, psutil.Process(pid)
        self.prompts, self.new_tokens = prompts, new_tokens

    def run(self, repeats: int) -> tuple[float, float]:
        """Tokens per CPU-second and CPU-seconds, over `repeats` requests of 64 sequences."""
        before = self._cpu()
        tokens = asyncio.run(self._requests(repeats))
        cpu = self._cpu() - before
        return tokens / cpu, cpu

    def _cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    async def _requests(self, repeats: int) -> int:
        from relax_engine.backends.engines.client import EngineClient

        params = {"n": SAMPLES, "max_new_tokens": self.new_tokens, "ignore_eos": True, "temperature": 1.0}
        tokens = 0
        async with EngineClient(self.url, timeout_s=300) as client:
            for _ in range(repeats):
                outputs = await client.generate_batch(self.prompts, params)
                tokens += sum(len(output.log_probs) for output in outputs)
        return tokens


def measure(args: argparse.Namespace, model_path: Path) -> dict[str, Any]:
    """All measurements of one run."""
    import numpy as np

    from relax_engine.backends.engines.launch import launch_engine
    from relax_engine.backends.engines.local.arch import load_architecture

    arch = load_architecture(model_path)
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, arch.spec.vocab_size, size=(GROUPS, args.prompt_tokens)).tolist()
    rows = GROUPS * SAMPLES
    layer = [
        (rows, arch.spec.hidden_size, (arch.spec.num_attention_heads + 2 * arch.num_kv_heads) * arch.head_dim),
        (rows, arch.spec.num_attention_heads * arch.head_dim, arch.spec.hidden_size),
        (rows, arch.spec.hidden_size, 2 * arch.spec.ffn_hidden_size),
        (rows, arch.spec.ffn_hidden_size, arch.spec.hidden_size),
    ]
    shapes = layer * arch.spec.num_layers + [(rows, arch.spec.hidden_size, arch.spec.vocab_size)]
    peer = TransformersRunner(model_path, prompts, args.new_tokens)
    samples: list[dict[str, float]] = []
    launched = time.perf_counter()
    with launch_engine(model_path, dtype="float32", device="cpu") as engine:
        launch_seconds = time.perf_counter() - launched
        ours = EngineRunner(engine.url, engine.pid, prompts, args.new_tokens)
        ours.run(2)
        peer.run()
        for _ in range(args.repetitions):
            rate, cpu = ours.run(args.requests)
            samples.append(
                {
                    "engine_tokens_per_cpu_s": rate,
                    "engine_cpu_s": cpu,
                    "transformers_tokens_per_cpu_s": peer.run(),
                    "mm_gflops": best_gflops([(1024, 1024, 1024)], 0.5, packed=False),
                    "model_mm_gflops": best_gflops(shapes, 0.5, packed=False),
                    "onednn_gflops": best_gflops([(1024, 1024, 1024)], 0.5, packed=True),
                    "model_onednn_gflops": best_gflops(shapes, 0.5, packed=True),
                }
            )
    for sample in samples:
        sample["ratio"] = sample["engine_tokens_per_cpu_s"] / sample["transformers_tokens_per_cpu_s"]
        achieved = sample["engine_tokens_per_cpu_s"] * arch.flops_per_token / 1e9
        for roofline in ("mm", "model_mm", "onednn", "model_onednn"):
            sample[f"{roofline}_share"] = achieved / sample[f"{roofline}_gflops"]
    return {
        "workload": {
            "groups": GROUPS, "samples_per_group": SAMPLES, "prompt_tokens": args.prompt_tokens,
            "new_tokens": args.new_tokens, "requests_per_repetition": args.requests,
        },
        "model": {
            "architecture": arch.name, "flops_per_token": arch.flops_per_token, "vocab_size": arch.spec.vocab_size,
        },
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "launch_seconds": launch_seconds,
        "median": {key: statistics.median(sample[key] for sample in samples) for key in samples[0]},
        "repetitions": samples,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Measure, print the medians, write the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, help="Hugging Face directory; default a random tiny Qwen3.")
    parser.add_argument("--prompt-tokens", type=int, default=32, help="Tokens of each prompt.")
    parser.add_argument("--new-tokens", type=int, default=128, help="Tokens of each response.")
    parser.add_argument("--repetitions", type=int, default=7, help="Alternating repetitions; the median counts.")
    parser.add_argument("--requests", type=int, default=4, help="Requests of 64 sequences per repetition.")
    parser.add_argument("--output", type=Path, default=RESULTS, help="Where the raw numbers go.")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        result = measure(args, args.model_path or make_model(Path(directory)))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    median = result["median"]
    sys.stdout.write(
        f"embedded engine   {median['engine_tokens_per_cpu_s']:10,.0f} tokens per CPU-second\n"
        f"transformers      {median['transformers_tokens_per_cpu_s']:10,.0f} tokens per CPU-second\n"
        f"ratio             {median['ratio']:10.2f}\n"
        "roofline          GFLOP/s and the engine's share of it: large product, the model's shapes\n"
        f"  torch.mm        {median['mm_gflops']:6.1f} {median['mm_share']:5.2f}  "
        f"{median['model_mm_gflops']:6.1f} {median['model_mm_share']:5.2f}\n"
        f"  oneDNN          {median['onednn_gflops']:6.1f} {median['onednn_share']:5.2f}  "
        f"{median['model_onednn_gflops']:6.1f} {median['model_onednn_share']:5.2f}\n"
        f"raw numbers in {args.output}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

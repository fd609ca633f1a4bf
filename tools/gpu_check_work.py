"""The processes of `tools/gpu_check.py`: each does one task on the device that it sees, and prints what it found as
JSON.

What lives here: making models, training steps, a weight transfer to an engine, a timed training loop. What does not:
what the numbers must be.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZES: dict[str, dict[str, Any]] = {
    "dense": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3},
    "experts": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2},
    "large": {"vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 16},
    "large on a cpu": {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
LENGTHS, RESPONSES = [40, 17, 63, 25, 9, 51], [20, 5, 30, 24, 1, 40]
STEPS = 3


def models(folder: str, device: str) -> dict[str, Any]:
    """Write the model directories."""
    import transformers

    torch.manual_seed(0)
    for name in ("dense", "experts", "large"):
        sizes = SIZES["large on a cpu" if name == "large" and device == "cpu" else name]
        heads = sizes["hidden_size"] // 32
        common: dict[str, Any] = {
            **sizes,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "head_dim": 64,
        }
        common |= {"max_position_embeddings": 4096, "tie_word_embeddings": True}
        if name == "experts":
            config = transformers.Qwen3MoeConfig(**common, **EXPERTS)
            model: Any = transformers.Qwen3MoeForCausalLM(config)
        else:
            model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common))
        model.save_pretrained(Path(folder, name))
    return {}


def steps(model: str) -> dict[str, Any]:
    """Log-probs beside transformers', packed and one by one; losses and gradient norms of some steps."""
    import torch.distributed as dist

    backend, batch = _backend(model, torch.float32), _batch(LENGTHS, RESPONSES, 512)
    log_probs = backend.forward_log_probs(batch, temperature=1.0, max_tokens=10_000).values
    single = backend.forward_log_probs(batch, temperature=1.0, max_tokens=1).values
    theirs = _by_transformers(model, batch)
    metrics = [_step(backend, batch) for _ in range(STEPS)]
    ones = torch.ones(3, device="cuda" if torch.cuda.is_available() else "cpu")
    dist.all_reduce(ones)
    found = {
        "device": _device_name(),
        "group": dist.get_backend(),
        "summed": float(ones.sum()) == 3.0,
        "transformers_gap": float(np.abs(log_probs - theirs).max()),
        "packing_gap": float(np.abs(log_probs - single).max()),
        "losses": [each["loss"] for each in metrics],
        "norms": [each["grad_norm"] for each in metrics],
    }
    backend.close()
    return found


def transfer(model: str, transport: str, device: str) -> dict[str, Any]:
    """Train a step, send the weights to an engine on the same device, and compare what both say of the same tokens."""
    from relax_engine.backends.engines.client import EngineClient
    from relax_engine.backends.engines.launch import launch_engine
    from relax_engine.config import RunConfig
    from relax_engine.weight_sync.probe import probe_engine
    from relax_engine.weight_sync.receivers import EngineReceiver
    from relax_engine.weight_sync.settings import make_sender

    backend = _backend(model, torch.bfloat16 if device == "cuda" else torch.float32)
    batch = _batch(LENGTHS, RESPONSES, 512)
    sender = make_sender(RunConfig.from_flat(weight_sync_transport=transport), "127.0.0.1")
    engine = launch_engine(model, device=device, extra_args={"skip_tokenizer_init": True}, timeout_s=60.0)

    async def exchange() -> dict[str, Any]:
        before = backend.forward_log_probs(batch, temperature=1.0, max_tokens=10_000)
        for _ in range(STEPS):
            _step(backend, batch)
        expected = backend.forward_log_probs(batch, temperature=1.0, max_tokens=10_000)
        tensors = [(name, tensor.clone()) for name, tensor in backend.named_hf_tensors()]
        report = await sender.push(lambda: iter(tensors), [EngineReceiver(engine.url, 60.0)], 1)
        gap = await probe_engine(engine.url, batch, expected, timeout_s=60.0)
        prompts = [list(range(1 + row, 33 + row)) for row in range(64)]
        async with EngineClient(engine.url, timeout_s=60.0) as client:
            params = {"max_new_tokens": 96, "ignore_eos": True}
            await client.generate_batch(prompts, params)
            began = time.perf_counter()
            outputs = await client.generate_batch(prompts, params)
        seconds = time.perf_counter() - began
        return {
            "gap": gap,
            "moved": float(np.abs(expected.values - before.values).max()) > 10 * gap,
            "sync_s": report.seconds,
            "mb": sum(tensor.nbytes for _, tensor in tensors) / 1e6,
            "tokens_per_s": sum(len(output.output_ids) for output in outputs) / seconds,
        }

    try:
        return asyncio.run(exchange())
    finally:
        engine.close()
        backend.close()


def speed(model: str, device: str) -> dict[str, Any]:
    """Trained tokens per second in bfloat16 (float32 on a CPU), and the operations that a token takes: six for each
    parameter, and `12 layers hidden length` for attention (PaLM, arXiv 2204.02311, appendix B)."""
    on_gpu = device == "cuda"
    backend = _backend(model, torch.bfloat16 if on_gpu else torch.float32)
    length, rows = (2048, 8) if on_gpu else (128, 4)
    batch = _batch([length] * rows, [length - 1] * rows, backend.spec.vocab_size)
    _step(backend, batch, size=2)
    count, began = 5 if on_gpu else 2, time.perf_counter()
    for _ in range(count):
        _step(backend, batch, size=2)
    seconds = (time.perf_counter() - began) / count
    parameters = sum(tensor.numel() for _, tensor in backend.named_hf_tensors())
    spec = backend.spec
    backend.close()
    return {
        "device": _device_name(),
        "parameters": parameters,
        "tokens_per_s": rows * length / seconds,
        "flops_per_token": 6 * parameters + 12 * spec.num_layers * spec.hidden_size * length,
    }


def _backend(model: str, dtype: torch.dtype) -> Any:
    from relax_engine.backends.megatron.backend import MegatronBackend
    from relax_engine.backends.megatron.settings import BackendSettings, OptimizerSettings
    from relax_engine.config.layout import ParallelLayout

    settings = BackendSettings(model, ParallelLayout(), OptimizerSettings(lr=1e-3), dtype=dtype)
    backend = MegatronBackend(settings, rank=0, world_size=1, init_method="")
    backend.load_hf(model)
    return backend


def _batch(lengths: list[int], responses: list[int], vocab: int) -> Any:
    from relax_engine.stream.columns import Column, ColumnBatch

    rng = np.random.default_rng(0)
    weight = 1 / sum(responses)
    return ColumnBatch(
        {
            "tokens": Column.ragged([rng.integers(0, vocab, length) for length in lengths], np.int32),
            "response_lengths": Column.fixed(responses, np.int32),
            "loss_weights": Column.ragged([np.full(count, weight) for count in responses], np.float32),
            "loss_masks": Column.ragged([np.ones(count) for count in responses], np.uint8),
        }
    )


def _step(backend: Any, batch: Any, size: int = 3) -> dict[str, float]:
    from relax_engine.algorithms.supervised import make_sft_loss

    found: dict[str, float] = backend.train_step(
        batch, make_sft_loss(), temperature=1.0, max_tokens=None, micro_batch_size=size
    )
    return found


def _by_transformers(model: str, batch: Any) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    with torch.no_grad():
        for row, count in enumerate(batch["response_lengths"].values.tolist()):
            tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
            logits = hf(tokens[None]).logits[0, -count - 1 : -1]
            found.append(logits.log_softmax(-1).gather(1, tokens[-count:, None]).squeeze(1))
    return torch.cat(found).numpy()


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"


if __name__ == "__main__":
    tasks: dict[str, Callable[..., Any]] = {"models": models, "steps": steps, "transfer": transfer, "speed": speed}
    print(json.dumps(tasks[sys.argv[1]](*sys.argv[2:])))

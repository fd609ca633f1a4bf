"""Every family under every layout against transformers: `make parity` measures all cells and writes docs/parity.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from media_worlds import Reference, media_batch, media_checkpoint, media_model, transformers_answer
from worlds import (
    EXPERTS,
    LATENT,
    YARN,
    AdvantageLoss,
    as_stored,
    clone,
    hf_model,
    make_batch,
    make_checkpoint,
    make_settings,
    run_world,
    share,
)

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import BackendSettings
from relax_engine.checkpoint.divisibility import misfits
from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.hf_reader import read_config
from relax_engine.config.layout import ParallelLayout
from relax_engine.stream.columns import ColumnBatch

LENGTHS = [23, 9, 31, 14, 6, 27, 12, 40]
RESPONSES = [11, 4, 0, 13, 2, 20, 1, 30]
TEMPERATURE = 0.8
LAYERS = 4
BOUNDS = {"log-probs": 1e-5, "loss": 1e-5, "gradient": 1e-4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2 (tied, biases)": {"family": "Qwen2", "tied": True},
    "Qwen3 (tied, qk-norm)": {"family": "Qwen3", "tied": True},
    "Llama 3 (untied, llama3 RoPE)": {"family": "Llama", "rope_parameters": LLAMA3},
    "Mistral (untied)": {"family": "Mistral", "sliding_window": None},
    "Qwen2-MoE (shared expert, first layer dense)": {
        "family": "Qwen2Moe",
        **EXPERTS,
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [0],
    },
    "Qwen3-MoE": {"family": "Qwen3Moe", **EXPERTS},
    "GLM-4 (half rotary, sandwich norms)": {"family": "Glm4", "pad_token_id": None},
    "GLM-4.5 (qk-norm, biases, half rotary, sigmoid router with bias)": {
        "family": "Glm4Moe",
        **{name: size for name, size in LATENT.items() if not name.endswith(("_rank", "_dim", "_heads"))},
        "use_qk_norm": True,
        "attention_bias": True,
        "routed_scaling_factor": 1.5,
    },
    "DeepSeek-V2 (latent attention, group-limited, two shared experts)": {
        "family": "DeepseekV2",
        **LATENT,
        "n_shared_experts": 2,
        "topk_method": "group_limited_greedy",
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.5,
    },
    "DeepSeek-V3 (query latent, sigmoid router with bias, YaRN)": {
        "family": "DeepseekV3",
        **LATENT,
        "q_lora_rank": 20,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
    },
    "Qwen2.5-VL (images, videos)": {"media": "Qwen2_5_VL"},
    "Qwen3-VL (images, videos, two layers of deepstack)": {"media": "Qwen3VL"},
    "Qwen3-VL-MoE (images, videos, two layers of deepstack, experts)": {"media": "Qwen3VLMoe"},
    "Qwen3-Omni thinker (images, videos, audio, experts)": {"media": "Qwen3OmniThinker"},
}
LAYOUTS: dict[str, tuple[int, ParallelLayout]] = {
    "one rank": (1, ParallelLayout()),
    "DP 2": (2, ParallelLayout()),
    "TP 2": (2, ParallelLayout(2)),
    "TP 2, SP": (2, ParallelLayout(2, True)),
    "TP 4, SP (2 kv heads)": (4, ParallelLayout(4, True)),
    "PP 2": (2, ParallelLayout(pipeline=2)),
    "PP 2, interleaved": (2, ParallelLayout(pipeline=2, virtual=2)),
    "CP 2": (2, ParallelLayout(context=2)),
    "EP 2": (2, ParallelLayout(expert=2)),
    "TP 2, SP, EP 2, expert TP 1": (2, ParallelLayout(2, True, expert=2, expert_tensor=1)),
    "TP 2, SP, PP 2": (4, ParallelLayout(2, True, pipeline=2)),
    "PP 2, CP 2": (4, ParallelLayout(pipeline=2, context=2)),
    "CP 2, EP 2, DP 2": (4, ParallelLayout(context=2, expert=2)),
    "TP 2, SP, PP 2, CP 2": (8, ParallelLayout(2, True, pipeline=2, context=2)),
    "TP 2, SP, PP 2, EP 2, expert TP 1": (8, ParallelLayout(2, True, pipeline=2, expert=2, expert_tensor=1)),
}
DOCUMENT = Path(__file__).parents[4] / "docs" / "parity.md"
HEADER = """# Parity

The largest difference of the training backend from transformers, in float32 on CPU ranks (gloo): random models of 4
layers with 4 heads and 2 key/value heads, 8 samples of 6 to 40 tokens (of models that see or hear 6 samples with media
of unequal sizes, of up to 130 tokens), temperature 0.8, the distributed optimizer. Each cell: log-probs (absolute),
loss (relative), gradient (largest difference of an element over the tensor's largest one, or over 1e-3 where all are
smaller); first with micro-batches packed up to 60 tokens, then one sample at a time. Written by `make parity`, which
fails where log-probs or loss differ by more than 1e-5, or gradients by more than 1e-4. Cells without numbers say why.
"""


def _batch(options: dict[str, Any]) -> ColumnBatch:
    return media_batch(options["media"]) if "media" in options else make_batch(LENGTHS, RESPONSES)


def _checkpoint(directory: Path, options: dict[str, Any]) -> Path:
    if directory.exists():
        return directory
    if "media" in options:
        return media_checkpoint(directory, options["media"], layers=LAYERS)
    return make_checkpoint(directory, **options, num_hidden_layers=LAYERS)


def _reference(options: dict[str, Any], batch: ColumnBatch) -> Reference:
    """Log-probs `[R]`, loss and gradients by stored name, of transformers, one unpadded sample at a time."""
    if "media" in options:
        return transformers_answer(media_model(options["media"], layers=LAYERS), batch, temperature=TEMPERATURE)
    model = hf_model(**options, num_hidden_layers=LAYERS)
    log_probs, entropies = [], []
    for row in range(batch.num_rows):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        count = int(batch["response_lengths"].values[row])
        if count:
            logits = model(tokens[None]).logits[0, len(tokens) - count - 1 : -1] / TEMPERATURE
            distribution = torch.distributions.Categorical(logits=logits)
            log_probs.append(distribution.log_prob(tokens[len(tokens) - count :]))
            entropies.append(distribution.entropy())
    weights, advantages = (torch.from_numpy(batch[n].values) for n in ("loss_weights", "advantages"))
    loss = -(weights * (advantages * torch.cat(log_probs) + 0.1 * torch.cat(entropies))).sum()
    loss.backward()
    gradients = {n: g for name, p in model.named_parameters() for n, g in as_stored(name, p.grad)}
    return torch.cat(log_probs).detach().numpy(), loss.item(), gradients


def _measure(rank: int, size: int, init: str, settings: BackendSettings, rows: ColumnBatch) -> list[dict[str, Any]]:
    """Log-probs, loss and gradients of this rank, packed and one by one; gradients are read off `g / (|g| + 1)`."""
    backends = [MegatronBackend(settings, rank=rank, world_size=size, init_method=init) for _ in range(2)]
    found = []
    for backend, max_tokens in zip(backends, (60, 1), strict=True):
        batch = share(rows, backend)
        backend.load_hf(settings.hf_checkpoint)
        before = clone(backend.named_hf_tensors())
        column = backend.forward_log_probs(batch, temperature=TEMPERATURE, max_tokens=max_tokens)
        metrics = backend.train_step(
            batch, AdvantageLoss(), temperature=TEMPERATURE, max_tokens=max_tokens, micro_batch_size=1
        )
        moved = {name: before[name] - tensor for name, tensor in backend.named_hf_tensors()}
        found.append(
            {
                "log_probs": [column.row(i).copy() for i in range(batch.num_rows)],
                "replica": (backend.data_parallel_rank, backend.data_parallel_size),
                "loss": metrics["loss"],
                "gradients": {name: step / (1 - step.abs()) for name, step in moved.items()},
            }
        )
    for backend in backends:
        backend.close()
    return found


def _differences(answers: list[dict[str, Any]], reference: Reference, responses: np.ndarray) -> dict[str, float]:
    log_probs, loss, gradients = reference
    rows = np.split(log_probs, np.cumsum(responses)[:-1])
    worst = dict.fromkeys(BOUNDS, 0.0)
    for answer in answers:
        rank, replicas = answer["replica"]
        expected, actual = (np.concatenate(part) for part in (rows[rank::replicas], answer["log_probs"]))
        assert answer["gradients"].keys() >= gradients.keys()
        of_gradients = [
            float((answer["gradients"][name] - g).abs().max() / g.abs().max().clamp(min=1e-3))
            for name, g in gradients.items()
        ]
        for name, value in (
            ("log-probs", float(np.abs(actual - expected).max())),
            ("loss", abs(answer["loss"] - loss) / abs(loss)),
            ("gradient", max(of_gradients)),
        ):
            worst[name] = max(worst[name], value)
    return worst


def measure(directory: Path, family: str, layout: str) -> str:
    """One cell of the table; fails where a difference is above its bound."""
    options = FAMILIES[family]
    checkpoint = _checkpoint(directory, options)
    size, sizes = LAYOUTS[layout]
    problems = misfits(model_spec(read_config(checkpoint)), sizes)
    if problems:
        return problems[0][1]
    optimizer = {"adam_eps": 1.0, "weight_decay": 0.0, "clip_grad": 0.0, "lr": 1.0, "use_distributed_optimizer": True}
    batch = _batch(options)
    answers = run_world(_measure, size, make_settings(checkpoint, sizes, optimizer=optimizer), batch)
    reference, responses = _reference(options, batch), batch["response_lengths"].values
    cells = []
    for way in (0, 1):
        found = _differences([answer[way] for answer in answers], reference, responses)
        assert all(found[name] <= bound for name, bound in BOUNDS.items()), (family, layout, found)
        cells.append(" ".join(f"{value:.0e}" for value in found.values()))
    return "; ".join(cells)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_all_cells(tmp_path: Path) -> None:
    lines = [HEADER, "| layout | " + " | ".join(FAMILIES) + " |", "|---" * (len(FAMILIES) + 1) + "|"]
    for layout in LAYOUTS:
        cells = [measure(tmp_path / str(number), family, layout) for number, family in enumerate(FAMILIES)]
        lines.append(f"| {layout} | " + " | ".join(cells) + " |")
    DOCUMENT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_cell(tmp_path: Path) -> None:
    family = next(name for name in FAMILIES if name.startswith("DeepSeek-V3"))
    assert measure(tmp_path / "model", family, "TP 2, SP, EP 2, expert TP 1").count(";") == 1


def test_a_cell_without_numbers_says_why(tmp_path: Path) -> None:
    assert "has no experts" in measure(tmp_path / "model", "Mistral (untied)", "EP 2")

"""Models that see beside transformers: checkpoints, batches with images and videos, and transformers' answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models import qwen3_omni_moe
from worlds import as_stored, make_batch

from relax_engine.stream.columns import Column, ColumnBatch
from tests.unit.multimodal.tiny_media import (
    for_omni,
    for_transformers,
    qwen2_5_vl,
    qwen3_omni,
    qwen3_vl,
    qwen3_vl_moe,
    sample,
)

FAMILIES: dict[str, tuple[Any, Any, bool]] = {
    "Qwen2_5_VL": (qwen2_5_vl, transformers.Qwen2_5_VLForConditionalGeneration, False),
    "Qwen3VL": (qwen3_vl, transformers.Qwen3VLForConditionalGeneration, True),
    "Qwen3VLMoe": (qwen3_vl_moe, transformers.Qwen3VLMoeForConditionalGeneration, True),
    "Qwen3OmniThinker": (qwen3_omni, qwen3_omni_moe.Qwen3OmniMoeThinkerForConditionalGeneration, False),
}
"""Configuration, architecture, and whether the frames of a video stand apart."""
LAYOUTS = ("tit", "ttttt", "itvt", "tiit", "vtit", "t")
HEARD = ("tat", "tatit", "ttttt", "vat", "iaat", "t")
"""Of the samples: text, images, videos; audio."""

Reference = tuple[np.ndarray, float, dict[str, torch.Tensor]]


def media_model(family: str, *, seed: int = 0, **options: Any) -> Any:
    """A randomly initialised transformers model, norms and biases too."""
    make, architecture, _ = FAMILIES[family]
    torch.manual_seed(seed)
    model = architecture(make(**options)).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.2 + (0.0 if "bias" in name else 1.0))
    return model.eval()


def media_checkpoint(directory: Path, family: str, **options: Any) -> Path:
    """Write `media_model` as a Hugging Face directory."""
    media_model(family, **options).save_pretrained(directory)
    return directory


def media_batch(family: str, layouts: Sequence[str] | None = None, *, copies: int = 1, seed: int = 5) -> ColumnBatch:
    """Samples of media of random sizes, each with `copies` responses of text, as `make_batch` has columns."""
    random = np.random.default_rng(seed)
    tokens, inputs, responses = [], [], []
    for layout in layouts or (HEARD if "Omni" in family else LAYOUTS):
        prompt, media = sample(random, layout, frames_apart=FAMILIES[family][2])
        for _ in range(copies):
            response = random.integers(0, 50, random.integers(1, 9)).tolist()
            tokens.append([*prompt, *response])
            inputs.append(media or None)
            responses.append(len(response))
    batch = make_batch([len(row) for row in tokens], responses)
    return batch.with_columns(tokens=Column.ragged(tokens, np.int32), multimodal_train_inputs=Column.objects(inputs))


def transformers_answer(model: Any, batch: ColumnBatch, *, temperature: float) -> Reference:
    """Log-probs `[R]`, the loss of `AdvantageLoss`, gradients by stored name, one unpadded sample at a time."""
    log_probs, entropies = [], []
    call = for_omni if "Omni" in type(model).__name__ else for_transformers
    for row in range(batch.num_rows):
        tokens = batch["tokens"].row(row).astype(np.int64).tolist()
        count = int(batch["response_lengths"].values[row])
        arguments = call(tokens, batch["multimodal_train_inputs"].values[row] or {})
        logits = model(**arguments).logits[0, len(tokens) - count - 1 : -1] / temperature
        distribution = torch.distributions.Categorical(logits=logits)
        log_probs.append(distribution.log_prob(torch.tensor(tokens[len(tokens) - count :])))
        entropies.append(distribution.entropy())
    weights, advantages = (torch.from_numpy(batch[name].values) for name in ("loss_weights", "advantages"))
    loss = -(weights * (advantages * torch.cat(log_probs) + 0.1 * torch.cat(entropies))).sum()
    loss.backward()
    gradients = {
        stored: gradient
        for name, p in model.named_parameters()
        if p.grad is not None
        for stored, gradient in as_stored(stored_name(model, name), p.grad)
    }
    return torch.cat(log_probs).detach().numpy(), loss.item(), gradients


def stored_name(model: Any, name: str) -> str:
    """The name in a checkpoint of a transformers parameter."""
    if "Qwen3VL" in type(model).__name__:
        return name
    name = name.replace("model.language_model.", "model.")
    return name.removeprefix("model.") if name.startswith(("model.visual.", "model.audio_tower.")) else name

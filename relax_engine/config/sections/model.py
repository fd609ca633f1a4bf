"""Which model, and the numerics of its layers."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import Section, flag


class Model(Section):
    """The model's source, number formats and kernels."""

    hf_checkpoint: str | None = None
    """Hugging Face directory: architecture (`config.json`), tokenizer and initial weights."""

    model_preset: str | None = None
    """A known model (`Qwen3-4B`): `--hf-checkpoint` must have its architecture, and flags that are not given are those
    that fit it on devices of 80 GB; `relax doctor` lists the presets and what they need."""

    megatron_to_hf_mode: Literal["raw", "bridge"] = "raw"
    """Conversion of weights; accepted without effect, both values use the built-in one, tensor by tensor."""

    bf16: bool = False
    """Train in bfloat16 with float32 master weights; without it in float32."""

    seed: int = flag(1234, ge=0)
    """Seed of model initialisation and dropout."""

    attention_dropout: float = flag(0.0, ge=0, lt=1)
    """Dropout of attention weights; reinforcement learning needs 0."""

    hidden_dropout: float = flag(0.0, ge=0, lt=1)
    """Dropout of hidden states; reinforcement learning needs 0."""

    attention_softmax_in_fp32: bool = False
    """Compute the attention softmax in float32; accepted without effect, kernels always do."""

    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"] = "auto"
    """Attention kernel; accepted without effect, the backend chooses the one that fits the device."""

    recompute_granularity: Literal["full", "selective"] | None = None
    """Recompute activations in the backward pass: whole layers (`full`) or attention only (`selective`)."""

    recompute_method: Literal["uniform", "block"] | None = None
    """How full recomputation chooses layers: every chunk (`uniform`) or the first ones (`block`)."""

    recompute_num_layers: int | None = flag(None, ge=1, unit="layers")
    """Layers per recomputed chunk (`uniform`), or recomputed layers (`block`)."""

    freeze_language_model: bool = False
    """Keep the weights of the text model that sees or hears, and train its encoders."""

    freeze_vision_model: bool = False
    """Keep the weights of the vision encoder, but for its projection."""

    freeze_vision_projection: bool = False
    """Keep the weights of the vision encoder's last layers, which make text embeddings of its features."""

    freeze_audio_model: bool = False
    """Keep the weights of the audio encoder, but for its projection."""

    freeze_audio_projection: bool = False
    """Keep the weights of the audio encoder's last layers."""

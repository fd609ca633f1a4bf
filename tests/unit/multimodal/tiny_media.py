"""Random tiny models that see, and random samples of text, images and videos for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers

from relax_engine.multimodal.media import audio_tokens

IMAGE, VIDEO, START, END, AUDIO, AUDIO_START, AUDIO_END = 60, 61, 58, 59, 57, 56, 55
TEXT = 50
"""Token ids below this are text."""
PATCH, MELS = 4, 16
_IDS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.2,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}


def qwen2_5_vl(layers: int = 2, **options: Any) -> transformers.PreTrainedConfig:
    """A Qwen2.5-VL with a windowed and a full layer of vision."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = _VISION | {"depth": 2, "window_size": 16, "fullatt_block_indexes": [1]}
    text = _TEXT | {"num_hidden_layers": layers, "rope_parameters": rope} | options
    return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **_IDS)


def qwen3_vl(layers: int = 2, deepstack: int = 2, **options: Any) -> transformers.PreTrainedConfig:
    """A Qwen3-VL whose vision reaches `deepstack` of the text layers."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    indexes = list(range(deepstack))
    vision = _VISION | {"depth": 3, "deepstack_visual_indexes": indexes, "num_position_embeddings": 16}
    text = _TEXT | {"num_hidden_layers": layers, "rope_parameters": rope, "head_dim": 8} | options
    return transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **_IDS)


def qwen3_vl_moe(layers: int = 2, deepstack: int = 2, **options: Any) -> transformers.PreTrainedConfig:
    """The same with experts."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    dense = qwen3_vl(layers, deepstack, **options).to_dict()
    text, vision = (
        {k: v for k, v in dense[f"{part}_config"].items() if k != "model_type"} for part in ("text", "vision")
    )
    return transformers.Qwen3VLMoeConfig(text_config=text | experts, vision_config=vision, **_IDS)


def qwen3_omni(layers: int = 2, deepstack: int = 2, **options: Any) -> transformers.PreTrainedConfig:
    """The thinker of a Qwen3-Omni: experts, vision and audio."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    indexes = list(range(deepstack))
    vision = _VISION | {"depth": 3, "deepstack_visual_indexes": indexes, "num_position_embeddings": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    text = _TEXT | experts | {"num_hidden_layers": layers, "rope_parameters": rope, "head_dim": 8} | options
    audio = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "output_dim": 32}
    audio |= {"num_mel_bins": MELS, "downsample_hidden_size": 8, "initializer_range": 0.2}
    ids = _IDS | {"audio_token_id": AUDIO, "audio_start_token_id": AUDIO_START}
    config = transformers.models.qwen3_omni_moe.Qwen3OmniMoeThinkerConfig
    return config(text_config=text, vision_config=vision, audio_config=audio, **ids)


def _pixels(random: np.random.Generator, grids: list[list[int]]) -> np.ndarray:
    patches = int(np.prod(grids, axis=1).sum())
    return random.standard_normal((patches, 3 * 2 * PATCH * PATCH), np.float32)


def sample(random: np.random.Generator, layout: str, *, frames_apart: bool) -> tuple[list[int], dict[str, np.ndarray]]:
    """Tokens and tensors of a sample: `t` is text, `i` an image, `v` a video, `a` audio, each of a random size."""
    tokens: list[int] = []
    sounds: list[int] = []
    grids: dict[str, list[list[int]]] = {"i": [], "v": []}
    for part in layout:
        if part == "t":
            tokens += random.integers(0, TEXT, random.integers(1, 6)).tolist()
            continue
        if part == "a":
            sounds.append(int(random.integers(1, 230)))
            tokens += [AUDIO_START, *[AUDIO] * audio_tokens(sounds[-1], 50), AUDIO_END]
            continue
        h, w = (2 * random.integers(1, 5, 2)).tolist()
        t = 1 if part == "i" else int(random.integers(1, 4))
        grids[part].append([t, h, w])
        if part == "v" and frames_apart:
            for _ in range(t):
                tokens += [int(random.integers(0, TEXT)), START, *[VIDEO] * (h * w // 4), END]
        else:
            tokens += [START, *[IMAGE if part == "i" else VIDEO] * (t * h * w // 4), END]
    inputs: dict[str, np.ndarray] = {}
    for part, pixels, name in (("i", "pixel_values", "image"), ("v", "pixel_values_videos", "video")):
        if grids[part]:
            inputs |= {pixels: _pixels(random, grids[part]), f"{name}_grid_thw": np.array(grids[part])}
    if grids["v"] and not frames_apart:
        inputs["second_per_grid_ts"] = random.choice([0.5, 1.0, 0.3, 2.0], len(grids["v"])).astype(np.float32)
    if sounds:
        mask = np.arange(max(sounds)) < np.array(sounds)[:, None]
        mels = random.standard_normal((len(sounds), MELS, max(sounds)), np.float32) * mask[:, None]
        inputs |= {"input_features": mels.astype(np.float32), "feature_attention_mask": mask.astype(np.int64)}
    return tokens, inputs


def for_transformers(tokens: list[int], inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Arguments of transformers' model for one sample."""
    ids = torch.tensor(tokens)[None]
    kinds = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
    return {"input_ids": ids, "mm_token_type_ids": kinds} | {name: torch.tensor(a) for name, a in inputs.items()}


def for_omni(tokens: list[int], inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The same for Qwen3-Omni's thinker."""
    names = {"second_per_grid_ts": "video_second_per_grid"}
    tensors = {names.get(name, name): torch.tensor(array) for name, array in inputs.items()}
    return {"input_ids": (ids := torch.tensor(tokens)[None]), "attention_mask": torch.ones_like(ids)} | tensors

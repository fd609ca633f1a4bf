"""Write tiny models that read images, videos and audio: random weights, in the layout of their families.

The text side is `tiny_math`'s (a byte-level tokenizer and about a million parameters); the directory has the family's
processor configuration, so that `AutoModelForImageTextToText` and the engine read it as they read the real ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from examples.tiny_math.make_model import build_tokenizer

Family = Literal["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_omni"]
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
AUDIO_TOKENS = ("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
PATCH = 8  # pixels; a token covers 2 x 2 patches
CONTEXT = 1024  # tokens
MEL = 16  # bins of a spectrogram

CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'text' -%}{{- part.text -}}"
    "{%- elif part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'audio' -%}{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}"
    "{%- endif -%}{%- endfor -%}{%- endif -%}{{- '<|im_end|>' + '\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def make_model(
    directory: str | Path,
    family: Family = "qwen2_5_vl",
    *,
    seed: int = 0,
    pieces: Sequence[str] = (),
    context: int = CONTEXT,
    spread: float = 0.02,
    text: Mapping[str, Any] | None = None,
) -> Path:
    """Write the model directory, replacing one that is there; the same seed gives the same bytes.

    Args:
        directory: Where everything goes.
        family: Whose architecture.
        seed: Of the random initialisation.
        pieces: Texts that are one token each.
        context: Longest sequence, in tokens.
        spread: Standard deviation of the weights. 0.02 is that of models a thousand features wide; one as narrow as
            this learns to see and hear several times sooner from 0.06.
        text: Changes to the text model's configuration.
    """
    import torch
    import transformers as hf
    from transformers.utils.logging import disable_progress_bar

    directory = Path(directory)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    tokenizer = build_tokenizer(pieces, context)
    media = VISION_TOKENS + (AUDIO_TOKENS if family == "qwen3_omni" else ())
    tokenizer.add_tokens(list(media), special_tokens=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    ids = dict(zip(media, tokenizer.convert_tokens_to_ids(list(media)), strict=True))
    torch.manual_seed(seed)
    disable_progress_bar()  # of one small file
    changes = {"max_position_embeddings": context, "initializer_range": spread, **(text or {})}
    model = _model(family, _text_config(tokenizer, family, changes), ids)
    model.generation_config = hf.GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    hf.Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2, temporal_patch_size=2).save_pretrained(directory)
    if family == "qwen3_omni":
        _merge_audio(directory)
    return directory


def _text_config(tokenizer: Any, family: Family, changes: Mapping[str, Any]) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    config: dict[str, Any] = {
        "vocab_size": len(tokenizer) + (-len(tokenizer) % 8),
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "rope_parameters": rope if family == "qwen2_5_vl" else rope | {"mrope_interleaved": True},
        "tie_word_embeddings": family != "qwen3_omni",
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family != "qwen2_5_vl":
        config["head_dim"] = 32
    if family in ("qwen3_vl_moe", "qwen3_omni"):
        config |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    return config | dict(changes)


def _model(family: Family, text: dict[str, Any], ids: Mapping[str, int]) -> Any:
    import transformers as hf

    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 64,
        "num_heads": 2,
        "patch_size": PATCH,
        "out_hidden_size": text["hidden_size"],
        "initializer_range": text["initializer_range"],
    }
    named: dict[str, Any] = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    if family == "qwen2_5_vl":
        vision |= {"intermediate_size": 128, "window_size": 32, "fullatt_block_indexes": [1]}
        tied = text["tie_word_embeddings"]
        return hf.Qwen2_5_VLForConditionalGeneration(
            hf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied, **named)
        )
    vision |= {"intermediate_size": 128, "num_position_embeddings": 256, "deepstack_visual_indexes": [0, 1]}
    if family in ("qwen3_vl", "qwen3_vl_moe"):
        kind = "Qwen3VLMoe" if family == "qwen3_vl_moe" else "Qwen3VL"
        tied = text["tie_word_embeddings"]
        config = getattr(hf, f"{kind}Config")(text_config=text, vision_config=vision, tie_word_embeddings=tied, **named)
        return getattr(hf, f"{kind}ForConditionalGeneration")(config)
    audio: dict[str, Any] = {
        "num_mel_bins": MEL, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128, "d_model": 64,
        "output_dim": text["hidden_size"], "downsample_hidden_size": 32, "initializer_range": text["initializer_range"],
    }  # fmt: skip
    sounds: dict[str, Any] = {
        "audio_token_id": ids["<|audio_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
    }
    config = hf.Qwen3OmniMoeThinkerConfig(text_config=text, vision_config=vision, audio_config=audio, **named, **sounds)
    return hf.Qwen3OmniMoeThinkerForConditionalGeneration(config)


def _merge_audio(directory: Path) -> None:
    """One `preprocessor_config.json` for pictures and sounds, as the family's real directories have it."""
    import json

    import transformers as hf

    file = directory / "preprocessor_config.json"
    pictures = json.loads(file.read_text(encoding="utf-8"))
    hf.WhisperFeatureExtractor(feature_size=MEL).save_pretrained(directory)
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | pictures), encoding="utf-8")

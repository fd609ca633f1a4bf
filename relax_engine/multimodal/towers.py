"""The encoders of images, videos and audio, and putting what they give in the place of placeholders.

What lives here: building a family's encoders of transformers' own modules, running them on the processor's tensors, and
the merge with text embeddings. What does not: which tokens are media (`media.py`), weights (whoever loads a model).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relax_engine.multimodal.families import MediaFamily
from relax_engine.multimodal.media import Block, MediaMismatchError, TrainInputs

_VISION = {
    "qwen2_vl": "Qwen2VisionTransformerPretrainedModel",
    "qwen2_5_vl": "Qwen2_5_VisionTransformerPretrainedModel",
    "qwen3_vl": "Qwen3VLVisionModel",
    "qwen3_vl_moe": "Qwen3VLMoeVisionModel",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeVisionEncoder",
}
_KINDS = ("image", "video", "audio")
_AUDIO = {"qwen3_omni_moe_thinker": "Qwen3OmniMoeAudioEncoder"}


@dataclass(frozen=True, slots=True)
class MediaFeatures:
    """What stands in the place of placeholders: images first, then videos, then audio.

    Attributes:
        embeddings: `[features, hidden]`.
        deepstack: what is added to the output of the text model's first layers, one for each, `[visual, hidden]`: the
            features of images and videos alone.
    """

    embeddings: Tensor
    deepstack: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """int64 `[n]` each: tokens, and the row of the features that stands in the place of each."""

    tokens: np.ndarray
    features: np.ndarray


def places_of(blocks: Iterable[Block]) -> Places:
    """The places of a sample's media."""
    runs = [run for block in blocks for run in block]
    tokens = [run.tokens for run in runs]
    features = [run.first + np.arange(run.medium.count) for run in runs]
    empty = [np.zeros(0, np.int64)]
    return Places(np.concatenate(tokens or empty), np.concatenate(features or empty))


class MediaTower(nn.Module):
    """The encoders of one model: `visual`, and for a family that hears `audio_tower`.

    Parameters have the names that a checkpoint has behind `family.prefix`. They are of `dtype`; tables of frequencies
    stay float32, as transformers keeps them.
    """

    def __init__(self, family: MediaFamily, *, dtype: torch.dtype, device: torch.device | str) -> None:
        """Randomly initialised; on the `meta` device only names and shapes."""
        super().__init__()
        self.family = family
        config = _config(family)
        with torch.device(device):
            self.visual = _build(family.model_type, _VISION[family.model_type], config.vision_config)
            if family.model_type in _AUDIO:
                self.audio_tower = _build(family.model_type, _AUDIO[family.model_type], config.audio_config)
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)

    def encode(self, train_inputs: TrainInputs) -> MediaFeatures:
        """Encode media of one sample, or of several whose tensors follow each other in dimension 0.

        Raises:
            MediaMismatchError: there is nothing to encode.
        """
        first = next(self.parameters())
        tensors = {name: _tensor(value, first.device) for name, value in train_inputs.items() if value is not None}
        kinds = [("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")]
        seen = [(tensors[pixels], tensors[grid]) for pixels, grid in kinds if pixels in tensors]
        embeddings, deepstack = [], ()
        if seen:
            pixels, grids = (torch.cat(parts) for parts in zip(*seen, strict=True))
            output = self.visual(pixels.to(first.dtype), grid_thw=grids)
            embeddings.append(output.pooler_output)
            deepstack = tuple(getattr(output, "deepstack_features", ()))
        if "input_features" in tensors:
            embeddings.append(self._hear(tensors["input_features"], tensors["feature_attention_mask"], first.dtype))
        if not embeddings:
            raise MediaMismatchError(f"no media among {sorted(train_inputs)}")
        return MediaFeatures(torch.cat(embeddings), deepstack)

    def _hear(self, mels: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """`[tokens, hidden]` of clips `[clips, mel bins, frames]`, padded on the right where the mask is 0."""
        frames = mels.transpose(1, 2)[mask.bool()].T
        output: Tensor = self.audio_tower(frames.to(dtype), feature_lens=mask.sum(dim=1)).last_hidden_state
        return output


def tower_shapes(family: MediaFamily) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a family's encoders' parameters, without building them."""
    tower = MediaTower(family, dtype=torch.float32, device="meta")
    return {name: tuple(parameter.shape) for name, parameter in tower.named_parameters()}


def merge(embeds: Tensor, places: Places, features: MediaFeatures) -> Tensor:
    """`embeds` `[tokens, hidden]` with features in the place of placeholders; differentiable in both.

    Raises:
        MediaMismatchError: there are not as many features as places for them.
    """
    if len(places.tokens) != len(features.embeddings):
        raise MediaMismatchError(
            f"{len(places.tokens)} placeholders are to be replaced by {len(features.embeddings)} media features"
        )
    tokens, rows = (torch.from_numpy(index).to(embeds.device) for index in (places.tokens, places.features))
    return embeds.index_copy(0, tokens, features.embeddings.to(embeds.dtype).index_select(0, rows))


def feature_order(counts: Sequence[Mapping[str, int]]) -> list[np.ndarray]:
    """Where each sample's features, in its own order, stand among those of `concatenated` samples.

    Args:
        counts: features of each kind (image, video, audio) of each sample.
    """
    totals = {kind: sum(sample.get(kind, 0) for sample in counts) for kind in _KINDS}
    bases = dict(zip(_KINDS, np.cumsum([0, *totals.values()]).tolist(), strict=False))
    rows: list[np.ndarray] = []
    for sample in counts:
        rows.append(np.concatenate([bases[kind] + np.arange(sample.get(kind, 0)) for kind in _KINDS]))
        for kind in _KINDS:
            bases[kind] += sample.get(kind, 0)
    return rows


def concatenated(samples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The tensors of several samples as those of one: each kind's follow each other in dimension 0.

    Audio of unequal lengths is padded on the right with zeros, under a mask of zeros.
    """
    whole: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for sample in samples for name, value in sample.items() if value is not None):
        parts = [_tensor(sample[name], "cpu") for sample in samples if sample.get(name) is not None]
        if name in ("input_features", "feature_attention_mask"):
            longest = max(part.shape[-1] for part in parts)
            parts = [nn.functional.pad(part, (0, longest - part.shape[-1])) for part in parts]
        whole[name] = torch.cat(parts)
    return whole


def _tensor(value: Any, device: torch.device | str) -> Tensor:
    return torch.as_tensor(np.asarray(value) if isinstance(value, list) else value, device=device)


def _config(family: MediaFamily) -> Any:
    """transformers' configuration object, with its defaults for what `config.json` leaves out."""
    auto = importlib.import_module("transformers").AutoConfig
    values = {key: value for key, value in family.config.items() if key != "model_type"}
    return auto.for_model(family.model_type, **values)


def _build(model_type: str, name: str, config: Any) -> nn.Module:
    package = model_type.removesuffix("_thinker")
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    built: nn.Module = getattr(module, name)._from_config(config, attn_implementation="sdpa")
    return built.train()

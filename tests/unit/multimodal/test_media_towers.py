"""Encoders beside transformers' models with the same weights: features, deepstack, the merge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_media import for_transformers, qwen2_5_vl, qwen3_vl, sample

from relax_engine.multimodal.families import MediaFamily, media_family
from relax_engine.multimodal.media import MediaMismatchError, blocks_of
from relax_engine.multimodal.towers import MediaFeatures, MediaTower, concatenated, merge, places_of

KINDS = {
    "qwen2_5_vl": (qwen2_5_vl, transformers.Qwen2_5_VLForConditionalGeneration),
    "qwen3_vl": (qwen3_vl, transformers.Qwen3VLForConditionalGeneration),
}


def _pair(kind: str) -> tuple[Any, MediaFamily, MediaTower]:
    """transformers' model, and a tower with its weights."""
    make, architecture = KINDS[kind]
    torch.manual_seed(0)
    model = architecture(make())
    family = media_family(model.config.to_dict())
    assert family is not None
    tower = MediaTower(family, dtype=torch.float32, device="cpu")
    tower.visual.load_state_dict(model.model.visual.state_dict())
    return model, family, tower


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_are_those_of_transformers(kind: str) -> None:
    model, family, tower = _pair(kind)
    random = np.random.default_rng(3)
    samples = [sample(random, layout, frames_apart=family.frames_apart) for layout in ("tivit", "tvt", "it")]
    for tokens, inputs in samples:
        caught: dict[str, Any] = {}
        model.model.language_model.register_forward_pre_hook(
            lambda _, args, kwargs, caught=caught: caught.update(kwargs), with_kwargs=True
        )
        with torch.no_grad():
            model(**for_transformers(tokens, inputs))
            features = tower.encode(inputs)
            embeds = model.get_input_embeddings()(torch.tensor(tokens))
        places = places_of(blocks_of(family, tokens, inputs))
        assert torch.allclose(merge(embeds, places, features), caught["inputs_embeds"][0], atol=1e-5)
        for ours, theirs in zip(features.deepstack, caught.get("deepstack_visual_embeds") or (), strict=True):
            order = np.argsort(places.tokens)
            assert torch.allclose(ours[places.features[order]], theirs, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_unequal_sizes_are_encoded_at_once(kind: str) -> None:
    _, family, tower = _pair(kind)
    random = np.random.default_rng(4)
    samples = [sample(random, layout, frames_apart=family.frames_apart)[1] for layout in ("i", "ii", "i")]
    with torch.no_grad():
        whole = tower.encode(concatenated(samples))
        apart = [tower.encode(inputs) for inputs in samples]
    assert torch.allclose(whole.embeddings, torch.cat([each.embeddings for each in apart]), atol=1e-5)


def test_parameters_are_cast_and_frequencies_are_not() -> None:
    family = media_family(qwen3_vl().to_dict())
    assert family is not None
    tower = MediaTower(family, dtype=torch.bfloat16, device="cpu")
    assert {parameter.dtype for parameter in tower.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in tower.buffers()} == {torch.float32}


def test_a_merge_of_unequal_counts() -> None:
    with pytest.raises(MediaMismatchError, match="0 placeholders are to be replaced by 2 media features"):
        merge(torch.zeros(4, 8), places_of([]), MediaFeatures(torch.zeros(2, 8)))

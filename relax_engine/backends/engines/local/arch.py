"""The model that the engine serves, read from a Hugging Face `config.json`.

What lives here: the sizes of the decoder and its cache. What does not: reading families
(`relax_engine.checkpoint.families`), tensors (`weights.py`) and the forward pass (`decoder.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from relax_engine.backends.engines.local.errors import ModelError
from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.checkpoint.families import UnknownArchitectureError, model_spec, policy_spec
from relax_engine.checkpoint.mapping import WeightMap
from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.multimodal.families import MediaFamily


@dataclass(frozen=True)
class Architecture:
    """A decoder with grouped-query attention, RMSNorm, rotary embedding and a SwiGLU block, or experts of such.

    Latent attention is computed as attention of all query heads to one key/value head: the latent vector of a token
    with its rotary key (`latent.py`), which is all that the cache holds of it.
    """

    spec: ModelSpec
    eos_token_ids: tuple[int, ...]

    @property
    def name(self) -> str:
        """The architecture's, as `config.json` has it."""
        return self.spec.architecture

    @property
    def media(self) -> MediaFamily | None:
        """How the model reads media; None for a text model."""
        return self.spec.media

    def stored_name(self, name: str) -> str:
        """The name in a checkpoint of a tensor that a text model calls `name`."""
        if self.media is None:
            return name
        inner = name.removeprefix("model.")
        return (self.media.head_prefix if inner == name else self.media.text_prefix) + inner

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads of the cache."""
        return self.spec.num_query_groups if self.spec.latent is None else 1

    @property
    def head_dim(self) -> int:
        """Elements of a key of the cache, and of a value."""
        latent = self.spec.latent
        return self.spec.head_dim if latent is None else latent.rotary_dim + latent.kv_rank

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.spec.num_attention_heads // self.num_kv_heads

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of the key/value cache per token, all layers, keys and values."""
        return 2 * self.spec.num_layers * self.num_kv_heads * self.head_dim

    @cached_property
    def flops_per_token(self) -> int:
        """Multiply-adds (x2) of the weight matrices for one decoded token; attention and norms are not counted."""
        elements = 0.0
        for mapping in WeightMap(self.spec).parameters.values():
            met = self.spec.experts.top_k / self.spec.experts.count if mapping.expert is not None else 1.0  # type: ignore
            elements += met * math.prod(mapping.shape) if len(mapping.shape) == 2 else 0.0
        embedding = 0 if self.spec.tie_word_embeddings else self.spec.vocab_size * self.spec.hidden_size
        return 2 * (round(elements) - embedding)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        ModelError: the file is missing or is not a JSON object.
    """
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist: --model-path must be a Hugging Face model directory") from error
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds a {type(data).__name__}, expected a JSON object")
    return data


def load_architecture(directory: Path) -> Architecture:
    """Read `config.json` (and the end-of-sequence ids of `generation_config.json`) of a model directory.

    Raises:
        ModelError: no config, an unknown architecture, or a feature the engine does not compute.
    """
    config = read_json(directory / "config.json")
    generation = directory / "generation_config.json"
    extra = read_json(generation) if generation.is_file() else {}
    return parse_architecture(config, extra_eos=extra.get("eos_token_id"), source=str(directory / "config.json"))


def parse_architecture(config: Mapping[str, Any], *, extra_eos: Any = None, source: str = "config") -> Architecture:
    """Build an `Architecture` from a Hugging Face configuration.

    Raises:
        ModelError: see `load_architecture`.
    """
    try:
        spec = policy_spec(model_spec(config))
    except (UnknownArchitectureError, UnsupportedModelError) as error:
        raise ModelError(f"{source}: {error}") from error
    inner = config if spec.media is None else spec.media.text_config
    arch = Architecture(spec, tuple(sorted(_ids(inner.get("eos_token_id")) | _ids(extra_eos))))
    if arch.head_dim % 2 or spec.rope.rotated(spec.rotary_head_dim) % 2:
        raise ModelError(f"{source}: heads of {arch.head_dim} elements, which must be rotated in pairs")
    return arch


def _ids(value: Any) -> set[int]:
    if value is None:
        return set()
    return set(value) if isinstance(value, list) else {int(value)}

"""What a Hugging Face `config.json` says about a model's images, videos and audio.

What lives here: placeholder ids, how many tokens a medium takes, how its positions advance. What does not: the text
model (`relax_engine.checkpoint.families`), positions (`positions.py`), the encoders (`towers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

Kind = Literal["image", "video", "audio"]
HfConfig = Mapping[str, Any]
_VISION_START = 151652
"""Of all these families, where a `config.json` leaves it out."""


@dataclass(frozen=True, slots=True)
class MediaFamily:
    """How one model reads media.

    Attributes:
        model_type: transformers' name of the family.
        placeholders: the token id that stands for one feature of each kind.
        merge: patches of an image that one feature covers, along each side.
        time_unit: positions per second of a video; None: frames of a video are apart by 1, whatever their time.
        frames_apart: a video's frames stand in the text one by one, with timestamps between them.
        real_time: positions are real numbers, and text goes on behind the last moment of a video rather than behind the
            larger side of its frames.
        interleaved: rotary frequencies of the three positions alternate rather than follow each other.
        audio_window: half of the number of mel frames that the audio encoder's convolutions see at once.
        openers: the tokens after which placeholders may stand for media.
        prefix: what precedes the encoders' names in a checkpoint.
        text_prefix: what precedes the names of the text model's embedding, layers and last norm.
        head_prefix: what precedes `lm_head`.
        others: beginnings of the names of further parts, which are carried along.
        config: the part of `config.json` that describes the encoders and the text model.
    """

    model_type: str
    placeholders: Mapping[Kind, int]
    merge: int
    time_unit: float | None
    frames_apart: bool
    real_time: bool
    interleaved: bool
    audio_window: int
    openers: frozenset[int]
    prefix: str
    text_prefix: str
    head_prefix: str
    others: tuple[str, ...]
    config: HfConfig

    @property
    def text_config(self) -> HfConfig:
        """The text model's part of `config`, which older files have at the top."""
        text: HfConfig = self.config.get("text_config") or self.config
        return text

    @property
    def deepstack(self) -> int:
        """How many of the text model's first layers take further features of images and videos behind them."""
        return len(self.config["vision_config"].get("deepstack_visual_indexes") or ())

    def axes(self, pairs: int) -> np.ndarray:
        """For each of `pairs` rotary frequencies the position that it turns with: 0 time, 1 height, 2 width; int64.

        In order, as many as each has in `mrope_section`; or interleaved, every third, and time beyond the sections.

        Raises:
            ValueError: the sections do not add up.
        """
        rope = {**(self.text_config.get("rope_scaling") or {}), **(self.text_config.get("rope_parameters") or {})}
        sections = [int(size) for size in rope.get("mrope_section") or ()]
        if len(sections) != 3 or sum(sections) != pairs:
            raise ValueError(
                f"mrope_section {sections} of {self.model_type} does not divide {pairs} rotary frequencies"
            )
        if not self.interleaved:
            return np.repeat(np.arange(3), sections)
        axes = np.zeros(pairs, np.int64)
        for axis in (1, 2):
            axes[axis : 3 * sections[axis] : 3] = axis
        return axes


def media_family(config: HfConfig) -> MediaFamily | None:
    """The media of the model that `config` (a `config.json`) describes; None for a text model.

    Raises:
        KeyError: a key is missing.
    """
    read = _READERS.get(str(config.get("model_type")))
    return None if read is None else read(config)


def _vision(config: HfConfig, *, time_unit: float | None, third: bool = False) -> MediaFamily:
    """`third`: of the third generation, whose frames stand apart."""
    return MediaFamily(
        model_type=str(config["model_type"]),
        placeholders=MappingProxyType({"image": int(config["image_token_id"]), "video": int(config["video_token_id"])}),
        merge=int(config["vision_config"].get("spatial_merge_size", 2)),
        time_unit=time_unit,
        frames_apart=third,
        real_time=False,
        interleaved=third,
        audio_window=0,
        openers=frozenset({int(config.get("vision_start_token_id", _VISION_START))}),
        prefix="model." if third else "",
        text_prefix="model.language_model." if third else "model.",
        head_prefix="",
        others=(),
        config=config,
    )


def _qwen2_vl(config: HfConfig) -> MediaFamily:
    return _vision(config, time_unit=None)


def _qwen2_5_vl(config: HfConfig) -> MediaFamily:
    return _vision(config, time_unit=float(config["vision_config"].get("tokens_per_second", 4)))


def _qwen3_vl(config: HfConfig) -> MediaFamily:
    return _vision(config, time_unit=None, third=True)


def _qwen3_omni(config: HfConfig) -> MediaFamily:
    """The thinker of a whole model, or a thinker alone."""
    whole = "thinker_config" in config
    thinker: HfConfig = config["thinker_config"] if whole else config
    kinds: tuple[Kind, ...] = ("image", "video", "audio")
    return MediaFamily(
        model_type="qwen3_omni_moe_thinker",
        placeholders=MappingProxyType({kind: int(thinker[f"{kind}_token_id"]) for kind in kinds}),
        merge=int(thinker["vision_config"].get("spatial_merge_size", 2)),
        time_unit=float(thinker.get("position_id_per_seconds", 25)),
        frames_apart=False,
        real_time=True,
        interleaved=True,
        audio_window=int(thinker["audio_config"].get("n_window", 50)),
        openers=frozenset(
            {int(thinker.get("vision_start_token_id", _VISION_START)), int(thinker["audio_start_token_id"])}
        ),
        prefix="thinker." if whole else "",
        text_prefix="thinker.model." if whole else "model.",
        head_prefix="thinker." if whole else "",
        others=("talker.", "code2wav.") if whole else (),
        config=thinker,
    )


_READERS = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_omni_moe": _qwen3_omni,
    "qwen3_omni_moe_thinker": _qwen3_omni,
}

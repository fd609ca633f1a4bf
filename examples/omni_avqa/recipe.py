"""The settings of the example."""

from __future__ import annotations

from examples.omni_avqa.make_data import PIECES
from examples.settings import Recipe, Supervised

_MEDIA = {
    "multimodal_keys": {"image": "images", "video": "videos", "audio": "audios"},
    "image_min_token_num": 4,
    "image_max_token_num": 4,
    "video_min_token_num": 4,
    "video_max_token_num": 4,
}

RECIPE = Recipe(
    family="qwen3_omni",
    start=Supervised(steps=65, flags=_MEDIA),
    steps=60,
    pieces=PIECES,
    flags={
        **_MEDIA,
        "rm_type": "multiple_choice",
        "rollout_max_prompt_len": 32,
        "rollout_max_response_len": 10,
    },
)

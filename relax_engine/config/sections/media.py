"""Images, videos and audio in prompts: where they are, and how many tokens they may take."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import JsonObject, Section, flag, group


class Media(Section):
    """Media of prompts, for models that read them."""

    multimodal_keys: JsonObject = group(dict)
    """Columns that hold media, as JSON by media type (`{"image": "images"}`, `video`, `audio`); prompts say where they
    stand with `<image>`, `<video>`, `<audio>`, or with parts of messages."""

    media_root: str | None = None
    """Folder that paths of media start in and may not leave. Default: the folder of the first prompt file."""

    fetch_media: bool = False
    """Fetch media that are given by URL (`http://`, `s3://`)."""

    sft_invalid_multimodal_strategy: Literal["error", "skip"] = "error"
    """What happens to a prompt whose media cannot be used, in any kind of training: the run ends and names it, or the
    next row takes its place."""

    mm_processor_pool_size: int = flag(0, ge=0, unit="processes")
    """Processes that prepare media; 0 prepares them in the rollout's own, one prompt at a time."""

    image_max_token_num: int = flag(16384, ge=1, unit="tokens")
    """Most tokens of an image; larger ones are made smaller."""

    image_min_token_num: int = flag(4, ge=1, unit="tokens")
    """Least tokens of an image; smaller ones are made larger."""

    video_max_token_num: int = flag(768, ge=1, unit="tokens")
    """Most tokens of a pair of a video's frames."""

    video_min_token_num: int = flag(128, ge=1, unit="tokens")
    """Least tokens of a pair of a video's frames."""

    video_fps: float = flag(2.0, gt=0, unit="frames/s")
    """Frames that are taken of a second of video; also the rate of frames that come without one."""

    video_fps_max_frames: int = flag(768, ge=1, unit="frames")
    """Most frames that are taken of a video."""

    video_fps_min_frames: int = flag(4, ge=1, unit="frames")
    """Least frames that are taken of a video, if it has as many."""

    audio_sample_rate: int = flag(16000, ge=1000, unit="Hz")
    """Rate that audio is brought to; it must be the one that the model's feature extractor expects."""

"""Images, videos and audio as a sample carries them: JSON-ready texts, from whatever a data set or a tool holds.

A medium is brought into one form where it enters, and everybody decodes that form, so that processor, engine and
recorder see the same pixels: an image is a data URI, audio is a data URI of a WAV file, and a video is
`{"frames": [image, ...], "fps": frames per second}`. What does not live here: patches and features (`processor.py`).
"""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.media import MediaReader
from data_prep.schema import AUDIOS, IMAGES
from relax_engine.multimodal.families import Kind

if TYPE_CHECKING:
    from PIL import Image

KINDS: tuple[Kind, ...] = ("image", "video", "audio")
Media = dict[Kind, list[Any]]
"""Media by kind, each in the form that this module makes."""

_IMAGE_TYPES = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"))
_GIVEN_FPS = ("fps", "sampled_fps")


class MediaError(ValueError):
    """A medium cannot be had, or does not decode; says which and why."""


def read_medium(kind: Kind, value: Any, reader: MediaReader) -> Any:
    """One medium in the form that samples carry.

    Args:
        kind: What it is.
        value: Bytes, a path, a URL, base64 or a dictionary of these; of an image also a PIL image or an array
            `[height, width, 3]` uint8; of a video also frames, or `{"frames": [...], "fps": f}`; of audio also
            `(waveform, rate)` or `{"array": waveform, "sampling_rate": rate}`, the waveform between -1 and 1.
        reader: Says where paths may lead and whether URLs are fetched.

    Raises:
        MediaError: it cannot be had, or does not decode.
    """
    try:
        if kind == "image":
            return _image(value, reader)
        return _video(value, reader) if kind == "video" else _audio(value, reader)
    except (ValueError, OSError) as error:
        raise MediaError(f"{kind} cannot be used: {error}") from error


def _image(value: Any, reader: MediaReader) -> str:
    if isinstance(value, np.ndarray) or hasattr(value, "getpixel"):
        return _uri("image/png", _png(value))
    content = _fetched(IMAGES, value, reader)
    kind = next((name for magic, name in _IMAGE_TYPES if content.startswith(magic)), "png")
    return _uri(f"image/{kind}", content)


def _png(value: Any) -> bytes:
    from PIL import Image

    picture = Image.fromarray(value) if isinstance(value, np.ndarray) else value
    stream = io.BytesIO()
    picture.convert("RGB").save(stream, format="PNG", compress_level=1)
    return stream.getvalue()


def _video(value: Any, reader: MediaReader) -> dict[str, Any]:
    fps = None
    if isinstance(value, Mapping) and value.get("frames") is not None:
        fps = next((float(value[name]) for name in _GIVEN_FPS if value.get(name) is not None), None)
        value = value["frames"]
    if isinstance(value, (list, tuple, np.ndarray)):
        frames = [_image(frame, reader) for frame in value]
    else:
        frames, fps = _moving_picture(_fetched(IMAGES, value, reader))
    if not frames:
        raise ValueError("it has no frames")
    return {"frames": frames, "fps": fps}


def _moving_picture(content: bytes) -> tuple[list[str], float | None]:
    """The frames of a moving picture that Pillow reads (GIF, WebP, APNG), and their rate where it says one."""
    from PIL import Image, ImageSequence

    with Image.open(io.BytesIO(content)) as picture:
        frames, milliseconds = [], 0.0
        for frame in ImageSequence.Iterator(picture):
            frames.append(_uri("image/png", _png(frame)))
            milliseconds += float(frame.info.get("duration", 0))
    return frames, 1000.0 * len(frames) / milliseconds if milliseconds else None


def _audio(value: Any, reader: MediaReader) -> str:
    if isinstance(value, Mapping) and value.get("array") is not None:
        value = (value["array"], value.get("sampling_rate"))
    if isinstance(value, tuple) and len(value) == 2:
        waveform, rate = value
        if not rate:
            raise ValueError("a waveform needs its sampling rate")
        return _uri("audio/wav", write_wav(np.asarray(waveform, np.float32), int(rate)))
    content = _fetched(AUDIOS, value, reader)
    if content[:4] != b"RIFF":
        raise ValueError(f"it is no WAV file, the one kind of audio read here: it begins with {content[:8]!r}")
    return _uri("audio/wav", content)


def _fetched(column: str, value: Any, reader: MediaReader) -> bytes:
    item = reader.read(column, value)
    if item["bytes"] is None:
        raise ValueError(f"{item['path']!r:.100} is a URL; pass --fetch-media to have URLs fetched")
    content: bytes = item["bytes"]
    return content


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def content_of(text: str) -> bytes:
    """The bytes of a data URI."""
    return base64.b64decode(text.partition(",")[2])


def open_image(value: Any) -> Image.Image:
    """An image of `Sample.multimodal_inputs["image"]` as an RGB picture."""
    from PIL import Image

    with Image.open(io.BytesIO(content_of(value))) as picture:
        return picture.convert("RGB")


def write_wav(waveform: np.ndarray, rate: int) -> bytes:
    """A WAV file of 16-bit samples of a mono waveform `[samples]` between -1 and 1."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes((np.clip(waveform, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes())
    return stream.getvalue()


def open_audio(value: Any, rate: int) -> np.ndarray:
    """Audio of `Sample.multimodal_inputs["audio"]` as a mono waveform, float32 `[samples]`, at `rate` per second.

    Raises:
        MediaError: it does not decode.
    """
    try:
        with wave.open(io.BytesIO(content_of(value))) as sound:
            channels, width, found = sound.getnchannels(), sound.getsampwidth(), sound.getframerate()
            raw = sound.readframes(sound.getnframes())
    except (wave.Error, EOFError) as error:
        raise MediaError(f"audio does not decode as a WAV file: {error}") from error
    waveform = _samples(raw, width).reshape(-1, channels).mean(axis=1, dtype=np.float32)
    if found == rate:
        return waveform
    from scipy.signal import resample_poly

    common = int(np.gcd(found, rate))
    return np.asarray(resample_poly(waveform, rate // common, found // common), np.float32)


def _samples(raw: bytes, width: int) -> np.ndarray:
    """PCM of `width` bytes as float32 between -1 and 1."""
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128.0) / 128.0
    if width == 3:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return wide.reshape(-1).view("<i4").astype(np.float32) / 2.0**31
    return np.frombuffer(raw, f"<i{width}").astype(np.float32) / 2.0 ** (8 * width - 1)


def digest_of(media: Mapping[Kind, Sequence[Any]]) -> str:
    """A name of the media's content: equal for equal media, whatever they were read from."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps([[kind, list(media.get(kind, ()))] for kind in KINDS]).encode()).hexdigest()

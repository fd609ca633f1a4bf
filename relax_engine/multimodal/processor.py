"""From a prompt and its media to tokens and the tensors that the model's encoders read.

The images' patches are made by the model directory's own image processor, and audio's spectrograms by its own feature
extractor (transformers' classes); a video is the patches of its frames, in pairs. What lives here: these tensors, and
the placeholders among the tokens, one per feature. What does not: reading media (`content.py`), positions
(`positions.py`), the encoders (`towers.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_engine.multimodal.content import KINDS, MediaError, open_audio, open_image
from relax_engine.multimodal.families import Kind, MediaFamily
from relax_engine.multimodal.media import MediaMismatchError, media_of
from relax_engine.multimodal.model import family_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class MediaBudget:
    """How many tokens media may take, and how finely videos and audio are sampled.

    Attributes:
        image_tokens: Least and most tokens of an image; images are resized into that range.
        video_tokens: The same for each pair of a video's frames.
        video_fps: Frames per second that are taken of a video; also its rate where it says none.
        video_frames: Least and most frames that are taken of a video.
        audio_rate: Samples per second that audio is brought to.
    """

    image_tokens: tuple[int, int] = (4, 16384)
    video_tokens: tuple[int, int] = (128, 768)
    video_fps: float = 2.0
    video_frames: tuple[int, int] = (4, 768)
    audio_rate: int = 16000

    @classmethod
    def from_config(cls, args: Any) -> MediaBudget:
        """From the flat configuration."""
        return cls(
            image_tokens=(args.image_min_token_num, args.image_max_token_num),
            video_tokens=(args.video_min_token_num, args.video_max_token_num),
            video_fps=args.video_fps,
            video_frames=(args.video_fps_min_frames, args.video_fps_max_frames),
            audio_rate=args.audio_sample_rate,
        )

    def to_json(self) -> str:
        """For an engine's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> MediaBudget:
        """The inverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        ranges: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**(values | ranges))


@dataclass(frozen=True, slots=True)
class Features:
    """What the encoders read of a sample's media.

    Attributes:
        train_inputs: Arrays by transformers' names: `pixel_values` float32 `[patches, C * T * P * P]`,
            `image_grid_thw` int64 `[images, 3]`, the same of videos with `second_per_grid_ts` float32 `[videos]`,
            `input_features` float32 `[clips, mel, frames]` and `feature_attention_mask` `[clips, frames]`.
        stamps: Seconds from the start of each pair of frames of each video.
    """

    train_inputs: Arrays = field(default_factory=dict)
    stamps: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens with a placeholder per feature, and `Features.train_inputs`."""

    tokens: list[int]
    train_inputs: Arrays


class MediaProcessor:
    """The processor of one model directory."""

    def __init__(
        self, directory: str | Path, budget: MediaBudget | None = None, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        """Read the directory's configuration.

        Args:
            directory: A model in Hugging Face layout, with `preprocessor_config.json`.
            budget: See there.
            tokenizer: The directory's, where somebody has it already.

        Raises:
            MediaError: it is a text model, or has no preprocessor.
        """
        from transformers import AutoTokenizer

        self.directory, self.budget = Path(directory), budget or MediaBudget()
        family = family_of(directory)
        if family is None:
            raise MediaError(f"the model of {directory} reads text alone")
        self.family: MediaFamily = family
        self.tokenizer = tokenizer or AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        if not (self.directory / "preprocessor_config.json").is_file():
            raise MediaError(f"{directory} has no preprocessor_config.json: its images and audio cannot be prepared")
        config = self.family.config
        self._starts: dict[Kind, int] = {kind: int(config["vision_start_token_id"]) for kind in ("image", "video")}
        self._ends: dict[Kind, int] = {kind: int(config["vision_end_token_id"]) for kind in ("image", "video")}
        if "audio" in self.family.placeholders:
            self._starts["audio"] = int(config["audio_start_token_id"])
            self._ends["audio"] = int(config["audio_end_token_id"])
        self._images = _image_processor(self.directory)
        self._sounds = _feature_extractor(self.directory) if "audio" in self.family.placeholders else None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of media that the model reads."""
        return tuple(kind for kind in KINDS if kind in self.family.placeholders)

    def marker(self, kind: Kind) -> str:
        """The text that stands for one medium in a prompt, as the model's chat template writes it.

        Raises:
            MediaError: the model reads no such media.
        """
        if kind not in self.family.placeholders:
            raise MediaError(f"{self.family.model_type} reads {' and '.join(self.kinds)}, no {kind}")
        ids = [self._starts[kind], self.family.placeholders[kind], self._ends[kind]]
        return "".join(self.tokenizer.convert_ids_to_tokens(ids))

    def encode(self, text: str, media: Mapping[Kind, Sequence[Any]]) -> Encoded:
        """Tokens and tensors of a prompt whose media stand as `marker`s in `text`.

        Raises:
            MediaError: a medium does not decode.
            MediaMismatchError: there are more or fewer markers than media.
        """
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False, verbose=False)
        features = self.features(media)
        return Encoded(self.expand(tokens, features), features.train_inputs)

    def features(self, media: Mapping[Kind, Sequence[Any]]) -> Features:
        """The tensors of media in the form of `content`.

        Raises:
            MediaError: one does not decode, or is of a kind that the model does not read.
        """
        for kind, items in media.items():
            if items:
                self.marker(kind)
        features = Features()
        try:
            if media.get("image"):
                features.train_inputs.update(self._pictures(media["image"]))
            if media.get("video"):
                self._videos(media["video"], features)
            if media.get("audio"):
                features.train_inputs.update(self._clips(media["audio"]))
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise MediaError(f"media cannot be prepared: {type(error).__name__}: {error}") from error
        return features

    def fit(self, tokens: Sequence[int], features: Features) -> list[int]:
        """The tokens as they are if every medium has a placeholder per feature among them, else `expand`ed.

        Further placeholders are text: a model may sample some.

        Raises:
            MediaMismatchError: see `expand`.
        """
        found = media_of(self.family, features.train_inputs)
        for kind, pad in self.family.placeholders.items():
            lengths = iter(length for _, length in _runs(tokens, pad))
            if not all(medium.count in lengths for medium in found.get(kind, [])):
                return self.expand(tokens, features)
        return list(tokens)

    def expand(self, tokens: Sequence[int], features: Features) -> list[int]:
        """The tokens with a placeholder per feature in the place of each one that stands for a whole medium.

        Raises:
            MediaMismatchError: there are more or fewer placeholders than media.
        """
        found = media_of(self.family, features.train_inputs)
        runs = {kind: _runs(tokens, pad) for kind, pad in self.family.placeholders.items()}
        pieces = {kind: self._pieces(kind, found.get(kind, []), features) for kind in runs}
        lone = {
            kind: [start for start, length in runs[kind] if self._framed(kind, tokens, start, length)] for kind in runs
        }
        if any(not len(runs[kind]) == len(lone[kind]) == len(pieces[kind]) for kind in runs):
            told = {kind: (len(runs[kind]), len(pieces[kind])) for kind in runs if runs[kind] or pieces[kind]}
            raise MediaMismatchError(
                "the prompt's placeholders are not those of its media: "
                + ", ".join(f"{placed} of {kind} for {given}" for kind, (placed, given) in told.items())
            )
        places = sorted(place for kind in runs for place in zip(lone[kind], pieces[kind], strict=True))
        result, done = list[int](), 0
        for start, piece in places:
            result += [*tokens[done : start - 1], *piece]
            done = start + 2
        return [*result, *tokens[done:]]

    def _framed(self, kind: Kind, tokens: Sequence[int], start: int, length: int) -> bool:
        """Whether one placeholder stands between the tokens that begin and end such media."""
        around = list(tokens[max(0, start - 1) : start + 2])
        return length == 1 and around == [self._starts[kind], self.family.placeholders[kind], self._ends[kind]]

    def _pieces(self, kind: Kind, media: Sequence[Any], features: Features) -> list[list[int]]:
        """What stands in the place of each medium, start and end included."""
        start, pad, end = self._starts[kind], self.family.placeholders[kind], self._ends[kind]
        framed = [[start, *[pad] * medium.count, end] for medium in media]
        if kind != "video" or not self.family.frames_apart:
            return framed
        pieces, first = [], 0
        for stamps in features.stamps:
            piece: list[int] = []
            for seconds, frame in zip(stamps, framed[first : first + len(stamps)], strict=True):
                piece += self.tokenizer.encode(f"<{seconds:.1f} seconds>", add_special_tokens=False) + frame
            pieces.append(piece)
            first += len(stamps)
        return pieces

    def _pictures(self, images: Sequence[Any]) -> Arrays:
        return self._patches([open_image(image) for image in images], self.budget.image_tokens)

    def _patches(self, pictures: Sequence[Any], tokens: tuple[int, int]) -> Arrays:
        area = (self._images.patch_size * self._images.merge_size) ** 2
        size = {"shortest_edge": tokens[0] * area, "longest_edge": tokens[1] * area}
        done = self._images(images=list(pictures), size=size, return_tensors="np")
        return {
            "pixel_values": np.asarray(done["pixel_values"], np.float32),
            "image_grid_thw": np.asarray(done["image_grid_thw"], np.int64),
        }

    def _videos(self, videos: Sequence[Any], features: Features) -> None:
        """Frames are taken at `video_fps`, each is patched as an image, and pairs of frames share a patch."""
        depth, pixels, grids, seconds = self._images.temporal_patch_size, [], [], []
        for video in videos:
            frames, fps = video["frames"], float(video.get("fps") or self.budget.video_fps)
            chosen = self._moments(len(frames), fps)
            patched = self._patches([open_image(frames[i]) for i in chosen], self.budget.video_tokens)
            grid = patched["image_grid_thw"]
            if (grid != grid[0]).any():
                raise MediaError("the frames of a video differ in size")
            _, height, width = (int(side) for side in grid[0])
            flat = patched["pixel_values"].reshape(len(chosen), height * width, -1, depth, self._images.patch_size**2)
            still = flat[:, :, :, 0]
            still = np.concatenate([still, np.repeat(still[-1:], -len(chosen) % depth, axis=0)])
            pairs = still.reshape(-1, depth, *still.shape[1:]).transpose(0, 2, 3, 1, 4)
            pixels.append(pairs.reshape(pairs.shape[0] * height * width, -1))
            grids.append([pairs.shape[0], height, width])
            padded = [*chosen, *[chosen[-1]] * (-len(chosen) % depth)]
            times = [index / fps for index in padded]
            features.stamps.append([(times[i] + times[i + depth - 1]) / 2 for i in range(0, len(times), depth)])
            seconds.append(depth * len(frames) / (fps * len(chosen)))
        features.train_inputs["pixel_values_videos"] = np.concatenate(pixels)
        features.train_inputs["video_grid_thw"] = np.array(grids, np.int64)
        features.train_inputs["second_per_grid_ts"] = np.array(seconds, np.float32)

    def _moments(self, frames: int, fps: float) -> list[int]:
        """Indices of the frames to take, evenly over the video."""
        least, most = self.budget.video_frames
        count = max(1, min(max(int(frames / fps * self.budget.video_fps), least), most, frames))
        return [int(index) for index in np.linspace(0, frames - 1, count).round()]

    def _clips(self, clips: Sequence[Any]) -> Arrays:
        assert self._sounds is not None
        done = self._sounds(
            [open_audio(clip, self.budget.audio_rate) for clip in clips],
            sampling_rate=self.budget.audio_rate,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="np",
        )
        return {
            "input_features": np.asarray(done["input_features"], np.float32),
            "feature_attention_mask": np.asarray(done["attention_mask"], np.int64),
        }


def _runs(tokens: Sequence[int], pad: int) -> list[tuple[int, int]]:
    """Start and length of each run of the placeholder `pad`."""
    where = np.flatnonzero(np.asarray(tokens) == pad)
    if not len(where):
        return []
    breaks = np.flatnonzero(np.diff(where) > 1) + 1
    return [(int(run[0]), len(run)) for run in np.split(where, breaks)]


def _image_processor(directory: Path) -> Any:
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(str(directory), local_files_only=True, backend="pil")


def _feature_extractor(directory: Path) -> Any:
    from transformers import AutoFeatureExtractor

    return AutoFeatureExtractor.from_pretrained(str(directory), local_files_only=True)

"""DeepEyes' tools as an environment: the model zooms into its picture or turns it, and sees what comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from relax_engine.multimodal.content import open_image
from relax_engine.rollout.environment import BaseInteractionEnv
from relax_engine.types import Sample

SMALLEST = 8
"""Pixels along each side of what may be zoomed into."""
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def zoom(picture: Any, box: Sequence[float]) -> Any:
    """The part of a PIL image in `box`: left, top, right and bottom, from 0 to 1000 along each side.

    Raises:
        ValueError: these are not four such numbers in order, or it is smaller than `SMALLEST`.
    """
    left, top, right, bottom = box
    if not (0 <= left < right <= 1000 and 0 <= top < bottom <= 1000):
        raise ValueError(f"bbox_2d {list(box)} is not left, top, right and bottom from 0 to 1000")
    part = picture.crop([round(place * side / 1000) for place, side in zip(box, picture.size * 2, strict=True)])
    if min(part.size) < SMALLEST:
        raise ValueError(f"bbox_2d {list(box)} is {part.width} x {part.height} pixels, less than {SMALLEST}")
    return part


def rotate(picture: Any, angle: float) -> Any:
    """A PIL image turned by `angle` degrees against the clock, from -360 to 360, on a ground as large as it needs.

    Raises:
        ValueError: the angle is another one.
    """
    if not -360 <= angle <= 360:
        raise ValueError(f"angle {angle} is not from -360 to 360")
    return picture.rotate(angle, expand=True)


class DeepEyes(BaseInteractionEnv):
    """The tools `image_zoom_in_tool(bbox_2d)` and `image_rotate_tool(angle)`, both on the picture seen last.

    A turn without a call ends the exchange; of several calls the first counts. One that cannot be carried out is
    answered by `error`. `info` has `tool_calls`, those that were carried out.
    """

    def __init__(self, sample: Sample) -> None:
        """Look at the sample's first picture."""
        self.picture = open_image((sample.multimodal_inputs or {})["image"][0])
        self.calls = 0

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The prompt is all that there is to see."""
        return {"obs_str": ""}, {}

    def step(self, response_text: str) -> tuple[dict[str, Any], bool, dict[str, Any]]:
        """Carry out the turn's call."""
        call = _CALL.search(response_text)
        if call is None:
            return {"obs_str": ""}, True, {"tool_calls": self.calls}
        try:
            self.picture = self._called(json.loads(call[1]))
        except (ValueError, TypeError, KeyError):
            return {"obs_str": "error"}, False, {"tool_calls": self.calls}
        self.calls += 1
        seen = {"obs_str": "", "multi_modal_data": {"image": [self.picture]}}
        return seen, False, {"tool_calls": self.calls}

    def _called(self, call: dict[str, Any]) -> Any:
        name, arguments = call["name"], call["arguments"]
        if name == "image_zoom_in_tool":
            return zoom(self.picture, arguments["bbox_2d"])
        if name == "image_rotate_tool":
            return rotate(self.picture, arguments["angle"])
        raise ValueError(f"there is no tool {name!r}")


def build_env(sample: Sample, args: Any = None, **_: Any) -> DeepEyes:
    """One environment for each sample."""
    return DeepEyes(sample)

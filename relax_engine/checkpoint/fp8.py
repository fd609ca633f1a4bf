"""Weights of linear layers as 8-bit floats with scales, for engines that multiply in FP8.

A weight `w` is stored as `q = w / s`, rounded to float8 e4m3 (largest value 448), with the float32 scale
`s = max |w| / 448` of its block of `[rows, columns]`, of its output channel, or of the whole tensor: `w = q * s`.
Embeddings, the vocabulary projection, norms, biases, routers, score layers and towers of other modalities keep their
type.

Names and `config.json` are those that engines read: blocks as in DeepSeek-V3 (`weight_scale_inv`, quantisation
method "fp8"), channels and tensors as in compressed-tensors (`weight_scale`, format "float-quantized").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Strategy = Literal["block", "channel", "tensor"]
STRATEGIES: tuple[Strategy, ...] = ("block", "channel", "tensor")
DTYPE = torch.float8_e4m3fn
_LARGEST = torch.finfo(DTYPE).max
_SMALLEST_SCALE = 1e-12  # of a block of zeros
_BAND_ROWS = 1024  # are worked on at a time
_LINEAR = re.compile(r".*_proj(_with_mqa)?\.weight")
_TOWERS = re.compile(r"(^|\.)(visual|vision_tower|audio_tower|multi_modal_projector)\.")


@dataclass(frozen=True, slots=True)
class Fp8:
    """How weights are quantised; `block` is `(rows, columns)` of the strategy of that name."""

    strategy: Strategy
    block: tuple[int, int] = (128, 128)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"unknown FP8 strategy {self.strategy!r}; one of {', '.join(STRATEGIES)}")
        if min(self.block) < 1:
            raise ValueError(f"an FP8 block has at least one row and column, got {self.block}")

    def quantises(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a Hugging Face tensor is the weight of a linear layer of the language model."""
        return len(shape) == 2 and _LINEAR.fullmatch(name) is not None and _TOWERS.search(name) is None

    def scale_name(self, name: str) -> str:
        """Name of the scales of the weight `name`."""
        return f"{name}_scale_inv" if self.strategy == "block" else f"{name}_scale"

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the scales of a weight `[rows, columns]`; blocks at the edges may be smaller."""
        rows, columns = shape
        if self.strategy == "block":
            return (-(-rows // self.block[0]), -(-columns // self.block[1]))
        return (rows, 1) if self.strategy == "channel" else (1,)

    def quantise(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Quantised weight (float8 e4m3, of `weight`'s shape) and its scales (float32, `scale_shape`)."""
        rows, columns = weight.shape
        if self.strategy == "tensor":
            scale = _scale(weight.abs().max().float())
            return (weight.float() / scale).to(DTYPE), scale.view(1)
        height, width = self.block if self.strategy == "block" else (1, columns)
        step = height * max(1, _BAND_ROWS // height)
        quantised, scales = torch.empty(weight.shape, dtype=DTYPE), []
        for first in range(0, rows, step):
            band = weight[first : first + step].float()
            blocks = torch.nn.functional.pad(band, (0, -columns % width, 0, -len(band) % height))
            blocks = blocks.view(-1, height, blocks.shape[1] // width, width)
            scales.append(_scale(blocks.abs().amax((1, 3))))
            blocks = (blocks / scales[-1][:, None, :, None]).flatten(2).flatten(0, 1)
            quantised[first : first + step] = blocks[: len(band), :columns].to(DTYPE)
        return quantised, torch.cat(scales)

    def config(self, unquantised: Iterator[str]) -> dict[str, Any]:
        """What `config.json` says under `quantization_config`; `unquantised` are the linear modules left alone."""
        modules = sorted(unquantised)
        if self.strategy == "block":
            return {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": list(self.block),
                "modules_to_not_convert": modules,
            }
        arguments = {"num_bits": 8, "type": "float", "symmetric": True}
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**arguments, "strategy": self.strategy, "dynamic": False},
                    "input_activations": {**arguments, "strategy": "token", "dynamic": True},
                }
            },
            "ignore": modules,
        }


def _scale(largest: Tensor) -> Tensor:
    return (largest / _LARGEST).clamp_min_(_SMALLEST_SCALE)

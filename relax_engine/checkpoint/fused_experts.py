"""Experts that a model's files hold as two tensors for each layer (Qwen3-VL with experts), and all else one by one.

Published files have them input by output: `experts.gate_up_proj` `[experts, hidden, 2 f]` and `experts.down_proj`
`[experts, f, hidden]`; transformers 5 writes them output by input: `[experts, 2 f, hidden]`, `[experts, hidden, f]`.
Which it is follows from the shape, as in transformers; where both would fit, it is the second.

What lives here: the names and matrices inside of such tensors. What does not: reading and writing files
(`hf_reader.py`, `exporter.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from relax_engine.checkpoint.mapping import ParameterMapping, WeightMap
from relax_engine.checkpoint.model_spec import ModelSpec

_FUSED = re.compile(r"^(?P<experts>.*\.mlp\.experts)\.(?P<kind>gate_up_proj|down_proj)$")
_PART = re.compile(r"\.\d+\.(gate|up|down)_proj\.weight$")


@dataclass(frozen=True, slots=True)
class ExpertWeight:
    """The weight of one expert's layer inside of a tensor for all experts.

    Attributes:
        name: Hugging Face's for the expert by itself, as of families whose files hold them so.
        expert: its number.
        block: the shape of one expert's part of the tensor.
        transposed: whether that part is input by output.
        first, rows: the rows that are the weight's, in the part output by input.
    """

    name: str
    expert: int
    block: tuple[int, int]
    transposed: bool
    first: int
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """Output by input."""
        return self.rows, self.block[0] if self.transposed else self.block[1]

    @property
    def offset(self) -> int:
        """Elements of the tensor before the expert's part."""
        return self.expert * math.prod(self.block)

    def take(self, block: Tensor) -> Tensor:
        """The weight, of the expert's part of the tensor."""
        matrix = block.t() if self.transposed else block
        return matrix[self.first : self.first + self.rows].contiguous()


def weights_inside(name: str, shape: Sequence[int], spec: ModelSpec) -> list[ExpertWeight]:
    """What the tensor `name` of a model's files holds of single experts; [] for any other tensor."""
    match, experts = _FUSED.match(name), spec.experts
    if match is None or experts is None or not experts.fused_files or len(shape) != 3:
        return []
    width, both = experts.ffn_hidden_size, match["kind"] == "gate_up_proj"
    outputs, inputs = (2 * width, spec.hidden_size) if both else (spec.hidden_size, width)
    block = (shape[1], shape[2])
    if block not in ((outputs, inputs), (inputs, outputs)):
        return []
    parts = ("gate_proj", "up_proj") if both else ("down_proj",)
    rows = outputs // len(parts)
    return [
        ExpertWeight(
            f"{match['experts']}.{expert}.{part}.weight", expert, block, block != (outputs, inputs), index * rows, rows
        )
        for expert in range(shape[0])
        for index, part in enumerate(parts)
    ]


def separated(name: str, tensor: Tensor, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """The tensors that `tensor` of a model's files is here: itself, or those of single experts."""
    inside = weights_inside(name, tensor.shape, spec)
    if not inside:
        yield name, tensor
    for weight in inside:
        yield weight.name, weight.take(tensor[weight.expert])


@dataclass(frozen=True, slots=True)
class FusedTensor:
    """A tensor of a model's files: one matrix of each expert of a layer, in order."""

    name: str
    experts: tuple[ParameterMapping, ...]
    transposed: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """With the experts in front."""
        outputs, inputs = self.experts[0].shape
        return (len(self.experts), *((inputs, outputs) if self.transposed else (outputs, inputs)))

    def part(self, matrix: Tensor) -> Tensor:
        """One expert's part, of its matrix output by input."""
        return matrix.t().contiguous() if self.transposed else matrix


def file_tensors(weights: WeightMap, *, transposed: bool) -> list[ParameterMapping | FusedTensor]:
    """What files of the model are written from, in order: its parameters, or tensors for all experts of a layer."""
    experts = weights.spec.experts
    if experts is None or not experts.fused_files:
        return list(weights.parameters.values())
    found: list[ParameterMapping | FusedTensor] = []
    of_layer: dict[str, list[ParameterMapping]] = {}
    for mapping in weights.parameters.values():
        if mapping.expert is None:
            found.append(mapping)
            continue
        kind = "down_proj" if len(mapping.hf_names) == 1 else "gate_up_proj"
        parts = of_layer.setdefault(f"{_PART.sub('', mapping.hf_names[0])}.{kind}", [])
        parts.append(mapping)
    fused = [FusedTensor(name, tuple(parts), transposed) for name, parts in of_layer.items()]
    return [*found, *fused]

"""How one model is spread over processes, as plain numbers.

What lives here: the sizes, the checks that need no model, and reading them from the flat configuration. What does not:
whether a model's sizes divide (`relax_engine.checkpoint.divisibility`), process groups (the backend).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How the model is spread over processes; the rest of the world is data parallel.

    Attributes:
        tensor: ranks that share each layer's matrices.
        sequence_parallel: also cut activations between the tensor-parallel regions along the tokens.
        pipeline: ranks that share the layers.
        context: ranks that share the tokens of each micro-batch.
        expert: ranks that share the experts of a layer; they are data- or context-parallel ranks outside the experts.
        expert_tensor: ranks that share the matrices of one expert. None: as `tensor`.
        virtual: pieces of the model on each pipeline rank, interleaved (1: one piece).
        first_layers, last_layers: layers on the first and the last pipeline rank. None: as many as on the others.
    """

    tensor: int = 1
    sequence_parallel: bool = False
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    virtual: int = 1
    first_layers: int | None = None
    last_layers: int | None = None

    def __post_init__(self) -> None:
        if self.expert_tensor is None:
            object.__setattr__(self, "expert_tensor", self.tensor)
        for flag, size in (
            ("tensor_model_parallel_size", self.tensor),
            ("pipeline_model_parallel_size", self.pipeline),
            ("context_parallel_size", self.context),
            ("expert_model_parallel_size", self.expert),
            ("num_virtual_stages_per_pipeline_rank", self.virtual),
        ):
            if size < 1:
                raise ValueError(f"{flag} must be at least 1, got {size}")
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError("sequence_parallel needs tensor_model_parallel_size of at least 2, got 1")
        if self.virtual > 1 and self.pipeline == 1:
            raise ValueError(
                f"num_virtual_stages_per_pipeline_rank={self.virtual} needs pipeline_model_parallel_size of at least 2"
            )
        if self.pipeline == 1 and (self.first_layers or self.last_layers):
            raise ValueError(
                "decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers need "
                "pipeline_model_parallel_size of at least 2"
            )

    @property
    def experts_tensor(self) -> int:
        """Tensor-parallel size inside the experts."""
        return self.expert_tensor or self.tensor

    @property
    def model_parallel(self) -> int:
        """Processes that hold one copy of the model and work on the same rows."""
        return self.tensor * self.pipeline * self.context

    def data_parallel(self, world_size: int) -> int:
        """Number of data-parallel replicas in a world of `world_size` processes.

        Raises:
            ValueError: the world is not a multiple of the model-parallel size, or of the experts'.
        """
        if world_size % self.model_parallel:
            raise ValueError(
                f"{world_size} processes cannot hold replicas of {self.model_parallel} ranks each "
                f"({self.tensor} tensor x {self.pipeline} pipeline x {self.context} context); use a multiple of "
                f"{self.model_parallel}, or smaller --tensor-model-parallel-size, --pipeline-model-parallel-size, "
                "--context-parallel-size"
            )
        experts = self.experts_tensor * self.expert * self.pipeline
        if self.expert > 1 and world_size % experts:
            raise ValueError(
                f"{world_size} processes cannot hold the experts over {experts} ranks "
                f"({self.experts_tensor} expert tensor x {self.expert} expert x {self.pipeline} pipeline); use a "
                f"multiple of {experts}, or smaller --expert-model-parallel-size, --expert-tensor-parallel-size"
            )
        return world_size // self.model_parallel


def read_layout(flat: Any) -> ParallelLayout:
    """The layout that the flat configuration view asks for.

    Raises:
        ValueError: the sizes contradict each other.
    """
    return ParallelLayout(
        tensor=flat.tensor_model_parallel_size,
        sequence_parallel=flat.sequence_parallel,
        pipeline=flat.pipeline_model_parallel_size,
        context=flat.context_parallel_size,
        expert=flat.expert_model_parallel_size,
        expert_tensor=flat.expert_tensor_parallel_size,
        virtual=flat.num_virtual_stages_per_pipeline_rank,
        first_layers=flat.decoder_first_pipeline_num_layers,
        last_layers=flat.decoder_last_pipeline_num_layers,
    )

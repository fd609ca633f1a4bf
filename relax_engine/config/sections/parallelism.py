"""How the trained model is split over devices."""

from __future__ import annotations

from relax_engine.config.sections.base import Section, flag


class Parallelism(Section):
    """Tensor, pipeline, context and expert parallelism of the actor; the rest of its devices is data parallelism."""

    tensor_model_parallel_size: int = flag(1, ge=1, unit="devices")
    """Devices over which each layer's matrices are split."""

    pipeline_model_parallel_size: int = flag(1, ge=1, unit="devices")
    """Devices over which the layers are split."""

    context_parallel_size: int = flag(1, ge=1, unit="devices")
    """Devices over which each sequence is split."""

    expert_model_parallel_size: int = flag(1, ge=1, unit="devices")
    """Devices over which the experts are split."""

    expert_tensor_parallel_size: int | None = flag(None, ge=1, unit="devices")
    """Tensor parallelism inside experts. Default: `--tensor-model-parallel-size`."""

    sequence_parallel: bool = False
    """Split activations between tensor-parallel regions along the sequence; needs a tensor-parallel size above 1."""

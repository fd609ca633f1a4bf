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

    num_virtual_stages_per_pipeline_rank: int = flag(1, ge=1, unit="stages")
    """Pieces of the model on each pipeline rank; more than 1 interleaves them, for shorter idle ends of a step."""

    decoder_first_pipeline_num_layers: int | None = flag(None, ge=1, unit="layers")
    """Layers on the first pipeline rank. Default: as many as on the others."""

    decoder_last_pipeline_num_layers: int | None = flag(None, ge=1, unit="layers")
    """Layers on the last pipeline rank. Default: as many as on the others."""

    moe_aux_loss_coeff: float = flag(0.0, ge=0)
    """Weight of the load-balancing loss of a mixture of experts in the loss; 0 leaves it out."""

    sequence_parallel: bool = False
    """Split activations between tensor-parallel regions along the sequence; needs a tensor-parallel size above 1."""

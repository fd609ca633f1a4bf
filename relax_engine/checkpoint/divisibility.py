"""Whether a model's sizes divide over a parallel layout.

What lives here: the reasons why they do not, in words, for the doctor and the backend. What does not: the layout's own
contradictions (`relax_engine.config.layout`).
"""

from __future__ import annotations

from collections.abc import Iterator

from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.config.layout import ParallelLayout


def misfits(spec: ModelSpec, layout: ParallelLayout) -> list[tuple[str, str]]:
    """Why `spec` cannot be spread so: pairs of the flags concerned (space-separated fields) and the reason."""
    return [*_tensor(spec, layout), *_experts(spec, layout), *_layers(spec, layout)]


def _tensor(spec: ModelSpec, layout: ParallelLayout) -> Iterator[tuple[str, str]]:
    flag, size = "tensor_model_parallel_size", layout.tensor
    for what, count in (
        ("attention heads", spec.num_attention_heads),
        ("MLP columns", spec.ffn_hidden_size),
        ("hidden units", spec.hidden_size),
    ):
        if count % size:
            yield flag, f"{count} {what} do not divide over {size} tensor-parallel ranks"
    groups = spec.num_query_groups
    if groups % size and size % groups:
        yield flag, f"{groups} key/value heads are neither a multiple nor a divisor of {size} tensor-parallel ranks"


def _experts(spec: ModelSpec, layout: ParallelLayout) -> Iterator[tuple[str, str]]:
    experts = spec.experts
    if experts is None:
        if layout.expert > 1:
            yield (
                "expert_model_parallel_size",
                f"{spec.architecture} has no experts to spread over {layout.expert} ranks",
            )
        return
    if experts.count % layout.expert:
        yield (
            "expert_model_parallel_size",
            f"{experts.count} experts do not divide over {layout.expert} expert-parallel ranks",
        )
    for what, count in (("expert", experts.ffn_hidden_size), ("shared-expert", experts.shared_ffn_hidden_size or 0)):
        size = layout.experts_tensor if what == "expert" else layout.tensor
        if count % size:
            yield (
                "expert_tensor_parallel_size tensor_model_parallel_size",
                f"{count} {what} columns do not divide over {size} ranks",
            )
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield (
            "sequence_parallel tensor_model_parallel_size",
            f"experts with {layout.tensor} tensor-parallel ranks need sequence parallelism, or every rank would send "
            "every token to them",
        )


def _layers(spec: ModelSpec, layout: ParallelLayout) -> Iterator[tuple[str, str]]:
    layers, stages = spec.num_layers, layout.pipeline
    ends = [count for count in (layout.first_layers, layout.last_layers) if count is not None]
    between, others = layers - sum(ends), stages - len(ends)
    uneven = between != 0 if others == 0 else between <= 0 or between % others
    if uneven:
        of_ends = f" (after {' and '.join(map(str, ends))} at the ends)" if ends else ""
        yield (
            "pipeline_model_parallel_size decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers",
            f"{layers} layers do not divide over {stages} pipeline ranks{of_ends}",
        )
        return
    for count in {*ends, between // others if others else ends[0]}:
        if count % layout.virtual:
            yield (
                "num_virtual_stages_per_pipeline_rank pipeline_model_parallel_size",
                f"{count} layers of a pipeline rank do not divide into {layout.virtual} virtual stages",
            )
            return
    first = (layout.first_layers or (between // others if others else ends[0])) // layout.virtual
    deepstack = 0 if spec.media is None else spec.media.deepstack
    if first < deepstack:
        yield (
            "pipeline_model_parallel_size decoder_first_pipeline_num_layers",
            f"the first {deepstack} layers take features of images, and the first pipeline stage, which has the "
            f"encoders, has {first} layers",
        )

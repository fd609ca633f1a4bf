"""Turning pending prompt groups into finished samples with one batched engine request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample, SampleGroup, SampleStatus, WeightVersionSpan

if TYPE_CHECKING:
    from relax_engine.backends.engines.client import EngineClient, GenerateOutput

_STATUS = {"stop": SampleStatus.COMPLETED, "length": SampleStatus.TRUNCATED, "abort": SampleStatus.ABORTED}


async def generate_groups(client: EngineClient, groups: Sequence[SampleGroup], sampling: SamplingSettings) -> None:
    """Generate a response for every sample of `groups`, in place.

    All samples travel in one request, in order: the engine admits them together, computes each
    group's prompt once, and gives the same result for the same request.
    """
    samples = [sample for group in groups for sample in group]
    outputs = await client.generate_batch(
        [sample.tokens for sample in samples],
        [sampling.request(sample.index, len(sample.tokens)) for sample in samples],
    )
    for sample, output in zip(samples, outputs, strict=True):
        fill(sample, output)


def fill(sample: Sample, output: GenerateOutput) -> None:
    """Write one engine answer into its sample."""
    tokens = output.output_ids.tolist()
    sample.tokens = [*sample.tokens, *tokens]
    sample.rollout_tokens = tokens
    sample.response = output.text
    sample.response_length = len(tokens)
    sample.loss_mask = [1] * len(tokens)
    sample.rollout_log_probs = output.log_probs.tolist()
    sample.weight_versions = [
        WeightVersionSpan(int(span.version), span.start, span.end) for span in output.weight_versions
    ]
    sample.status = _STATUS[output.finish_reason["type"]]

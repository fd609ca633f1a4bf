"""Responses that come in pieces: joining, taking back, beginning again, and what of them counts in the loss.

What lives here: pure changes of samples. What does not: requests (`generate`), and which groups wait (`buffer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relax_engine.types import Sample, SampleGroup, SampleStatus, WeightVersionSpan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from relax_engine.backends.engines.types import GenerateOutput

_STATUS = {"stop": SampleStatus.COMPLETED, "length": SampleStatus.TRUNCATED, "abort": SampleStatus.ABORTED}


def is_finished(sample: Sample) -> bool:
    """Whether no further token is to come."""
    return sample.status not in (SampleStatus.PENDING, SampleStatus.ABORTED)


def is_touched(group: SampleGroup) -> bool:
    """Whether a sample of the group holds anything that its prompt does not give back."""
    return any(sample.status is not SampleStatus.PENDING for sample in group)


def extend(sample: Sample, output: GenerateOutput, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Append one engine answer to what the sample has.

    Every token keeps the log-prob and the weight version of the answer that brought it. The text of a response in
    several pieces is decoded as a whole by `tokenizer`, because a character may span two pieces.
    """
    tokens = output.output_ids.tolist()
    start = sample.response_length
    sample.tokens = [*sample.tokens, *tokens]
    sample.rollout_tokens = [*sample.rollout_tokens, *tokens]
    sample.response_length = start + len(tokens)
    sample.loss_mask = [1] * sample.response_length
    sample.rollout_log_probs = [*(sample.rollout_log_probs or []), *output.log_probs.tolist()]
    join_experts(sample, output)
    for span in output.weight_versions:
        _append_span(sample.weight_versions, int(span.version), start + span.start, start + span.end)
    sample.status = _STATUS[output.finish_reason["type"]]
    if start == 0 or tokenizer is None:
        sample.response = output.text
    else:
        sample.response = _text(sample, output.finish_reason.get("matched"), tokenizer)


def join_experts(sample: Sample, output: GenerateOutput) -> None:
    """Take the experts of the tokens that no earlier answer told of: those before keep what they were sampled with."""
    sent, known = output.routed_experts, sample.rollout_routed_experts
    if sent is not None:
        sample.rollout_routed_experts = sent if known is None else np.concatenate([known, sent[len(known) :]])


def _append_span(spans: list[WeightVersionSpan], version: int, start: int, end: int) -> None:
    if spans and spans[-1].version == version:
        spans[-1].end = end
    else:
        spans.append(WeightVersionSpan(version, start, end))


def _text(sample: Sample, matched: int | str | None, tokenizer: PreTrainedTokenizerBase) -> str:
    """The response as an engine would put it: without the stop token or string that ended it."""
    ids = sample.rollout_tokens[:-1] if isinstance(matched, int) else sample.rollout_tokens
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    return text.partition(matched)[0] if isinstance(matched, str) else text


def take_back(sample: Sample, count: int) -> None:
    """Remove the last `count` response tokens (all, if there are fewer)."""
    keep = max(0, sample.response_length - count)
    if keep == sample.response_length:
        return
    sample.tokens = sample.tokens[: sample.prompt_length + keep]
    sample.rollout_tokens = sample.rollout_tokens[:keep]
    sample.loss_mask = (sample.loss_mask or [])[:keep]
    sample.rollout_log_probs = (sample.rollout_log_probs or [])[:keep]
    sample.weight_versions = [
        WeightVersionSpan(span.version, span.start, min(span.end, keep))
        for span in sample.weight_versions
        if span.start < keep
    ]
    if sample.rollout_routed_experts is not None:
        sample.rollout_routed_experts = sample.rollout_routed_experts[: len(sample.tokens) - 1]
    sample.response_length = keep


def seam_tokens(stop: Sequence[str]) -> int:
    """Tokens to sample again where a response is continued, so that a stop string across the seam is still seen.

    A token is at least one byte of text; the engine looks for stop strings in what it samples itself.
    """
    return max((len(text.encode()) - 1 for text in stop), default=0)


def begin_again(sample: Sample) -> None:
    """Back to the prompt alone; how often the sample was interrupted is kept."""
    take_back(sample, sample.response_length)
    sample.response, sample.reward, sample.rollout_log_probs, sample.loss_mask = "", None, None, None
    sample.rollout_routed_experts = None
    sample.status = SampleStatus.PENDING


def oldest_version(group: SampleGroup) -> int | None:
    """The oldest weight version that sampled a token of the group which counts in the loss; None without any."""
    versions = [version for sample in group if (version := oldest_counted_version(sample)) is not None]
    return min(versions, default=None)


def oldest_counted_version(sample: Sample) -> int | None:
    """The oldest weight version that sampled a response token which counts in the loss; None without any.

    It need not be the first token's: a response may go on at an engine that lags behind.
    """
    mask = sample.loss_mask or []
    return min((span.version for span in sample.weight_versions if any(mask[span.start : span.end])), default=None)


def mask_off_policy(group: SampleGroup, version: int) -> int:
    """Take tokens that weights older than `version` sampled out of the loss; returns how many."""
    masked = 0
    for sample in group:
        for span in sample.weight_versions:
            if span.version < version and sample.loss_mask is not None:
                masked += sum(sample.loss_mask[span.start : span.end])
                sample.loss_mask[span.start : span.end] = [0] * (span.end - span.start)
    return masked


def newest_version(group: SampleGroup) -> int | None:
    """The newest weight version that sampled a token of the group; None before generation."""
    return max((span.version for sample in group for span in sample.weight_versions), default=None)

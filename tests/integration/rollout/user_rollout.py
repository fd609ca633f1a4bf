"""Functions as a user would write them."""

from __future__ import annotations

from typing import Any

import aiohttp

from relax_engine.rollout.custom_rollout import RolloutFnEvalOutput, RolloutFnTrainOutput
from relax_engine.types import Sample

HERE = __file__


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Sample:
    """Two requests for half the tokens each, with a fixed text in between that is kept out of the loss."""
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sampling_params["max_new_tokens"] //= 2
    sample.loss_mask, sample.rollout_log_probs = [], []
    async with aiohttp.ClientSession() as session:
        for turn in range(2):
            body = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
            output = await (await session.post(url, json=body)).json()
            pairs = output["meta_info"]["output_token_logprobs"]
            _append(sample, [token for _, token, _ in pairs], [value for value, _, _ in pairs], 1)
            sample.update_from_meta_info(args, output["meta_info"])
            if turn == 0:
                _append(sample, args.bridge_tokens, [0.0] * len(args.bridge_tokens), 0)
    sample.metadata["evaluation"] = evaluation
    return sample


def _append(sample: Sample, tokens: list[int], log_probs: list[float], mask: int) -> None:
    sample.tokens = [*sample.tokens, *tokens]
    sample.rollout_tokens = [*sample.rollout_tokens, *tokens]
    sample.response_length += len(tokens)
    sample.loss_mask = [*(sample.loss_mask or []), *[mask] * len(tokens)]
    sample.rollout_log_probs = [*(sample.rollout_log_probs or []), *log_probs]


async def careless(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Forgets log-probs."""
    sample.tokens = [*sample.tokens, 7]
    sample.response_length = 1
    sample.status = type(sample.status)("completed")
    return sample


async def broken(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Fails."""
    raise KeyError("answer")


async def generate_rollout(
    args: Any, rollout_id: int, data_buffer: Any, data_system_client: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Takes one group more than it needs, answers with the group's number, puts the last one back unbegun."""
    if evaluation:
        return RolloutFnEvalOutput({"mine": {"rewards": [0.5, 1.0]}}, {"extra": float(rollout_id)})
    assert len(args.engine_urls) == 2
    groups = data_buffer.get_samples(args.rollout_batch_size + 1)
    for group in groups[:-1]:
        for sample in group:
            sample.tokens = [*sample.tokens, sample.group_index % 7]
            sample.response_length = 1
            sample.rollout_log_probs = [-1.0]
            sample.status = type(sample.status)("completed")
            sample.reward = float(sample.group_index)
    data_buffer.add_samples(groups[-1:])
    return RolloutFnTrainOutput(groups[:-1], {"taken": len(groups)})

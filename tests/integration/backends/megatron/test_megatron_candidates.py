"""Several tokens scored at each position: values, gradients and the likeliest ones, on one rank and on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from worlds import VOCAB, clone, hf_model, make_batch, make_checkpoint, make_settings, run_world, single

from relax_engine.algorithms.objective import LossInputs
from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import ParallelLayout
from relax_engine.stream.columns import Column, ColumnBatch

LENGTHS, RESPONSES, COUNT, TEMPERATURE = [23, 9, 31, 14], [11, 4, 0, 13], 3, 0.8


class CandidateLoss:
    """A weighted sum of the candidates' log-probs, of the sampled tokens' and of the entropy."""

    columns = ("ids",)
    candidates = "ids"
    needs_entropy = True

    def __call__(self, log_probs: Any, entropy: Any, inputs: LossInputs) -> Any:
        assert inputs.candidates is not None
        assert inputs.candidates.shape == (len(log_probs), COUNT)
        weights = torch.tensor([1.0, -2.0, 0.5])
        loss = (inputs.candidates * weights).sum() + 0.3 * log_probs.sum() + 0.1 * entropy.sum()
        return loss / sum(RESPONSES), {}


def batch_with_candidates() -> ColumnBatch:
    batch = make_batch(LENGTHS, RESPONSES)
    ids = np.random.default_rng(1).integers(0, VOCAB, (sum(RESPONSES), COUNT)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(RESPONSES)])
    return batch.with_columns(ids=Column(ids, offsets))


def _run(rank: int, size: int, init: str, settings: Any) -> dict[str, Any]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    batch = batch_with_candidates()
    found = backend.forward_likeliest(batch, COUNT, temperature=TEMPERATURE, max_tokens=40)
    metrics = backend.train_step(batch, CandidateLoss(), temperature=TEMPERATURE, max_tokens=None, micro_batch_size=2)
    result = {
        "metrics": metrics,
        "weights": clone(backend.named_hf_tensors()),
        **{name: (column.values, column.offsets) for name, column in found.items()},
    }
    backend.close()
    return result


def test_candidates_equal_transformers_on_one_and_two_ranks(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, tied=True)
    one = _run(0, 1, "", make_settings(checkpoint))
    hf, batch = hf_model("Qwen3", tied=True), batch_with_candidates()
    rows = []
    for row, count in enumerate(RESPONSES):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        rows.append(hf(tokens[None]).logits[0, len(tokens) - count - 1 : -1] / TEMPERATURE)
    logits = torch.cat(rows).log_softmax(-1)
    expected = logits.detach().topk(COUNT)
    assert one["ids"][0].tolist() == expected.indices.tolist()
    np.testing.assert_allclose(one["values"][0], expected.values.numpy(), atol=1e-5)
    assert one["values"][1].tolist() == [0, *np.cumsum(RESPONSES)]

    sampled = torch.cat(
        [torch.tensor(batch["tokens"].row(r)[len(batch["tokens"].row(r)) - n :]) for r, n in enumerate(RESPONSES)]
    )
    of_sampled = logits.gather(1, sampled[:, None].long()).squeeze(1)
    of_candidates = logits.gather(1, torch.from_numpy(batch["ids"].values).long())
    inputs = LossInputs({}, torch.zeros(1), candidates=of_candidates)
    loss, _ = CandidateLoss()(of_sampled, -(logits.exp() * logits).sum(-1), inputs)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in hf.parameters() if p.grad is not None]).norm()
    np.testing.assert_allclose(one["log_probs"][0], of_sampled.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(
        [one["metrics"]["loss"], one["metrics"]["grad_norm"]], [loss.item(), norm.item()], rtol=1e-4
    )

    for other in run_world(_run, 2, make_settings(checkpoint, ParallelLayout(tensor=2))):
        assert other["ids"][0].tolist() == one["ids"][0].tolist()
        np.testing.assert_allclose(other["values"][0], one["values"][0], atol=1e-5)
        np.testing.assert_allclose(other["metrics"]["grad_norm"], one["metrics"]["grad_norm"], rtol=1e-4)
        for name, tensor in one["weights"].items():
            torch.testing.assert_close(other["weights"][name], tensor, atol=2e-4, rtol=1e-4)


def test_without_responses_nothing_is_likely(tmp_path: Path) -> None:
    backend = single(make_settings(make_checkpoint(tmp_path, tied=True)), trainable=False)
    found = backend.forward_likeliest(make_batch([4, 5], [0, 1]).select([0]), 2, temperature=1.0, max_tokens=10)
    assert {name: column.values.shape for name, column in found.items()} == {
        "log_probs": (0,), "ids": (0, 2), "values": (0, 2)
    }  # fmt: skip
    backend.close()

"""Mixtures of experts: log-probs, gradients and weights of transformers, checkpoints, the load-balancing loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import EXPERTS, AdvantageLoss, clone, hf_model, make_batch, make_checkpoint, make_settings, single, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.checkpoint import export_checkpoint, import_checkpoint
from relax_engine.checkpoint.hf_reader import HfReader
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.stream.columns import ColumnBatch

BATCH = ([100, 5, 5, 5, 37, 2], [60, 4, 0, 1, 36, 1])
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"family": "Qwen3Moe", **EXPERTS},
    "qwen3-some-layers": {"family": "Qwen3Moe", **EXPERTS, "norm_topk_prob": False, "mlp_only_layers": [0]},
    "qwen2-shared": {"family": "Qwen2Moe", **EXPERTS, "shared_expert_intermediate_size": 40},
}

Models = tuple[MegatronBackend, Any, Path]


@pytest.fixture(params=list(MODELS), scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("hf"), **MODELS[request.param])
    backend = single(make_settings(checkpoint))
    yield backend, hf_model(**MODELS[request.param]), checkpoint
    backend.close()


def _reference(model: Any, batch: ColumnBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies `[R]` at temperature 0.8 from transformers, one unpadded sequence at a time."""
    log_probs, entropies = [], []
    for row in range(batch.num_rows):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        count = int(batch["response_lengths"].values[row])
        if count == 0:
            continue
        logits = model(tokens[None]).logits[0, len(tokens) - count - 1 : -1] / 0.8
        distribution = torch.distributions.Categorical(logits=logits)
        log_probs.append(distribution.log_prob(tokens[len(tokens) - count :]))
        entropies.append(distribution.entropy())
    return torch.cat(log_probs), torch.cat(entropies)


def test_weights_round_trip_bitwise_through_every_format(model: Models, tmp_path: Path) -> None:
    backend, _, checkpoint = model
    stored = HfReader(checkpoint)
    exported = dict(backend.named_hf_tensors())
    assert exported.keys() == set(stored.names())
    assert all(torch.equal(exported[name], stored.tensor(name)) for name in exported)
    imported = import_checkpoint(checkpoint, tmp_path / "dcp")
    backend.load(imported.path, optimizer=False)
    assert all(torch.equal(tensor, stored.tensor(name)) for name, tensor in backend.named_hf_tensors())
    with CheckpointManager(tmp_path / "saved").writing(1) as directory:
        backend.save(directory, extra={})
    for source in ("dcp", "saved"):
        out = tmp_path / f"out_{source}"
        export_checkpoint(tmp_path / source, out, origin_hf_dir=checkpoint)
        again = HfReader(out)
        assert all(torch.equal(again.tensor(name), stored.tensor(name)) for name in stored.names())


def test_log_probs_and_gradients_equal_transformers(model: Models) -> None:
    backend, hf, _ = model
    batch = make_batch(*BATCH)
    log_probs, entropies = _reference(hf, batch)
    for max_tokens in (10_000, 60, 1):
        column = backend.forward_log_probs(batch, temperature=0.8, max_tokens=max_tokens)
        np.testing.assert_allclose(column.values, log_probs.detach().numpy(), atol=1e-5)
    weights, advantages = (torch.from_numpy(batch[n].values) for n in ("loss_weights", "advantages"))
    loss = -(weights * (advantages * log_probs + 0.1 * entropies)).sum()
    loss.backward()
    grad_norm = torch.stack([p.grad.norm() for p in hf.parameters() if p.grad is not None]).norm()
    metrics = step(backend, batch, max_tokens=60)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(grad_norm.item(), rel=1e-5)


class NoLoss(AdvantageLoss):
    """Leaves the load-balancing loss alone to make the gradient."""

    def __call__(self, log_probs: Any, *_: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return (log_probs * 0.0).sum(), {}


def test_the_load_balancing_loss_is_that_of_the_paper_weighed_as_the_batch_is(tmp_path: Path) -> None:
    options = {**MODELS["qwen3"], "num_hidden_layers": 1}
    checkpoint, hf = make_checkpoint(tmp_path, **options), hf_model(**options)
    batch = make_batch([9, 12, 7], [2, 5, 3])
    expected = torch.zeros(4, 32)
    parts = [[0, 1], [2]]
    for rows in parts:
        tokens = [torch.tensor(batch["tokens"].row(row)[:-1], dtype=torch.int64) for row in rows]  # last ones: unused
        hf.zero_grad()
        logits = torch.cat([hf(t[None], output_router_logits=True).router_logits[0] for t in tokens])
        chosen = torch.zeros(len(logits), 4).scatter(1, logits.topk(2, dim=1).indices, 1.0)
        share = chosen.mean(dim=0) / 2
        (4 * (share * logits.softmax(dim=1).mean(dim=0)).sum()).backward()
        weight = sum(float(batch["loss_weights"].row(row).sum()) for row in rows)
        expected += 0.3 * weight * hf.model.layers[0].mlp.gate.weight.grad
    optimizer = {"adam_eps": 1.0, "weight_decay": 0.0, "clip_grad": 0.0, "lr": 1.0}
    backend = single(make_settings(checkpoint, optimizer=optimizer, aux_loss_coeff=0.3))
    before = clone(backend.named_hf_tensors())
    backend.train_step(batch, NoLoss(), temperature=1.0, max_tokens=None, micro_batch_size=2)
    name = "model.layers.0.mlp.gate.weight"
    moved = before[name] - dict(backend.named_hf_tensors())[name]  # g / (|g| + 1)
    backend.close()
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(moved / (1 - moved.abs()), expected, rtol=1e-3, atol=1e-6)

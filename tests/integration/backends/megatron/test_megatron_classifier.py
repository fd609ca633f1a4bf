"""Sequence classification: loss and gradient equal transformers', and what is saved is a model of that kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_megatron_values import reward_model
from worlds import make_batch, make_checkpoint, make_settings, single

from relax_engine.algorithms.classification import ClassificationLoss
from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.stream.columns import Column

LENGTHS, LABELS = [23, 9, 31, 14], 3


@pytest.mark.parametrize("multi_label", [False, True])
def test_loss_and_gradient_equal_transformers(tmp_path: Path, multi_label: bool) -> None:
    model = reward_model(tmp_path, labels=LABELS)
    model.config.problem_type = "multi_label_classification" if multi_label else "single_label_classification"
    targets = np.eye(LABELS, dtype=np.float32)[[2, 0, 1, 2]]
    if multi_label:
        targets[1] = 1.0
    # The last token of a row stands for the answer: the score is of the state before it.
    batch = make_batch([length + 1 for length in LENGTHS], [1] * 4).with_columns(
        loss_weights=Column.ragged([[1 / 4]] * 4, np.float32),
        loss_masks=Column.ragged([[1]] * 4, np.uint8),
        class_targets=Column.ragged([row[None] for row in targets], np.float32),
    )
    losses, right = [], []
    for row, target in enumerate(torch.from_numpy(targets)):
        tokens = torch.tensor(batch["tokens"].row(row)[:-1], dtype=torch.int64)
        labels = target[None] if multi_label else target.argmax()[None]
        output = model(tokens[None], labels=labels)
        losses.append(output.loss)
        predicted = output.logits[0].sigmoid() > 0.5 if multi_label else output.logits[0] == output.logits.max()
        right.append(bool((predicted == (target > 0)).all()))
    loss = torch.stack(losses).mean()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()

    backend = single(make_settings(tmp_path, head="classifier"))
    metrics = backend.train_step(
        batch, ClassificationLoss(multi_label=multi_label), temperature=1.0, max_tokens=None, micro_batch_size=3
    )
    exported = dict(backend.named_hf_tensors())
    assert exported["score.weight"].shape == (LABELS, 32)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert metrics["accuracy"] == np.mean(right)
    backend.close()


def test_a_language_model_is_no_classifier(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="with its labels in id2label"):
        single(make_settings(make_checkpoint(tmp_path), head="classifier"))

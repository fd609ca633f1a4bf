"""Rows with the same prompt in one micro-batch train as if each were alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from worlds import clone, hf_model, make_batch, make_checkpoint, make_settings, single, step

from relax_engine.stream.columns import Column, ColumnBatch

PROMPTS, RESPONSES = [7, 7, 7, 3, 3, 9], [30, 4, 0, 1, 20, 12]


def _groups() -> ColumnBatch:
    batch = make_batch([p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)], RESPONSES)
    rows = [batch["tokens"].row(row).copy() for row in range(batch.num_rows)]
    for row, leader in enumerate([0, 0, 0, 3, 3, 5]):
        rows[row][: PROMPTS[row]] = rows[leader][: PROMPTS[row]]
    return batch.with_columns(tokens=Column.ragged(rows, np.int32))


def test_log_probs_and_steps_do_not_depend_on_sharing(tmp_path: Path) -> None:
    checkpoint, batch = make_checkpoint(tmp_path), _groups()
    results = []
    for size in (1, batch.num_rows):
        backend = single(make_settings(checkpoint))
        scores = backend.forward_log_probs(batch, temperature=1.0, max_tokens=1 if size == 1 else 1000).values
        metrics = step(backend, batch, size=size)
        results.append((scores, metrics, clone(backend.named_hf_tensors())))
        backend.close()
    alone, shared = results
    np.testing.assert_allclose(shared[0], alone[0], atol=1e-5)
    assert shared[1]["loss"] == pytest.approx(alone[1]["loss"], rel=1e-6)
    assert shared[1]["grad_norm"] == pytest.approx(alone[1]["grad_norm"], rel=1e-5)
    for name, expected in alone[2].items():
        torch.testing.assert_close(shared[2][name], expected, rtol=0, atol=2e-5)


def test_long_rows_score_as_in_transformers(tmp_path: Path) -> None:
    hf = hf_model("Qwen3")
    backend = single(make_settings(make_checkpoint(tmp_path)), trainable=False)
    batch = make_batch([200, 180, 20], [150, 160, 10])
    actual = backend.forward_log_probs(batch, temperature=1.0, max_tokens=1000)
    backend.close()
    for row, count in enumerate([150, 160, 10]):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        with torch.no_grad():
            logits = hf(tokens[None]).logits[0, -count - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, tokens[-count:, None])[:, 0]
        np.testing.assert_allclose(actual.row(row), expected.numpy(), atol=2e-5)

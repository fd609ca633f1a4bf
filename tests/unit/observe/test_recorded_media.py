"""Media of recorded steps come back as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relax_engine.observe.bundle import RecordedStep, read_steps, write_steps
from relax_engine.stream.columns import Column, ColumnBatch


def test_rows_with_and_without_media(tmp_path: Path) -> None:
    media = [{"pixel_values": np.eye(3, dtype=np.float32), "image_grid_thw": np.array([[1, 1, 3]])}, None]
    batch = ColumnBatch(
        {"tokens": Column.ragged([[1, 2], [3]], np.int32), "multimodal_train_inputs": Column.objects(media)}
    )
    template = str(tmp_path / "{rollout_id}.npz")
    write_steps(template, 4, [RecordedStep(batch, {"loss": 1.0}), RecordedStep(batch.select([1]), {"loss": 2.0})])
    first, second = (step.batch["multimodal_train_inputs"].values for step in read_steps(template, 4))
    assert list(second) == [None]
    assert first[1] is None
    assert first[0].keys() == media[0].keys()
    assert all(np.array_equal(first[0][name], array) for name, array in media[0].items())

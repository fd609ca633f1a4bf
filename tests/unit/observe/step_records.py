"""A recorded step of three prompt groups, whose times are known."""

from pathlib import Path
from typing import Any

import numpy as np

from relax_engine.observe.journal import Journal
from relax_engine.observe.rollouts.media import MediaStore
from relax_engine.observe.rollouts.parts import PartTable
from relax_engine.observe.rollouts.tables import samples_table, training_table
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.types import Sample

# started, generated, scored, in the environment: of two samples for each of three groups
TIMES = [
    [(0.0, 1.0, 1.5, 0.0), (0.0, 1.0, 1.5, 0.0)],
    [(0.0, 1.2, 1.5, 0.0), (0.0, 1.1, 1.6, 0.0)],
    [(0.0, 1.0, 1.5, 0.0), (0.0, 9.0, 9.5, 7.5)],
]


def recorded(
    run: Path, times: list[list[tuple[float, float, float, float]]], *, media: Any = None, prompt: Any = "Why?"
) -> None:
    """Step 4: admitted at 99, placed at 110, trained from 111 on in two optimizer steps that end at 112 and 113."""
    samples = [
        Sample(
            group_index=group,
            index=2 * group + i,
            prompt=prompt,
            multimodal_inputs=media,
            tokens=[1, 2],
            response_length=1,
            metadata={"rm_type": "dapo"},
            timings={
                "admitted": 99.0,
                "started": 100 + started,
                "generated": 100 + generated,
                "scored": 100 + scored,
            },
            engine=f"http://engine-{group}:1",
            non_generation_time=environment,
        )
        for group, members in enumerate(times)
        for i, (started, generated, scored, environment) in enumerate(members)
    ]
    count = len(samples)
    ones = np.ones(count, np.int32)
    batch = ColumnBatch(
        {
            "tokens": Column.ragged([s.tokens for s in samples], np.int32),
            "response_lengths": Column.fixed(ones),
            "loss_masks": Column.ragged([[1]] * count, np.uint8),
            "rollout_log_probs": Column.ragged([[-1.0]] * count, np.float32),
            **{name: Column.fixed(ones.astype(np.float32)) for name in ("raw_reward", "rewards")},
            "group_index": Column.fixed([s.group_index for s in samples], np.int64),
            "sample_indices": Column.fixed([s.index for s in samples], np.int64),
            **{name: Column.fixed(ones) for name in ("first_version", "last_version")},
        }
    )
    kept = MediaStore(run / "rollouts" / "media", 10**6)
    PartTable(run / "rollouts" / "samples").append(samples_table(4, samples, batch, 110.0, kept))
    trained = batch.with_columns(advantages=batch["rollout_log_probs"])
    PartTable(run / "rollouts" / "training").append(training_table(4, 5, trained, began=111.0))
    (run / "config.yaml").write_text("agentic: {custom_generate_function_path: envs.maze}\nreward: {rm_type: math}\n")
    phases = [("train", 4, 110.0, 111.5), ("optimizer", 4, 111.5, 112.0), ("optimizer", 4, 112.9, 113.0)]
    phases.append(("train", 5, 113.0, 114.0))
    Journal(run).event({"kind": "phases", "role": "actor", "phases": phases})

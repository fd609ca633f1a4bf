"""A reference that the actor moves, and a reference role that is started again: it holds the one that is current."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_engine.components.reference import MovingReference, load_reference
from relax_engine.components.role import RoleContext
from relax_engine.components.train_group import TrainGroup
from relax_engine.components.trainer import REFERENCE
from relax_engine.core.cluster import ray_cluster as connected
from relax_engine.core.placement import Placement, place
from relax_engine.stream.columns import Column, ColumnBatch

ROWS = ColumnBatch(
    {
        "tokens": Column.ragged([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14]], np.int32),
        "response_lengths": Column.fixed([4, 2], np.int32),
    }
)


@pytest.fixture(scope="module")
def placement(ray_cluster: None) -> Iterator[Placement]:
    with connected(None) as found:
        placement = place({"actor": 1, "reference": 1}, (), found, timeout_s=60)
    yield placement
    placement.release()


@pytest.mark.long
def test_a_reference_started_again_is_the_current_one(placement: Placement, tiny: Any, tmp_path: Path) -> None:
    from examples.tiny_math.make_model import make_model

    config = tiny.config(
        tmp_path,
        fully_async=True,
        use_fault_tolerance=True,
        save=str(tmp_path / "ckpt"),
        use_kl_loss=True,
        kl_loss_coef=0.1,
        ref_update_interval=2,
        resource={"actor": [1, 1], "rollout": [1, 1], "reference": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]},
    )
    slots: Any = placement.slots
    first: Any = RoleContext(
        config=config,
        slots=(),
        stream=None,
        run_dir=str(tmp_path),
        start_step=0,
        num_steps=9,  # type: ignore[arg-type]
    )
    again = replace(first, restarts=1)
    stale = tmp_path / "reference" / "iter_0000008"
    stale.mkdir(parents=True)
    actor = TrainGroup(config, slots["actor"], role="actor", trainable=True, timeout_s=90)
    role = TrainGroup(config, slots["reference"], role="reference", trainable=False, timeout_s=90)

    def log_probs(group: TrainGroup, weights: str | None = None) -> np.ndarray:
        return group.forward_log_probs(ROWS, temperature=1.0, max_tokens=1000, weights=weights).values

    try:
        moving = MovingReference(first, actor)
        assert moving.load()
        assert not stale.exists()  # of an earlier run in this directory
        load_reference(role, again)
        initial = log_probs(role)
        assert np.array_equal(initial, log_probs(actor, REFERENCE))

        for version in (2, 4):
            actor.load_hf(str(make_model(tmp_path / f"model{version}", seed=version)))
            moving.move(version)
        actor.load_hf(str(make_model(tmp_path / "ahead", seed=5)))
        load_reference(role, again)
        current = log_probs(role)
        assert np.array_equal(current, log_probs(actor, REFERENCE))
        assert not np.allclose(current, initial)
        assert not np.allclose(current, log_probs(actor))
        load_reference(role, first)
        assert np.array_equal(log_probs(role), initial)

        # An actor that is started again behind version 4 has to send it once more; one that starts a run has not.
        behind = MovingReference(replace(again, start_step=4), actor)
        assert (behind.moved_at(4), behind.moved_at(5), behind.moved_at(6)) == (True, False, True)
        assert not MovingReference(replace(first, start_step=4), actor).moved_at(4)

        # A checkpoint keeps it for a run that moves it no more, and that run for its reference role.
        (tmp_path / "saved").mkdir()
        moving.save(tmp_path / "saved")
        settled = replace(
            first,
            config=config.replace(ref_update_interval=None),
            resume_from=str(tmp_path / "saved"),
            run_dir=str(tmp_path / "next"),
        )
        assert MovingReference(settled, actor).load()
        load_reference(role, replace(settled, restarts=1, resume_from=None))
        assert np.array_equal(log_probs(role), current)
    finally:
        actor.close()
        role.close()

"""`relax reproduce`: a run from its own record, to the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.reproduce import reproduce
from relax_engine.core.train import train


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_repeats_itself_from_its_record(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    train(tiny.config(tmp_path / "run", num_rollout=2, save=str(tmp_path / "saved"), deterministic=True))
    found = reproduce(tmp_path / "run", tmp_path / "again")
    assert found.identical
    assert found.deterministic
    assert found.environment == []
    assert [agreement.steps for agreement in found.agreements] == [2, 2, 2]
    assert (tmp_path / "again/checkpoints").is_dir()

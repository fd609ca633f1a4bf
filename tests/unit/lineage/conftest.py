from pathlib import Path

import pytest

from relax_engine.lineage import ArtifactStore


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore.open(str(tmp_path / "store"))

"""Content-addressed artifacts and what they were made from.

``ArtifactStore`` is the whole interface; ``Artifact`` is what it hands out. Imports nothing heavy.
"""

from relax_engine.lineage.manifest import Artifact, FileEntry, ParentLink
from relax_engine.lineage.store import ArtifactStore

__all__ = ["Artifact", "ArtifactStore", "FileEntry", "ParentLink"]

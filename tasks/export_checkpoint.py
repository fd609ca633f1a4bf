"""Export of a trained checkpoint to a Hugging Face model."""

from __future__ import annotations

from flytekit import task

from tasks import decks, html
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, MEDIUM, SHORT
from tasks.store import fetch, publish, work_directory
from tasks.types import ArtifactRef, TrainingOutcome


@task(cache=CACHE, requests=MEDIUM, timeout=SHORT, **EVERY_TASK)
def export_checkpoint(outcome: TrainingOutcome, origin: ArtifactRef, pipeline: str) -> ArtifactRef:
    """Convert the checkpoint to Hugging Face, with tokenizer and config of `origin`; publishes `<pipeline>-model`.

    Raises:
        DamagedCheckpointError: a tensor is missing or does not fit the origin's config.
    """
    with executed("export_checkpoint"), work_directory("export", checkpoint=outcome.checkpoint, origin=origin) as work:
        from relax_engine import export_checkpoint as convert

        result = convert(fetch(outcome.checkpoint), work / "hf", origin_hf_dir=fetch(origin), force=True)
        parents = [outcome.checkpoint, origin]
        artifact = publish(result.path, kind="model", name=f"{pipeline}-model", parents=parents)
        figures = {"tensors": result.num_tensors, "shards": result.num_shards, "bytes": result.nbytes}
        decks.show(f"Export of {outcome.checkpoint.ref}", html.figures(figures), html.lineage(artifact, parents))
        return artifact

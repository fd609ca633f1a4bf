"""Published models in MLflow's model registry, for whoever deploys from there. The artifact store stays the truth."""

from __future__ import annotations

from pathlib import Path

from relax_engine.lineage import Artifact, ArtifactStore
from relax_engine.observe.trackers.mlflow import mlflow_client


def register(store: ArtifactStore, artifact: Artifact) -> str:
    """Make a model a version of the registered model of its name, once; returns that version's number in MLflow.

    Its tags say which artifact it is (`relax.ref`, `relax.sha256`, the commit), its source where its files are, and its
    aliases are those that point to it in the store. Metrics become tags.

    Raises:
        ConfigError: MLflow is not installed.
        ValueError: the artifact is no model.
    """
    if artifact.kind != "model":
        raise ValueError(f"{artifact.ref} is a {artifact.kind}; a model registry takes models")
    client = mlflow_client(Path("mlruns"))
    if not client.search_registered_models(f"name = '{artifact.name}'"):
        client.create_registered_model(artifact.name)
    known = client.search_model_versions(f"name = '{artifact.name}'")
    number = next((version.version for version in known if version.tags.get("relax.ref") == artifact.ref), None)
    if number is None:
        tags = {"relax.ref": artifact.ref, "relax.sha256": artifact.digest, "relax.store": store.url}
        tags["relax.git_commit"] = str(artifact.producer.get("git_commit"))
        tags |= {f"relax.metric.{key}": repr(value) for key, value in artifact.metrics.items()}
        number = client.create_model_version(artifact.name, str(store.fetch(artifact)), tags=tags).version
    for alias, version in store.aliases(artifact.name).items():
        if version == artifact.version and alias != "latest":  # MLflow keeps that name for itself
            client.set_registered_model_alias(artifact.name, alias, number)
    return str(number)

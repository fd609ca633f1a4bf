"""Publications as OpenLineage events, for catalogues that collect lineage (Marquez, DataHub and others).

An artifact is a dataset, the work that made it a finished run of the job with its name. The event follows from the
manifest, so it can be written again; it is kept beside the manifests and never read by the store.
Fields and facets: https://openlineage.io/spec/2-0-2/OpenLineage.json and the schemas named below.
"""

from __future__ import annotations

import uuid
from typing import Any

from relax_engine.lineage.manifest import Artifact, ParentLink

PRODUCER = "urn:relax-engine"
_SPEC = "https://openlineage.io/spec"
_EVENT_SCHEMA = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_SCHEMAS = {
    "version": "1-0-1/DatasetVersionDatasetFacet",
    "tags": "1-0-0/TagsDatasetFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet",
    "jobType": "2-0-4/JobTypeJobFacet",
    "run tags": "1-0-0/TagsRunFacet",
}


def event_key(record: str) -> str:
    """Where the event of the manifest `record` is kept."""
    return f"events/{record}.json"


def publication_event(artifact: Artifact, store_url: str) -> dict[str, Any]:
    """The COMPLETE event of the work that published `artifact`; datasets have the store's URL as their namespace."""
    producer = artifact.producer
    made_by = {key: producer.get(key) for key in ("git_commit", "git_dirty", "config_digest", "packages_digest")}
    return {
        "eventTime": artifact.created_at,
        "eventType": "COMPLETE",
        "producer": PRODUCER,
        "schemaURL": _EVENT_SCHEMA,
        "run": {
            "runId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{store_url}/{artifact.record}")),
            "facets": {"tags": _facet("run tags", tags=_tags(made_by))},
        },
        "job": {
            "namespace": store_url,
            "name": artifact.name,
            "facets": {
                "jobType": _facet("jobType", processingType="BATCH", integration="RELAX", jobType=artifact.kind)
            },
        },
        "inputs": [_input(link, store_url) for link in artifact.parents],
        "outputs": [
            {
                "namespace": store_url,
                "name": artifact.name,
                "facets": {
                    "version": _facet("version", datasetVersion=f"v{artifact.version}"),
                    "tags": _facet("tags", tags=_tags({"kind": artifact.kind, "sha256": artifact.digest})),
                },
                "outputFacets": {
                    "outputStatistics": _facet("outputStatistics", size=artifact.size, fileCount=len(artifact.files))
                },
            }
        ],
    }


def _input(link: ParentLink, store_url: str) -> dict[str, Any]:
    name, _, version = link.ref.partition("@")
    facets = {
        "version": _facet("version", datasetVersion=version),
        "tags": _facet("tags", tags=_tags({"sha256": link.digest})),
    }
    return {"namespace": store_url, "name": name, "facets": facets}


def _facet(name: str, **values: Any) -> dict[str, Any]:
    schema = _SCHEMAS[name]
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{schema}.json#/$defs/{schema[6:]}", **values}


def _tags(values: dict[str, Any]) -> list[dict[str, str]]:
    return [{"key": key, "value": str(value)} for key, value in values.items() if value is not None]

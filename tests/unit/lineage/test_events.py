"""OpenLineage events, built again from the classes of OpenLineage's own client: the same JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    job_type_job,
    output_statistics_output_dataset,
    tags_dataset,
    tags_run,
)
from openlineage.client.generated.base import EventType
from openlineage.client.serde import Serde

from relax_engine.cli.lineage import main
from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.events import PRODUCER, publication_event


def publish_two(store: ArtifactStore, tmp_path: Path) -> None:
    for name, kind, parents in (("raw", "dataset", []), ("tiny", "model", ["raw"])):
        (tmp_path / name).write_text(name)
        store.publish(tmp_path / name, kind=kind, name=name, parents=parents)


def test_an_event_is_what_the_clients_own_classes_say(store: ArtifactStore, tmp_path: Path) -> None:
    publish_two(store, tmp_path)
    model, raw = store.resolve("tiny"), store.resolve("raw")
    event = publication_event(model, store.url)

    def tags(**values: str) -> tags_dataset.TagsDatasetFacet:
        fields = [tags_dataset.TagsDatasetFacetFields(key, value) for key, value in values.items()]
        return tags_dataset.TagsDatasetFacet(fields, producer=PRODUCER)

    def version(number: str) -> dataset_version_dataset.DatasetVersionDatasetFacet:
        return dataset_version_dataset.DatasetVersionDatasetFacet(number, producer=PRODUCER)

    known = {key: str(value) for key, value in model.producer.items() if key != "host" and value is not None}
    run_tags = [tags_run.TagsRunFacetFields(key, value) for key, value in known.items()]
    expected = RunEvent(
        eventTime=model.created_at,
        eventType=EventType.COMPLETE,
        producer=PRODUCER,
        run=Run(event["run"]["runId"], {"tags": tags_run.TagsRunFacet(run_tags, producer=PRODUCER)}),
        job=Job(
            store.url,
            "tiny",
            {"jobType": job_type_job.JobTypeJobFacet("BATCH", "RELAX", jobType="model", producer=PRODUCER)},
        ),
        inputs=[InputDataset(store.url, "raw", facets={"version": version("v1"), "tags": tags(sha256=raw.digest)})],
        outputs=[
            OutputDataset(
                store.url,
                "tiny",
                facets={"version": version("v1"), "tags": tags(kind="model", sha256=model.digest)},
                outputFacets={
                    "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                        size=4, fileCount=1, producer=PRODUCER
                    )
                },
            )
        ],
    )
    said = json.loads(Serde.to_json(expected))
    assert said["inputs"][0].pop("inputFacets") == {}
    assert event == said


def test_every_publication_leaves_its_event_once(
    store: ArtifactStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_two(store, tmp_path)
    publish_two(store, tmp_path)
    kept = [json.loads(path.read_text()) for path in (tmp_path / "store" / "events").iterdir()]
    assert main(["events", "--store", store.url]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(event["job"]["name"] for event in kept) == ["raw", "tiny"]
    assert sorted(kept, key=lambda event: event["job"]["name"]) == printed

"""The supervised warm start: an ordinary training run with `--loss-type sft`, exported to Hugging Face."""

from __future__ import annotations

from flytekit import task

from relax_engine.utils.svg import line_chart
from tasks import decks, html
from tasks.configs import supervised_config
from tasks.content import ConfigFile, config_key
from tasks.executions import executed
from tasks.settings import TRAINING
from tasks.store import fetch, publish, published_before, work_directory
from tasks.types import ArtifactRef, SupervisedOptions


@task(**TRAINING)
def warm_start(
    model: ArtifactRef,
    dataset: ArtifactRef,
    config: ConfigFile,
    options: SupervisedOptions,
    seed: int,
    pipeline: str,
) -> ArtifactRef:
    """Train `model` on the labels of `dataset` as answers and publish the model as `<pipeline>-warm-start`.

    Raises:
        ConfigError: the configuration cannot run.
        RelaxError: a role failed; the next attempt resumes.
    """
    inputs = {"model": model, "dataset": dataset, "config": config_key(config), "options": options}
    name = f"{pipeline}-warm-start"
    with executed("warm_start"), work_directory("warm_start", **inputs, seed=seed) as work:
        from relax_engine import export_checkpoint, train

        earlier = published_before(name, work)
        if earlier is not None:
            decks.show(f"Warm start of {name}", html.text("an earlier attempt finished it"), html.lineage(earlier, []))
            return earlier
        origin = fetch(model)
        run = supervised_config(config, options, model=origin, dataset=fetch(dataset), work=work, seed=seed)
        result = train(run)
        exported = export_checkpoint(str(result.checkpoint_dir), work / "hf", origin_hf_dir=origin, force=True)
        artifact = publish(
            exported.path,
            kind="model",
            name=name,
            parents=[model, dataset],
            metrics={"loss": result.losses[-1], "steps": result.steps},
            config_digest=run.digest(),
            work=work,
        )
        decks.show(
            f"Warm start of {name}",
            html.figures({"steps": result.steps, "last loss": result.losses[-1], "seconds": result.wall_seconds}),
            html.figure("loss by step", line_chart("loss by step", {"loss": result.losses})),
            html.lineage(artifact, [model, dataset]),
        )
        return artifact

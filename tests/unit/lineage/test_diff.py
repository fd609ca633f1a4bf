from pathlib import Path

from relax_engine.cli.lineage import main
from relax_engine.lineage import ArtifactStore


def publish(store: ArtifactStore, folder: Path, files: dict[str, str], **options: object):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return store.publish(folder, **options)


def runs(store: ArtifactStore, tmp_path: Path) -> None:
    """Two runs from two versions of one dataset and one model."""
    for rows in ("1", "2"):
        publish(store, tmp_path / f"d{rows}", {"rows": rows}, kind="dataset", name="prompts")
    publish(store, tmp_path / "m", {"weights": "w"}, kind="model", name="base")
    for number, seed in ((1, 7), (2, 8)):
        publish(
            store,
            tmp_path / f"r{number}",
            {"config.yaml": f"seed: {seed}", "shared": "same"},
            kind="run",
            name="run",
            parents=[f"prompts@v{number}", "base@v1"],
            metrics={"reward": number / 4, "steps": 10},
            config_digest=f"c{number}",
            metadata={"config": {"seed": seed, "lr": 0.1}},
        )


def test_only_differences_are_named_on_every_level(store: ArtifactStore, tmp_path: Path):
    runs(store, tmp_path)
    diff = store.diff("run@v1", "run@v2")
    assert list(diff.files) == ["config.yaml"]
    assert diff.metrics == {"reward": (0.25, 0.5)}
    assert diff.metadata == {"config.seed": (7, 8)}
    assert diff.producer == {"config_digest": ("c1", "c2")}
    assert list(diff.ancestors) == ["dataset prompts"]
    left, right = diff.ancestors["dataset prompts"]
    assert (left[:10], right[:10]) == ("prompts@v1", "prompts@v2")
    assert not diff.same_content


def test_an_artifact_does_not_differ_from_itself(store: ArtifactStore, tmp_path: Path):
    runs(store, tmp_path)
    diff = store.diff("run@v1", "run@v1")
    assert diff.same_content
    assert [diff.metrics, diff.metadata, diff.producer, diff.ancestors] == [{}, {}, {}, {}]


def test_what_one_side_lacks_is_none(store: ArtifactStore, tmp_path: Path):
    runs(store, tmp_path)
    diff = store.diff("base@v1", "run@v1")
    assert diff.files["weights"][1] is None
    assert diff.files["shared"][0] is None
    assert diff.metrics["steps"] == (None, 10.0)


def test_the_commands_print_differences_and_history(store: ArtifactStore, tmp_path: Path, capsys):
    runs(store, tmp_path)
    store.tag("run", "production", "run@v1")
    assert main(["diff", "run@v1", "run@v2", "--store", store.url]) == 0
    printed = capsys.readouterr().out
    assert "config.seed" in printed
    assert "prompts@v2" in printed
    assert main(["log", "run", "--store", store.url]) == 0
    newest, oldest, move = capsys.readouterr().out.splitlines()
    assert move.endswith("production -> v1")
    assert "run@v2" in newest
    assert "latest" in newest
    assert "run@v1" in oldest
    assert "production" in oldest
    assert main(["gc", "--store", store.url, "--dry-run"]) == 0
    assert "0 objects would be removed" in capsys.readouterr().out

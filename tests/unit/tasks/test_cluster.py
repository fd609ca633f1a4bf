"""The cluster's file: defaults, what becomes of it, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_engine.errors import ConfigError
from tasks.cluster import VARIABLE, Cluster, read_cluster

DIGEST = "sha256:" + "0" * 64


def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(text)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cluster.yaml"))
    return read_cluster.__wrapped__()


def test_without_a_file_tasks_ask_for_processors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    cluster = read_cluster.__wrapped__()
    assert (cluster.workers.resources().gpu, cluster.accelerated()) == (None, {})
    assert cluster.options() == {"environment": {}}


def test_an_image_is_built_on_a_digest_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"image: {{registry: ghcr.io/acme, base: 'nvidia/cuda:13@{DIGEST}'}}"
    spec = read(tmp_path, monkeypatch, text).options()["container_image"]
    assert (spec.registry, spec.base_image) == ("ghcr.io/acme", f"nvidia/cuda:13@{DIGEST}")
    assert Path(spec.requirements).name == "requirements.lock"
    assert Path(spec.requirements).is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image: {registry: ghcr.io/acme, base: 'python:3.11'}", "image.base"),
        ("workers: {gpu: 8}", "workers.gpu"),
        ("workers: {gpus: -1}", "workers.gpus"),
        ("[", "cluster.yaml"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, monkeypatch, text)

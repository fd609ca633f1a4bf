import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relax_engine.cli.lineage import main
from relax_engine.lineage import ArtifactStore


@pytest.fixture
def chain(store: ArtifactStore, tmp_path: Path) -> ArtifactStore:
    def publish(name: str, kind: str, parents: list[str], **metrics: float) -> None:
        path = tmp_path / f"{name}.bin"
        path.write_text(name)
        store.publish(path, kind=kind, name=name, parents=parents, metrics=metrics)

    publish("raw", "dataset", [], rows=5500)
    publish("prompts", "dataset", ["raw"], rows=5000)
    publish("warm", "checkpoint", [])
    publish("trained", "checkpoint", ["warm", "prompts"], reward=0.75)
    publish("tiny", "model", ["trained", "warm"])
    return store


def run(store: ArtifactStore, *arguments: str) -> int:
    return main([*arguments, "--store", store.url])


def test_show_prints_the_chain_from_model_to_raw_dataset(chain: ArtifactStore, capsys: pytest.CaptureFixture[str]):
    assert run(chain, "show", "tiny") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("@v1")[0] for line in lines] == [
        "model tiny",
        "├── checkpoint trained",
        "│   ├── checkpoint warm",
        "│   └── dataset prompts",
        "│       └── dataset raw",
        "└── checkpoint warm",
    ]
    assert lines[5].endswith("(above)")
    assert "reward=0.75" in lines[1]
    assert lines[4].endswith("rows=5500")
    assert chain.resolve("raw").short_digest in lines[4]


def test_json_carries_whole_manifests(chain: ArtifactStore, capsys: pytest.CaptureFixture[str]):
    assert run(chain, "show", "tiny", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ref"] == "tiny@v1"
    assert shown["files"][0]["path"] == "tiny.bin"
    assert [a["ref"] for a in shown["ancestors"]] == ["trained@v1", "warm@v1", "prompts@v1", "raw@v1"]


def test_list_walks_tag_and_which(chain: ArtifactStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(chain, "tag", "tiny", "production", "tiny@v1") == 0
    assert "tiny@production -> tiny@v1" in capsys.readouterr().out
    assert run(chain, "list", "--kind", "model", "--json") == 0
    assert [(r["ref"], r["aliases"]) for r in json.loads(capsys.readouterr().out)] == [
        ("tiny@v1", {"production": 1, "latest": 1})
    ]
    assert run(chain, "list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert run(chain, "descendants", "raw", "--json") == 0
    assert [a["ref"] for a in json.loads(capsys.readouterr().out)] == ["prompts@v1", "trained@v1", "tiny@v1"]
    assert run(chain, "ancestors", "prompts") == 0
    assert capsys.readouterr().out.startswith("dataset raw@v1")
    assert run(chain, "which", str(tmp_path / "trained.bin")) == 0
    assert capsys.readouterr().out.startswith("checkpoint trained@v1")


def test_a_copied_file_names_run_rows_commit_and_parent_and_a_flipped_byte_is_reported(
    store: ArtifactStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    parents: list[str] = []
    for name, kind in (("rows", "dataset"), ("start", "checkpoint"), ("run", "run"), ("trained", "checkpoint")):
        (tmp_path / name).write_text(name)
        store.publish(tmp_path / name, kind=kind, name=name, parents=parents)
        parents = ["rows", "start"] if name == "start" else [] if name == "rows" else [name]
    exported = tmp_path / "hf"
    exported.mkdir()
    (exported / "model.safetensors").write_bytes(bytes(1000))
    (exported / "config.json").write_text("{}")
    store.publish(exported, kind="model", name="tiny", parents=["trained"])
    stray = tmp_path / "elsewhere.safetensors"
    stray.write_bytes(bytes(1000))

    assert run(store, "which", str(stray)) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.strip("│├└─ ").split() for line in lines]
    assert [word[:2] for word in words] == [
        ["model", "tiny@v1"],
        ["checkpoint", "trained@v1"],
        ["run", "run@v1"],
        ["dataset", "rows@v1"],
        ["checkpoint", "start@v1"],
    ]
    for word in words:
        artifact = store.resolve(word[1])
        assert word[2] == artifact.short_digest
        assert word[4].startswith((artifact.producer["git_commit"] or "code unknown")[:4])

    blob = tmp_path / "store" / "blobs" / (entry := store.resolve("tiny").files[1].sha256)[:2] / entry
    content = bytearray(blob.read_bytes())
    content[500] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(content)
    assert run(store, "verify", "tiny") == 1
    assert capsys.readouterr().out.startswith("tiny@v1: model.safetensors: stored bytes hash to")
    stray.write_bytes(content)
    assert run(store, "which", str(stray)) == 1


def test_the_graph_as_text_runs_from_the_first_ancestors_to_the_last_descendants(
    chain: ArtifactStore, capsys: pytest.CaptureFixture[str]
):
    assert run(chain, "graph", "trained", "--text") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("@v1")[0] for line in lines] == [
        "dataset raw",
        "└── dataset prompts",
        "    └── checkpoint trained",
        "        └── model tiny",
        "checkpoint warm",
        "├── checkpoint trained",
        "└── model tiny",
    ]
    assert lines[2].endswith("<-")
    assert [line.endswith("(above)") for line in lines[5:]] == [False, True]
    assert "(above) <-" in lines[5]


def test_rollback_moves_production_back_and_the_log_tells(chain: ArtifactStore, tmp_path: Path, capsys):
    (tmp_path / "better.bin").write_text("better")
    chain.publish(tmp_path / "better.bin", kind="model", name="tiny")
    for version in ("tiny@v1", "tiny@v2"):
        assert run(chain, "tag", "tiny", "production", version) == 0
    capsys.readouterr()
    assert run(chain, "rollback", "tiny") == 0
    assert capsys.readouterr().out.startswith("tiny@production -> tiny@v1")
    assert run(chain, "log", "tiny") == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("production -> v1  (back)")
    assert run(chain, "rollback", "tiny") == 1
    assert "cannot go back" in capsys.readouterr().err


def test_failures_exit_non_zero_with_the_reason(
    chain: ArtifactStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(chain, "show", "tiyn") == 1
    assert "did you mean tiny" in capsys.readouterr().err
    (blob,) = (b for b in (tmp_path / "store/blobs").glob("*/*") if b.read_bytes() == b"tiny")
    blob.chmod(0o644)
    blob.write_text("tinY")
    assert run(chain, "verify", "tiny") == 1
    assert "tiny.bin: stored bytes hash to" in capsys.readouterr().out
    assert run(chain, "verify", "raw") == 0
    assert main(["list", "--store", str(tmp_path / "nowhere")]) == 1
    assert "no artifact store at" in capsys.readouterr().err


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom relax_engine.cli.lineage import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'pandas', 'fsspec')))"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "descendants" in done.stdout
    assert time.monotonic() - start < 1.0


def test_graph_draws_every_relative_once_and_escapes_what_names_hold(store: ArtifactStore, tmp_path: Path, capsys):
    for name, text in (("raw", "rows"), ("base", "weights")):
        (tmp_path / name).write_text(text)
        store.publish(tmp_path / name, kind="dataset", name=name)
    (tmp_path / "run").write_text("log")
    run = store.publish(tmp_path / "run", kind="run", name="run", parents=["raw", "base"], metrics={"<b>": 0.5})
    (tmp_path / "model").write_text("export")
    store.publish(tmp_path / "model", kind="model", name="tiny", parents=[run])
    page = tmp_path / "graph.html"
    assert main(["graph", "run", "--store", store.url, "--output", str(page)]) == 0
    assert "run@v1 and 3 relatives drawn" in capsys.readouterr().out
    text = page.read_text()
    assert [text.count(f">{ref}</text>") for ref in ("raw@v1", "base@v1", "run@v1", "tiny@v1")] == [1, 1, 1, 1]
    assert text.count("<path") == 3
    assert "&lt;b&gt;=0.5" in text
    assert "<b>" not in text
    assert "http" not in text

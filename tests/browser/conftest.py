"""A run directory that looks as a run leaves it, written by the run's own parts, and a dashboard over it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from examples.tiny_math.make_model import build_tokenizer
from relax_engine.lineage import ArtifactStore
from relax_engine.observe.journal import Journal
from relax_engine.observe.metrics import MetricsLog
from relax_engine.observe.rollouts.media import MediaStore
from relax_engine.observe.rollouts.parts import PartTable
from relax_engine.observe.rollouts.tables import samples_table, training_table
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.types import Sample, SampleStatus, WeightVersionSpan

TOKENIZER = build_tokenizer()
HOSTILE = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'> & <b>bold</b>"
TOKEN = "the-right-token"
STEPS, PER_STEP = 40, 16
expect.set_options(timeout=20_000)  # of a busy machine
WITH_MEDIA = 50
"""Index of the sample that carries a picture of 12 by 9 pixels and a second of sound."""
SEEN_AND_HEARD = {
    "image": [np.arange(12 * 9 * 3, dtype=np.uint16).astype(np.uint8).reshape(9, 12, 3), "https://example.org/no.png"],
    "audio": [(np.sin(np.arange(8000) / 5).astype(np.float32), 8000)],
}


@dataclass
class Recorded:
    """A run that goes on for as long as the test adds to it."""

    directory: Path
    metrics: MetricsLog
    journal: Journal
    media: MediaStore
    step: int = 0

    def add_step(self) -> None:
        """One more step of samples, metrics, phases and state."""
        step, self.step = self.step, self.step + 1
        rng = np.random.default_rng(step)
        samples, batch = _samples(step, rng)
        for name, table in (
            ("samples", samples_table(step, samples, batch, 1e9 + step + 1.0, self.media)),
            ("training", training_table(step, step + 1, batch, began=1e9 + step + 0.7)),
        ):
            PartTable(self.directory / "rollouts" / name).append(table)
        start = 1e9 + step
        phases = {
            "rollout": [("generate", step, start, start + 0.6), ("reward", step, start + 0.6, start + 0.7)],
            "actor": [("train", step, start + 0.7, start + 0.9), ("weight_sync", step, start + 0.9, start + 1.0)],
        }
        for role, done in phases.items():
            self.journal.event({"kind": "phases", "role": role, "phases": done})
        self.metrics.write(
            step,
            {
                "rollout/raw_reward": 0.2 + step / 80 + float(rng.normal(0, 0.02)),
                "rollout/response_len/mean": 40.0 + step,
                "rollout/response_len/max": 90.0,
                "train/loss": 1.0 / (step + 1),
                "train/ppo_kl": 0.01 * float(rng.random()),
                "train/entropy_loss": 2.0 - step / 40,
                "train/grad_norm": 0.5 + float(rng.random()),
                "perf/step_time": 1.0 + 0.1 * float(rng.random()),
                "perf/wait_time": 0.1,
                "perf/wait_time_ratio": 0.1,
                "weight_sync/bytes": 3286528.0,
                "perf/tokens_per_gpu_per_sec": 1200.0 + 5 * step,
                "rollout/staleness/count/0": 4.0,
                "rollout/staleness/count/1": 12.0,
                "rollout/staleness/max": 1.0,
                "stream/in_flight": 16.0,
                "stream/weight_version": step + 1.0,
            },
        )
        self.journal.state(
            {
                "status": "running",
                "num_steps": 100,
                "stream": {},
                "engines": [
                    {"url": f"http://127.0.0.1:3100{i}", "origin": "initial", "outstanding": 8, "version": step + 1}
                    for i in range(2)
                ],
                "roles": {"actor": {"step": step, "waiting": [], "restarts": 0, "seconds_since_progress": 0.1}},
            }
        )


def _samples(step: int, rng: np.random.Generator) -> tuple[list[Sample], ColumnBatch]:
    index = np.arange(step * PER_STEP, (step + 1) * PER_STEP, dtype=np.int64)
    rewards = rng.integers(0, 2, PER_STEP).astype(np.float32)
    texts = [f"The answer is {int(rng.integers(100))}." for _ in index]
    if step == 3:
        texts[5] = HOSTILE
    words = [TOKENIZER.encode(text) for text in texts]
    lengths = np.array([len(tokens) for tokens in words], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = [[*TOKENIZER.encode(f"Question {i // 4}?"), *answer] for i, answer in zip(index, words, strict=True)]
    samples = [
        Sample(
            group_index=int(i) // 4,
            index=int(i),
            prompt=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Question {i // 4}?"}],
            response=text,
            response_length=int(length),
            reward={"score": float(reward), "format": 1.0},
            label="42",
            multimodal_inputs=SEEN_AND_HEARD if i == WITH_MEDIA else None,
            weight_versions=[WeightVersionSpan(step, 0, int(length))],
            status=SampleStatus.TRUNCATED if length > 18 else SampleStatus.COMPLETED,
            engine=f"http://127.0.0.1:3100{i % 2}",
            timings={"started": 1e9 + step, "generated": 1e9 + step + 0.6, "scored": 1e9 + step + 0.7},
        )
        for i, text, length, reward in zip(index, texts, lengths, rewards, strict=True)
    ]
    log_probs = -np.abs(rng.normal(0, 1.2, int(offsets[-1]))).astype(np.float32)
    masks = np.ones(len(log_probs), np.uint8)
    masks[offsets[1:] - 1] = 0
    columns = {
        "tokens": Column.ragged(tokens, np.int32),
        "response_lengths": Column.fixed(lengths),
        "loss_masks": Column(masks, offsets),
        "rollout_log_probs": Column(log_probs, offsets),
        "raw_reward": Column.fixed(rewards),
        "rewards": Column.fixed(rewards - 0.5),
        "group_index": Column.fixed(index // 4),
        "sample_indices": Column.fixed(index),
        "first_version": Column.fixed(np.full(PER_STEP, step, np.int32)),
        "last_version": Column.fixed(np.full(PER_STEP, step, np.int32)),
        "advantages": Column(
            np.repeat(rewards - 0.5, lengths) * rng.random(len(log_probs)).astype(np.float32), offsets
        ),
        "log_probs": Column(log_probs - np.float32(0.05), offsets),
    }
    return samples, ColumnBatch(columns)


def record(directory: Path, **config: Any) -> Recorded:
    """An empty run of this configuration."""
    directory.mkdir(parents=True)
    values = {"experiment_name": directory.name, "advantage_estimator": "grpo", "lr": 1e-6, "seed": 4, **config}
    (directory / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in values.items()))
    media = MediaStore(directory / "rollouts" / "media", 10**6)
    return Recorded(directory, MetricsLog(directory / "metrics.jsonl"), Journal(directory), media)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, another one with another learning rate, and an artifact store."""
    root = tmp_path_factory.mktemp("dashboard")
    TOKENIZER.save_pretrained(root / "tokenizer")
    for name, changes in (("first", {}), ("second", {"lr": 1e-5})):
        run = record(root / "runs" / name, hf_checkpoint=root / "tokenizer", **changes)
        for _ in range(STEPS):
            run.add_step()
        gone = {"kind": "engine_quarantined", "role": "rollout", "engine": "http://127.0.0.1:31001"}
        run.journal.event({**gone, "reason": HOSTILE})
        away = {"step": 0, "time": 1e9 + 9, "kind": "gap", "start": 1e9 + 5, "end": 1e9 + 9, "reason": "no service"}
        (run.directory / "metrics_service.jsonl").write_text(json.dumps(away) + "\n")
        run.journal.state({"status": "finished", "num_steps": STEPS})
    store = ArtifactStore.open(str(root / "store"))
    (root / "files").mkdir()
    for name in ("prompts", "checkpoint", "model"):
        (root / "files" / name).write_text(name)
    dataset = store.publish(root / "files" / "prompts", kind="dataset", name="math-prompts")
    start = store.publish(root / "files" / "checkpoint", kind="checkpoint", name="base")
    trained = store.publish(root / "runs" / "first", kind="run", name="math-run", parents=[dataset, start])
    figures = {"accuracy": 0.75}
    store.publish(root / "files" / "model", kind="model", name="math-model", parents=[trained], metrics=figures)
    return root


@contextlib.contextmanager
def serving(root: Path, port: int = 0) -> Iterator[str]:
    """The address of a dashboard, as `relax ui` starts it, without its `#token=...`."""
    token = root / "token"
    token.write_text(TOKEN)
    command = [Path(sys.executable).parent / "relax", "ui", root / "runs", "--store", root / "store"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--token-file", token], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    try:
        printed = process.stdout.readline().strip()
        assert printed.endswith(f"#token={TOKEN}"), printed
        yield printed.partition("#")[0]
    finally:
        process.kill()
        process.wait(20)


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with serving(root) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield opened
        opened.close()


@dataclass
class Watched:
    """A page, every request that it made, and every error that it had."""

    page: Page
    requests: list[str]
    errors: list[str]


@pytest.fixture
def watched(browser: Browser, address: str) -> Iterator[Watched]:
    """A page that has the token, on the finished run; nothing on it may fail or reach another host."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(20_000)
    seen = Watched(page, [], [])
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{address}#token={TOKEN}")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_label("Run", exact=True).select_option("first")
    expect(page).to_have_title("Overview – first")  # which a page gets when it is drawn
    yield seen
    context.close()
    assert seen.errors == []
    assert [url for url in seen.requests if not url.startswith((address, f"blob:{address}", "data:"))] == []

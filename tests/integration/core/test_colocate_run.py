"""One colocate run on a real cluster: what it computes, and what can be seen of it meanwhile."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from relax_engine.checkpoint import export_checkpoint
from relax_engine.checkpoint.manager import CheckpointManager, read_marker
from relax_engine.config import RunConfig
from relax_engine.core.result import RunResult
from relax_engine.core.train import train
from relax_engine.observe.definitions import definition
from relax_engine.observe.journal import read_phases, read_state
from relax_engine.observe.metrics import read_metrics
from relax_engine.observe.rollouts.query import Rollouts
from tests.integration.otlp_collector import Collector

STEPS, SAMPLES = 3, 16
SERVED = "/metrics/query_metrics?metric=train/*"


def http_address() -> str | None:
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    return None if client is None else f"http://127.0.0.1:{client.http_config.port}"


def watch(paths: list[str], token: Path, seen: dict[str, list[Any]], done: threading.Event) -> None:
    """Ask for every path until the run is over, with the token and without."""
    while not done.is_set():
        address = http_address()
        for path in paths if address and token.exists() else ():
            for key, headers in (
                (path, {"Authorization": f"Bearer {token.read_text().strip()}"}),
                (f"open {path}", {}),
            ):
                try:
                    with urllib.request.urlopen(
                        urllib.request.Request(f"{address}{path}", headers=headers), timeout=5
                    ) as answer:
                        seen.setdefault(key, []).append(json.load(answer))
                except urllib.error.HTTPError as error:
                    if error.code == 401:
                        seen.setdefault(key, []).append(error.code)
                except (urllib.error.URLError, TimeoutError, ConnectionError):
                    continue
        time.sleep(0.1)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("colocate")


@pytest.fixture(scope="module")
def seen() -> dict[str, list[Any]]:
    return {}


def _hook(run_dir: Path) -> Path:
    file = run_dir / "upload.py"
    file.write_text(
        "async def uploaded(args, hf_path, rollout_id, *, dtype, is_lora):\n"
        "    with open(args.run_dir + '/uploads', 'a') as log:\n"
        "        log.write(f'{rollout_id} {hf_path} {dtype} {is_lora}\\n')\n"
    )
    return file


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def result(ray_cluster: None, tiny: Any, run_dir: Path, seen: dict[str, list[Any]], collector: Collector) -> RunResult:
    """KL against the reference and several micro-batches, so that every column is made."""
    config = tiny.config(
        run_dir,
        save=str(run_dir / "ckpt"),
        save_interval=2,
        async_save=True,
        save_hf=str(run_dir / "hf/iter_{rollout_id}"),
        save_hf_post_hook_path=f"{_hook(run_dir)}:uploaded",
        use_kl_loss=True,
        kl_loss_coef=0.01,
        max_tokens_per_gpu=256,
        use_metrics_service=True,
        notify_urls="json://user:hunter2@127.0.0.1:9/nobody-listens",
        otlp_endpoint=collector.url,
    )
    done = threading.Event()
    watcher = threading.Thread(
        target=watch, args=(["/actor/get_step", "/rollout/health", SERVED], run_dir / "api_token", seen, done)
    )
    watcher.start()
    try:
        return train(config)
    finally:
        done.set()
        watcher.join()


def test_every_step_has_one_line(result: RunResult, run_dir: Path) -> None:
    records = read_metrics(run_dir / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(STEPS))
    assert (result.steps, result.new_steps) == (STEPS, STEPS)
    assert result.losses == [record["train/loss"] for record in records]
    assert all(record["train/grad_norm"] > 0 for record in records)
    assert all(0 < record["rollout/raw_reward"] < 1 for record in records)
    assert len({record["train/loss"] for record in records}) == STEPS
    # The reference is the initial policy: no distance before the first update, some after it.
    assert records[0]["train/kl_loss"] == pytest.approx(0.0, abs=1e-7)
    assert records[-1]["train/kl_loss"] != 0.0


def test_engine_and_trainer_agree_on_every_sample_and_after_every_sync(result: RunResult, run_dir: Path) -> None:
    for record in read_metrics(run_dir / "metrics.jsonl"):
        assert 0 < record["train/rollout_logprob_gap"] < 1e-3
        assert 0 < record["weight_sync/logprob_max_abs_diff"] < 1e-3
    assert 0 < result.logprob_max_abs_diff < 1e-3


def test_every_sample_is_accounted_for(result: RunResult, run_dir: Path) -> None:
    for record in read_metrics(run_dir / "metrics.jsonl"):
        ended = sum(record[f"stream/{outcome}"] for outcome in ("trained", "filtered", "dropped_stale"))
        assert record["stream/produced"] == ended + record["stream/in_flight"]
        assert record["stream/trained"] == (record["step"] + 1) * SAMPLES
        assert record["rollout/staleness/count/0"] == SAMPLES
    assert result.staleness_histogram == {0: STEPS * SAMPLES}


def test_the_collector_of_spans_has_the_life_of_every_sample(result: RunResult, collector: Collector) -> None:
    spans = collector.spans()
    assert collector.traces() == STEPS
    assert sum(name.startswith("step ") for name in spans) == STEPS
    samples = {name for name in spans if name.startswith("sample ")}
    assert len(samples) == STEPS * SAMPLES
    for stage in ("generate", "reward", "train"):
        assert {span["in"] for span in spans[stage] if str(span["in"]).startswith("sample ")} == samples


def test_weights_are_published_once_per_step(result: RunResult, run_dir: Path, tiny: Any) -> None:
    from safetensors import safe_open

    with safe_open(tiny.model / "model.safetensors", "np") as file:
        nbytes = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118 - not a dict
    for record in read_metrics(run_dir / "metrics.jsonl"):
        assert record["weight_sync/version"] == record["step"] + 1
        assert (record["weight_sync/bytes"], record["weight_sync/buckets"]) == (nbytes, 1)
        assert record["weight_sync/quarantined"] == 0
        assert record["weight_sync/seconds"] > 0
        assert record["weight_sync/gigabytes_per_second"] > 0


def test_what_a_run_leaves(result: RunResult, run_dir: Path) -> None:
    saved = sorted(path.name for path in (run_dir / "ckpt").glob("iter_*"))
    assert saved == ["iter_0000002", "iter_0000003"]
    assert result.checkpoint_dir == str(run_dir / "ckpt" / "iter_0000003")
    state = json.loads((run_dir / "ckpt" / "iter_0000003" / "run_state.json").read_text())
    assert state["iteration"] == state["weight_version"] == STEPS
    assert state["data_position"]["group_index"] == STEPS * 4
    assert RunConfig.from_yaml(run_dir / "config.yaml").flat.kl_loss_coef == 0.01
    timeline = json.loads((run_dir / "timeline.json").read_text())
    assert {(phase["role"], phase["name"]) for phase in timeline} >= {
        ("rollout", "generate"), ("rollout", "reward"), ("actor", "ref_log_probs"), ("actor", "advantages"),
        ("actor", "train"), ("actor", "weight_sync"), ("actor", "save"),
    }  # fmt: skip
    assert not (run_dir / "errors.log").exists()
    assert "hunter2" not in (run_dir / "config.yaml").read_text()


def test_roles_take_turns(result: RunResult, run_dir: Path) -> None:
    """Generation and training of colocate never overlap."""
    timeline = json.loads((run_dir / "timeline.json").read_text())
    work = sorted((p["start"], p["end"]) for p in timeline if p["name"] in ("generate", "train"))
    assert len(work) == 2 * STEPS
    for (_, end), (start, _) in pairwise(work):
        assert end <= start


def test_roles_answer_over_http_while_they_run(result: RunResult, seen: dict[str, list[Any]]) -> None:
    steps = [answer["step"] for answer in seen["/actor/get_step"] if isinstance(answer, dict)]
    assert steps == sorted(steps)
    assert set(steps) <= set(range(STEPS))
    health = seen["/rollout/health"][0]
    assert (health["role"], health["stopping"]) == ("rollout", False)


def test_roles_answer_whoever_has_the_token_and_only_while_they_run(
    result: RunResult, seen: dict[str, list[Any]], run_dir: Path
) -> None:
    assert 401 in seen["open /actor/get_step"]
    assert not any(isinstance(answer, dict) for answer in seen["open /actor/get_step"])
    assert seen["open /rollout/health"][0]["role"] == "rollout"
    assert not (run_dir / "api_token").exists()


def test_metrics_are_served_while_the_run_goes_on(result: RunResult, seen: dict[str, list[Any]]) -> None:
    assert 401 in seen[f"open {SERVED}"]
    assert [answer["gaps"] for answer in seen[SERVED]] == [[]] * len(seen[SERVED])
    losses = [answer["series"].get("train/loss", {}).get("values", []) for answer in seen[SERVED]]
    assert losses[0] == []
    assert max(losses, key=len) == result.losses[: len(max(losses, key=len))]
    assert len(max(losses, key=len)) >= STEPS - 1


def test_every_sample_is_recorded_as_it_was_trained(result: RunResult, run_dir: Path) -> None:
    with Rollouts(run_dir) as rollouts:
        assert [row["samples"] for row in rollouts.steps()] == [SAMPLES] * STEPS
        sample = rollouts.sample(1, SAMPLES)
        mean_reward = rollouts.steps()[-1]["reward"]
        rows = rollouts.find(
            ["age=0", "kl>-100"], columns=["log_prob_gap", "advantage", "generation_seconds"], limit=500
        )
    records = read_metrics(run_dir / "metrics.jsonl")
    assert mean_reward == pytest.approx(records[-1]["rollout/raw_reward"])
    assert len(sample["log_probs"]) == len(sample["advantages"]) == len(sample["ref_log_probs"]) > 0
    assert sample["started"] < sample["generated"] <= sample["scored"] <= sample["placed"]
    assert len(rows) == STEPS * SAMPLES
    assert {record["observe/rollouts_dropped"] + record["observe/training_dropped"] for record in records} == {0.0}


def test_every_metric_has_a_definition_and_is_in_the_parquet_log(result: RunResult, run_dir: Path) -> None:
    records = read_metrics(run_dir / "metrics.jsonl")
    names = {name for record in records for name in record} - {"step"}
    assert [name for name in sorted(names) if definition(name) is None] == []
    assert names >= {"perf/update_weights_time", "perf/train_time", "perf/tokens_per_gpu_per_sec"}
    rows = pq.read_table(run_dir / "metrics.parquet").to_pylist()
    logged = {(row["step"], row["metric"]): row["value"] for row in rows}
    assert logged == {(r["step"], name): value for r in records for name, value in r.items() if name != "step"}


def test_phases_and_state_are_there_for_who_looks(result: RunResult, run_dir: Path) -> None:
    kinds = ("role", "name", "step", "start", "end")
    noted = [tuple(phase[kind] for kind in kinds) for phase in read_phases(run_dir)]
    timeline = json.loads((run_dir / "timeline.json").read_text())
    assert sorted(noted) == sorted(tuple(phase[kind] for kind in kinds) for phase in timeline)
    assert read_state(run_dir)["status"] == "finished"


def test_a_run_at_its_target_does_nothing_and_says_so(
    result: RunResult, run_dir: Path, tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """training-gym#492, trl#7035: no step, no generation, and no success that looks like work."""
    config = tiny.config(run_dir, load=str(run_dir / "ckpt"), use_kl_loss=True, kl_loss_coef=0.01)
    started = time.monotonic()
    with caplog.at_level("INFO"):
        again = train(config)
    assert time.monotonic() - started < 2
    assert "nothing to do: the checkpoint is at step 3 of 3" in caplog.text
    assert (again.steps, again.new_steps, again.losses) == (STEPS, 0, result.losses)
    assert again.checkpoint_dir == result.checkpoint_dir


def test_an_explicit_start_takes_the_data_where_the_checkpoint_left_them(
    result: RunResult, run_dir: Path, tiny: Any, tmp_path: Path
) -> None:
    """The admission gate and the data source count the same groups, whatever the first step is called."""
    config = tiny.config(tmp_path, load=str(run_dir / "ckpt"), start_rollout_id=2, save=str(tmp_path / "ckpt"))
    again = train(config)
    assert (again.steps, again.new_steps) == (1, 1)
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [2]
    state = json.loads((tmp_path / "ckpt" / "iter_0000003" / "run_state.json").read_text())
    assert state["data_position"]["group_index"] == (STEPS + 1) * 4


def test_checkpoints_are_saved_and_exported_beside_the_training(result: RunResult, run_dir: Path, tiny: Any) -> None:
    manager = CheckpointManager(run_dir / "ckpt")
    assert manager.complete_iterations() == [2, STEPS]
    assert read_marker(manager.path(STEPS)).optimizer is True
    saved = [step for step in range(STEPS) if step % 2 or step == STEPS - 1]
    uploads = [line.split() for line in (run_dir / "uploads").read_text().splitlines()]
    assert uploads == [[str(step), str(run_dir / f"hf/iter_{step}"), "bf16", "False"] for step in saved]
    directory = run_dir / f"hf/iter_{STEPS - 1}"
    again = export_checkpoint(
        run_dir / "ckpt", run_dir / "again", origin_hf_dir=tiny.config(run_dir).flat.hf_checkpoint, dtype="bfloat16"
    )
    assert (directory / "model.safetensors").read_bytes() == (Path(again.path) / "model.safetensors").read_bytes()
    assert not [path for path in (run_dir / "ckpt").iterdir() if path.name.endswith(".partial")]

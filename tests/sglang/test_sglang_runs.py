"""Training with SGLang's server: twenty steps in turns with the trainer, and twenty beside it while one is killed."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from sglang_suite import FACTS, START_S, Engines

from relax_engine.config import RunConfig
from relax_engine.core.result import RunResult
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics
from tests.integration.conftest import start_ray

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

STEPS, SAMPLES = 20, 16
REWARDS = Path(__file__).parents[1] / "integration/core/core_rewards.py"
KILL_AFTER = 5  # steps


@pytest.fixture(scope="module")
def cluster(engines: Engines) -> Iterator[None]:
    import ray

    engines.close()
    start_ray()
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from data_prep.convert import convert
    from examples.tiny_math.make_data import make_data

    root = tmp_path_factory.mktemp("prompts")
    convert(str(make_data(root, train_rows=300, heldout_rows=1, sft_rows=1)["train"]), root / "train.parquet")
    return root / "train.parquet"


def run(name: str, model: Path, prompts: Path, run_dir: Path, **flags: Any) -> tuple[RunResult, list[dict[str, Any]]]:
    config = RunConfig.from_flat(
        hf_checkpoint=str(model),
        prompt_data=[str(prompts)],
        input_key="prompt",
        label_key="label",
        apply_chat_template=True,
        run_dir=str(run_dir),
        num_rollout=STEPS,
        rollout_batch_size=4,
        n_samples_per_prompt=4,
        rollout_max_prompt_len=32,
        rollout_shuffle=True,
        max_tokens_per_gpu=2048,
        custom_rm_path=f"{REWARDS}:even",
        lr=1e-3,
        rollout_engine="sglang",
        sglang_max_total_tokens=20000,
        rollout_engine_init_timeout=START_S,
        role_deadline=START_S + 60,
        wait_timeout=START_S + 60,
        weight_sync_timeout=120.0,
        **flags,
    )
    started = time.monotonic()
    result = train(config)
    records = read_metrics(run_dir / "metrics.jsonl")
    FACTS[f"{name}: {STEPS} steps, seconds with the servers' start"] = f"{time.monotonic() - started:.0f}"
    seconds = statistics.median(record["weight_sync/seconds"] for record in records if "weight_sync/seconds" in record)
    FACTS[f"{name}: median weight sync, seconds"] = f"{seconds:.3f}"
    worst = max(record["weight_sync/logprob_max_abs_diff"] for record in records)
    FACTS[f"{name}: largest log-prob difference between server and trainer"] = f"{worst:.1e}"
    return result, records


def servers(model: Path) -> list[psutil.Process]:
    """Main processes of the SGLang servers of `model`."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "sglang.launch_server" in line and str(model) in line and "supervise.py" not in " ".join(line):
            found.append(process)
    return found


def test_twenty_steps_in_turns(cluster: None, models: tuple[Path, Path], prompts: Path, tmp_path: Path) -> None:
    result, records = run(
        "colocate", models[0], prompts, tmp_path, colocate=True, rollout_max_response_len=10, rollout_temperature=0.9
    )
    assert [record["step"] for record in records] == list(range(STEPS))
    assert result.staleness_histogram == {0: STEPS * SAMPLES}
    assert max(record["weight_sync/logprob_max_abs_diff"] for record in records) < 1e-3
    # What is sampled is what is trained: the reward is the share of even tokens.
    rewards = [record["rollout/raw_reward"] for record in records]
    FACTS["colocate: reward of the first and last five steps"] = f"{mean(rewards[:5]):.2f}, {mean(rewards[-5:]):.2f}"
    assert mean(rewards[-5:]) > mean(rewards[:5]) + 0.05
    assert not psutil.wait_procs(servers(models[0]), timeout=15)[1]


def mean(values: list[float]) -> float:
    return statistics.fmean(values)


@dataclass(eq=False)
class Killer(threading.Thread):
    """Kills a server when some steps are trained."""

    model: Path
    run_dir: Path
    killed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        deadline = time.monotonic() + 2 * START_S
        path = self.run_dir / "metrics.jsonl"
        while time.monotonic() < deadline and not self.killed:
            if path.exists() and len(path.read_text().splitlines()) >= KILL_AFTER:
                victim = servers(self.model)[0]
                self.killed.append(victim.pid)
                victim.kill()
            time.sleep(0.2)


def test_twenty_steps_beside_the_trainer_while_a_server_dies(
    cluster: None, models: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    killer = Killer(models[0], tmp_path)
    killer.start()
    result, records = run(
        "fully async",
        models[0],
        prompts,
        tmp_path,
        fully_async=True,
        resource={"actor": [1, 1], "rollout": [1, 2], "actor_fwd": [1, 1], "advantages": [1, 0]},
        max_staleness=2,
        partial_rollout=True,
        use_fault_tolerance=True,
        save=str(tmp_path / "checkpoints"),
        rollout_max_response_len=150,
        rollout_stop_token_ids=list(range(10, 14)),  # lengths differ much
    )
    assert killer.killed != []
    assert [record["step"] for record in records] == list(range(STEPS))
    assert set(result.staleness_histogram) <= {0, 1, 2}
    assert sum(result.staleness_histogram.values()) == STEPS * SAMPLES
    # Responses were cut off for new weights, and continued with them.
    continued = sum(record.get("rollout/groups/continued", 0.0) for record in records)
    FACTS["fully async: groups continued with new weights"] = f"{continued:.0f}"
    assert continued > 0
    # The dead server was missed, by a request or by a sync, and nobody else was.
    assert sum(record["weight_sync/quarantined"] for record in records) <= 1
    assert max(record["weight_sync/logprob_max_abs_diff"] for record in records) < 1e-3
    assert not psutil.wait_procs(servers(models[0]), timeout=15)[1]

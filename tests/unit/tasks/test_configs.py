"""From a file and a task's inputs to the configuration of each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.tiny_math import demo
from relax_engine.config import RunConfig
from relax_engine.errors import ConfigError
from tasks.configs import evaluation_config, supervised_config, training_config
from tasks.types import SupervisedOptions, TrainingOverrides

CONFIG: Any = "examples/tiny_math/tiny_math.yaml"
PLACES = {"model": Path("/m"), "dataset": Path("/d/data.parquet")}


def rl(overrides: TrainingOverrides, work: Path = Path("/w")) -> Any:
    return training_config(CONFIG, overrides, **PLACES, checkpoint=Path("/c"), work=work, seed=5).flat


def test_the_run_starts_from_the_imported_checkpoint_and_resumes_from_its_own() -> None:
    flat = rl(TrainingOverrides())
    assert (flat.hf_checkpoint, flat.ref_load, flat.prompt_data) == ("/m", "/c", ["/d/data.parquet"])
    assert flat.load == flat.save == "/w/checkpoints"
    assert (flat.seed, flat.rollout_seed) == (5, 5)
    assert (flat.num_rollout, flat.global_batch_size) == (120, 128)


def test_overrides_replace_only_what_they_give() -> None:
    overrides = TrainingOverrides(num_rollout=7, fully_async=True, max_staleness=2, resource=demo.ASYNC_RESOURCE)
    flat = rl(overrides)
    assert (flat.num_rollout, flat.fully_async, flat.colocate, flat.max_staleness) == (7, True, False, 2)
    assert set(flat.resource) == {"actor", "rollout", "actor_fwd", "advantages"}
    assert flat.lr == rl(TrainingOverrides()).lr


def test_an_override_replaces_the_mode_of_the_file(tmp_path: Path) -> None:
    path: Any = tmp_path / "run.yaml"
    path.write_text("hybrid: true\nmax_staleness: 1\n")
    for overrides, mode in (
        (TrainingOverrides(), "hybrid"),
        (TrainingOverrides(fully_async=True), "fully_async"),
        (TrainingOverrides(hybrid=False), "colocate"),
    ):
        assert training_config(path, overrides, **PLACES, checkpoint=Path("/c"), work=tmp_path, seed=0).mode == mode


def test_a_run_always_saves(tmp_path: Path) -> None:
    path: Any = tmp_path / "run.yaml"
    path.write_text("num_rollout: 9\n")
    config = training_config(path, TrainingOverrides(), **PLACES, checkpoint=Path("/c"), work=tmp_path, seed=0)
    assert config.flat.save_interval == 50
    assert rl(TrainingOverrides()).save_interval == 30


def test_the_warm_start_takes_the_model_but_not_the_objective() -> None:
    options = SupervisedOptions(steps=72, batch_size=128, lr=2e-3, warmup_steps=20)
    flat = supervised_config(CONFIG, options, **PLACES, work=Path("/w"), seed=5).flat
    assert (flat.loss_type, flat.num_rollout, flat.global_batch_size, flat.lr) == ("sft", 72, 128, 2e-3)
    assert (flat.adam_beta2, flat.max_tokens_per_gpu, flat.lr_warmup_iters) == (0.98, 4096, 20)
    assert flat.custom_rm_path is None
    assert flat.save_interval == 72


def test_evaluation_samples_and_scores_as_the_run_does() -> None:
    flat = evaluation_config(CONFIG, **PLACES, name="heldout", seed=3).flat
    assert flat.eval_prompt_data == {"heldout": ["/d/data.parquet"]}
    assert (flat.eval_temperature, flat.n_samples_per_eval_prompt, flat.rollout_seed) == (1.0, 4, 3)
    assert flat.custom_rm_path == "examples.tiny_math.reward_tiny_math.reward_func"


def test_a_wrong_key_in_the_file_is_refused(tmp_path: Path) -> None:
    path: Any = tmp_path / "run.yaml"
    path.write_text("rollout_batchsize: 3\n")
    with pytest.raises(ConfigError, match="did you mean --rollout-batch-size"):
        training_config(path, TrainingOverrides(), **PLACES, checkpoint=Path("/c"), work=tmp_path, seed=0)


def test_what_the_record_of_a_run_derived_follows_the_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "record.yaml"
    path.write_text(RunConfig.from_yaml(CONFIG).replace(dump_details="elsewhere", custom={"max_turns": 3}).to_yaml())
    config = training_config(path, TrainingOverrides(), **PLACES, checkpoint=Path("/c"), work=tmp_path, seed=0)
    assert config.flat.save_debug_rollout_data == str(tmp_path / "run/details/rollout_data/{rollout_id}.jsonl")
    assert config.custom == {"max_turns": 3}

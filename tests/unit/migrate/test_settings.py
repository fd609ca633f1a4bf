"""What foreign settings become, and how many do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relax_engine.migrate.draft import Draft
from relax_engine.migrate.report import Report, Status
from relax_engine.migrate.slime.mapping import map_flags
from relax_engine.migrate.survey import survey
from relax_engine.migrate.verl.mapping import map_settings, with_aliases
from relax_engine.migrate.verl.settings import Settings

RECIPES = Path(__file__).parent / "recipes"


def verl(**given: str) -> Draft:
    draft = Draft(Report("r", "verl"))
    map_settings(Settings(with_aliases({key.replace("__", "."): value for key, value in given.items()})), draft)
    return draft


def status(draft: Draft, key: str) -> Status:
    return next(entry.status for entry in draft.report.entries if entry.key == key)


@pytest.mark.parametrize(("name", "framework", "recipes"), [("verl", "verl", 86), ("slime", "slime", 39)])
def test_listed_recipes_map(name: str, framework: Any, recipes: int) -> None:
    result = survey(framework, RECIPES / f"{name}_scripts.json")
    print(f"{name}: {result.recipes} recipes, {result.given} settings, {result.share:.2%}, {dict(result.statuses)}")
    assert result.recipes == recipes
    assert result.share >= 0.95
    assert all(reason for _, reason in result.needs)


ROWS = [
    ("algorithm.adv_estimator", "grpo", {"advantage_estimator": "grpo"}),
    ("algorithm.adv_estimator", "gae", {"advantage_estimator": "ppo"}),
    ("data.train_files", "['a.parquet', \"b.parquet\"]", {"prompt_data": ["a.parquet", "b.parquet"]}),
    ("data.val_files", "/d/gsm8k/test.parquet", {"eval_prompt_data": {"gsm8k": ["/d/gsm8k/test.parquet"]}}),
    ("data.train_batch_size", "64", {"rollout_batch_size": 64}),
    ("data.max_prompt_length", "512", {"rollout_max_prompt_len": 512}),
    ("data.max_response_length", "1024", {"rollout_max_response_len": 1024}),
    ("actor_rollout_ref.model.path", "/m", {"hf_checkpoint": "/m", "ref_load": "/m"}),
    ("actor_rollout_ref.actor.optim.lr", "1e-6", {"lr": 1e-6}),
    ("actor_rollout_ref.actor.use_kl_loss", "True", {"use_kl_loss": True, "kl_loss_coef": 0.001}),
    ("algorithm.gamma", "0.9", {"gamma": 0.9}),
    ("algorithm.lam", "0.95", {"lambd": 0.95}),
    ("actor_rollout_ref.actor.entropy_coeff", "0.01", {"entropy_coef": 0.01}),
    ("actor_rollout_ref.rollout.gpu_memory_utilization", "0.6", {"sglang_mem_fraction_static": 0.6}),
    ("actor_rollout_ref.rollout.n", "5", {"n_samples_per_prompt": 5}),
    ("actor_rollout_ref.rollout.temperature", "0.7", {"rollout_temperature": 0.7}),
    ("actor_rollout_ref.rollout.top_k", "0", {"rollout_top_k": -1}),
    ("actor_rollout_ref.rollout.tensor_model_parallel_size", "2", {"tensor_model_parallel_size": 2}),
    ("trainer.save_freq", "20", {"save_interval": 20}),
    ("trainer.test_freq", "5", {"eval_interval": 5}),
    ("trainer.total_epochs", "15", {"num_epoch": 15}),
    ("trainer.total_training_steps", "400", {"num_rollout": 400}),
    ("trainer.project_name", "p", {"tb_project_name": "p"}),
    ("trainer.experiment_name", "e", {"tb_experiment_name": "e"}),
    ("trainer.logger", "[console,wandb]", {"use_wandb": True}),
    ("actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-sum", {"loss_constant_length": 1}),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", "cispo", {}),
    ("algorithm.rollout_correction.rollout_is", "sequence", {"use_tis": True, "tis_level": "sequence"}),
    ("BATCH_SIZE", "32", {"rollout_batch_size": 32}),
    ("MICRO_BATCH_SIZE", "2", {"micro_batch_size": 2}),
    ("actor_rollout_ref.rollout.response_length", "99", {"rollout_max_response_len": 99}),
    ("actor_rollout_ref.actor.router_replay.mode", '"R2" ', {"use_routing_replay": True}),
    ("actor_rollout_ref.actor.router_replay.mode", "R3", {"use_rollout_routing_replay": True}),
    ("algorithm.kl_penalty", "kl", {"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "low_var_kl"}),
]


@pytest.mark.parametrize(("key", "value", "fields"), ROWS)
def test_rows_of_the_guides(key: str, value: str, fields: dict[str, Any]) -> None:
    draft = verl(**{key: value})
    assert {name: draft.values.get(name) for name in fields} == fields


def test_batches_are_counted_in_samples() -> None:
    given = {"data.train_batch_size": "1024", "actor_rollout_ref.actor.ppo_mini_batch_size": "256"}
    draft = verl(**given, **{"actor_rollout_ref.rollout.n": "5"})
    assert (draft.values["rollout_batch_size"], draft.values["global_batch_size"]) == (1024, 1280)


@pytest.mark.parametrize(
    ("kind", "ours"), [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "low_var_kl"), ("k3", "low_var_kl")]
)
def test_kl_estimators(kind: str, ours: str) -> None:
    prefix = "actor_rollout_ref.actor."
    draft = verl(**{prefix + "use_kl_loss": "True", prefix + "kl_loss_coef": "0.01", prefix + "kl_loss_type": kind})
    assert (draft.values["kl_loss_type"], draft.values["kl_loss_coef"]) == (ours, 0.01)


def test_a_loss_mode_replaces_the_estimator_of_groups() -> None:
    given = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}
    assert verl(**given).values["advantage_estimator"] == "gspo"


def test_defaults_of_the_source_are_written_out() -> None:
    draft = verl()
    assert draft.values["eps_clip_c"] == 3.0
    assert draft.values["calculate_per_token_loss"] is True
    assert draft.values["rollout_shuffle"] is True
    assert draft.values["eval_temperature"] == 0.0
    assert {entry.status for entry in draft.report.entries} == {Status.DEFAULTED}


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("reward_model.enable", "True", Status.NEEDS_YOU),
        ("reward_model.enable", "False", Status.NOT_NEEDED),
        ("actor_rollout_ref.model.lora_rank", "32", Status.NEEDS_YOU),
        ("actor_rollout_ref.model.lora_rank", "0", Status.NOT_NEEDED),
        ("algorithm.adv_estimator", "remax", Status.NEEDS_YOU),
        ("actor_rollout_ref.actor.ppo_epochs", "2", Status.NEEDS_YOU),
        ("actor_rollout_ref.actor.ppo_epochs", "1", Status.NOT_NEEDED),
        ("actor_rollout_ref.rollout.multi_turn.enable", "True", Status.MAPPED),
        ("actor_rollout_ref.actor.optim.lr", "fast", Status.NEEDS_YOU),
        ("some.thing.unheard_of", "1", Status.NEEDS_YOU),
        ("trainer.save_freq", "-1", Status.NOT_NEEDED),
        ("actor_rollout_ref.actor.router_replay.mode", "disabled", Status.NOT_NEEDED),
        ("actor_rollout_ref.actor.router_replay.replay_file", "/f", Status.NEEDS_YOU),
    ],
)
def test_what_needs_somebody(key: str, value: str, wanted: Status) -> None:
    assert status(verl(**{key: value}), key) is wanted


def test_slime_flags_keep_their_names() -> None:
    draft = Draft(Report("r", "slime"))
    words = "--actor-num-nodes 2 --actor-num-gpus-per-node 4 --rollout-num-gpus 8 --lr 1e-6 --use-kl-loss --swiglu"
    words += (
        " --num-layers 28 --loss-type sft_loss --eval-prompt-data aime /d/aime.jsonl --sglang-dp-size 2 --num-experts 8"
    )
    words += (
        " --dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    )
    words += " --rollout-stop-token-ids 1 2 --no-offload-rollout --wandb-project p"
    devices = map_flags(words.split(), draft, Path())
    assert (devices.actor, devices.rollout) == (8, 8)
    assert draft.values == {
        "lr": 1e-6,
        "use_kl_loss": True,
        "loss_type": "sft",
        "eval_prompt_data": {"aime": ["/d/aime.jsonl"]},
        "sglang_dp_size": 2,
        "dynamic_sampling_filter_path": "relax_engine.rollout.filters.check_reward_nonzero_std",
        "rollout_stop_token_ids": ["1", "2"],
        "offload_rollout": False,
        "tb_project_name": "p",
    }
    assert status(draft, "--num-experts") is Status.NOT_NEEDED
    assert status(draft, "--num-layers") is Status.NOT_NEEDED


def test_the_report_says_everything_twice() -> None:
    draft = verl(**{"trainer.nnodes": "2", "reward_model.enable": "True", "trainer.save_freq": "-1"})
    text, content = draft.report.to_markdown(), json.loads(draft.report.to_json())
    for entry in draft.report.entries:
        assert f"`{entry.key}`" in text
    assert (
        text.index("## Needs you") < text.index("## Mapped") < text.index("## Defaulted") < text.index("## Not needed")
    )
    assert content["counts"]["needs you"] == 1

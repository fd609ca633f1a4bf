"""Every rule of the doctor: what triggers it, what it says, and what keeps it quiet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relax_engine.config import ConfigError, RunConfig
from relax_engine.config.doctor import check, require_valid
from relax_engine.config.rules.base import RULES, Finding, quote, rule

ASYNC: dict[str, Any] = {
    "fully_async": True,
    "resource": {"actor": [1, 2], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]},
    "max_staleness": 2,
}
WITH_REFERENCE = {**ASYNC["resource"], "reference": [1, 1]}
KL: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1}
PPO: dict[str, Any] = {
    "advantage_estimator": "ppo",
    "resource": {"actor": [1, 1], "critic": [1, 1], "rollout": [1, 1]},
}

AGENTS: dict[str, Any] = {"use_agentic_rollout": True, "agent_command": "true", "apply_chat_template": True}
OPD: dict[str, Any] = {"use_opd": True, "opd_teacher_url": ["http://teacher:30000"]}

# rule, flags on top of a complete run, severity, part of the message
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "recovery_needs_whole_checkpoints",
        {"async_save": True, "use_fault_tolerance": True},
        "error",
        "of the step before",
    ),
    ("exports_have_names_of_their_own", {"save_hf": "out/{step}"}, "error", "only {rollout_id} can be filled in"),
    ("exports_have_names_of_their_own", {"save_hf": "out"}, "warning", "each export replaces the one before"),
    ("exports_have_names_of_their_own", {"save_hf_dtype": "fp8"}, "error", "nothing is exported"),
    ("exports_have_names_of_their_own", {"save_hf_fp8_block_size": (0, 128)}, "error", "a block has rows and columns"),
    (
        "model_is_the_preset",
        {"model_preset": "Qwen3-4B", "tensor_model_parallel_size": 1, "sequence_parallel": False},
        "error",
        "hidden_size 64 instead of 2560",
    ),
    ("replayed_routing_is_known", {"use_rollout_routing_replay": True}, "error", "this model has no experts"),
    (
        "replayed_routing_is_known",
        {**AGENTS, "use_rollout_routing_replay": True},
        "error",
        "the gateway of agents does not keep",
    ),
    ("replayed_routing_was_recorded", {"use_routing_replay": True}, "error", "this model has no experts"),
    ("adapters_are_on", {"lora_alpha": 16.0}, "warning", "all weights are trained"),
    ("adapters_have_layers", {"lora_rank": 8, "lora_target_modules": ["q_proj"]}, "error", "q_proj: no such layer"),
    ("adapters_are_all_that_changes", {"lora_rank": 8, "ref_update_interval": 2}, "error", "and stays so"),
    ("adapters_are_all_that_changes", {"lora_rank": 8, "lora_dropout": 0.1}, "warning", "off-policy"),
    (
        "adapters_are_all_that_changes",
        {"lora_rank": 8, "colocate": True, "use_opd": True, "opd_type": "megatron", "opd_teacher_load": "teacher"},
        "error",
        "beside those under its adapters",
    ),
    ("first_adapters_exist", {"lora_rank": 8, "lora_load": "nowhere"}, "error", "no adapter_config.json"),
    ("would_change_the_run", {"lora_rank": 8, "lora_adapter_mode": True}, "error", "engines receive merged weights"),
    ("one_mode", {**ASYNC, "colocate": True}, "error", "--colocate, --fully-async: these modes exclude each other"),
    ("one_mode", {"colocate": True, "hybrid": True}, "error", "--colocate, --hybrid: these modes exclude each other"),
    ("object_store_has_a_url", {"weight_sync_transport": "object_store"}, "error", "no place to keep the weights in"),
    ("object_store_has_a_url", {"weight_sync_url": "s3://a/b"}, "warning", "this transport keeps no files"),
    (
        "shared_memory_is_not_compressed",
        {"weight_sync_transport": "shared_memory", "weight_sync_compression": "zstd"},
        "error",
        "cannot be compressed",
    ),
    (
        "backend_is_for_broadcast",
        {"weight_sync_transport": "shared_memory", "checkpoint_engine_backend": "gloo"},
        "note",
        "no process group",
    ),
    ("roles_have_devices", {**ASYNC, **KL}, "error", "--resource lacks reference"),
    (
        "roles_have_devices",
        {"fully_async": True, "max_staleness": 1},
        "error",
        "--resource lacks actor_fwd",
    ),
    (
        "roles_have_devices",
        {"resource": {"actor": [1, 0], "rollout": [1, 1]}},
        "error",
        "actor cannot run on 0 devices",
    ),
    ("idle_roles", {"resource": {**ASYNC["resource"]}}, "note", "actor_fwd, advantages does not run as a role"),
    ("restarts_need_checkpoints", {"use_fault_tolerance": True}, "warning", "starts again from where it began"),
    (
        "restarts_need_checkpoints",
        {"use_fault_tolerance": True, "save": "ckpt"},
        "warning",
        "all steps of the run",
    ),
    ("certificates_come_with_keys", {"api_ssl_certfile": "c.pem"}, "error", "--api-ssl-keyfile (not set)"),
    ("certificates_come_with_keys", {"api_ssl_keyfile": "k.pem"}, "error", "HTTPS needs certificate and key"),
    ("apis_beyond_this_machine_are_protected", {"api_host": "0.0.0.0", "api_auth": False}, "error", "stop and rescale"),
    ("apis_beyond_this_machine_are_protected", {"api_host": "10.0.0.1"}, "warning", "in the clear"),
    ("autoscaler_file_is_right", {"autoscaler_config": "no.yaml", **ASYNC}, "error", "no.yaml: No such file"),
    ("agents_have_a_command", {"use_agentic_rollout": True}, "error", "there is no program to run"),
    ("agents_have_a_command", {"agent_command": "true"}, "warning", "no agent runs"),
    ("agents_have_a_command", {"agentic_custom_advantage_path": "json.dumps"}, "error", "credit is for the contexts"),
    (
        "agents_have_a_command",
        {**AGENTS, "custom_generate_function_path": "relax_engine.rollout.multi_turn.generate"},
        "error",
        "each of these makes the samples by itself",
    ),
    ("agents_have_a_command", {**AGENTS, "agent_env": ["A"]}, "error", "'A' is not KEY=VALUE"),
    ("agents_see_messages", {**AGENTS, "apply_chat_template": False}, "warning", "the chat template is applied"),
    ("agents_begin_again", {**AGENTS, "partial_rollout": True}, "note", "sessions that are cut off begin again"),
    ("prelaunched_agents_wait", {**AGENTS, **ASYNC, "agentic_prelaunch": True}, "note", "it is for agents in colocate"),
    ("own_requests_need_no_key", {"custom_generate_function_path": "json.dumps"}, "note", "ask for no key"),
    ("notifications_have_services", {"notify_urls": "json://localhost?freq=0"}, "error", "json://***: freq must be a"),
    (
        "notifications_have_services",
        {"notify_urls": "slack://T1JJ3T3L2"},
        "error",
        "slack://***: Apprise knows no such",
    ),
    (
        "watched_metrics_can_get_worse",
        {"notify_regressions": ["train/lr"], "notify_urls": "json://localhost"},
        "error",
        "'train/lr' cannot be watched",
    ),
    ("watched_metrics_can_get_worse", {"notify_regressions": ["perf/step_time"]}, "warning", "nobody is told"),
    ("command_lines_are_public", {"sglang_api_key": "hunter2"}, "warning", '"api_key": "***"'),
    ("scaling_needs_engines_of_their_own", {"scale_out_timeout": 60.0}, "warning", "scale requests are refused"),
    ("joining_is_free_with_a_store", {**ASYNC, "scale_out_timeout": 60.0}, "note", "between two of its calls"),
    ("restart_limit_needs_restarts", {"max_global_restart": 5}, "note", "nothing is restarted"),
    ("one_serve_per_role", {"resource": {"actor": [2, 1], "rollout": [1, 1]}}, "warning", "first number of actor"),
    ("colocate_is_on_policy", {"colocate": True, "max_staleness": 1}, "note", "here 0 is"),
    ("colocate_is_on_policy", {"colocate": True, "max_staleness": 3}, "warning", "add --hybrid or --fully-async"),
    ("balance_is_per_part", {"balance_data": True, "num_iters_per_train_update": 2}, "note", "within each streamed"),
    (
        "parts_hold_groups",
        {"num_iters_per_train_update": 3, "global_batch_size": 4},
        "warning",
        "has 2 prompt groups, which are never divided",
    ),
    (
        "true_on_policy_is_one_step",
        {"true_on_policy_mode": True, "num_steps_per_rollout": 2},
        "error",
        "a rollout is trained in 2 steps",
    ),
    ("one_old_policy", {"keep_old_actor": True, "use_rollout_logprobs": True}, "error", "two different old policies"),
    ("one_old_policy", {"keep_old_actor": True, "true_on_policy_mode": True}, "error", "two different old policies"),
    ("one_old_policy", {"keep_old_actor": True, "use_decoupled_ppo": True}, "error", "two different old policies"),
    (
        "rare_publishing_adds_staleness",
        {"hybrid": True, "max_staleness": 2, "update_weights_interval": 3},
        "note",
        "a sample may be 4 versions old",
    ),
    ("deterministic_is_on_policy", {"hybrid": True, "max_staleness": 1, "deterministic": True}, "error", "on timing"),
    ("reference_update_is_used", {"ref_update_interval": 2}, "warning", "no KL term is computed"),
    ("engines_fill_rollout_devices", {"rollout_num_gpus_per_engine": 2}, "error", "1 rollout devices do not divide"),
    (
        "model_parallel_divides_actor",
        {"resource": {"actor": [1, 3], "rollout": [1, 1]}, "tensor_model_parallel_size": 2},
        "error",
        "takes 2 devices, which does not divide the actor's 3",
    ),
    (
        "ref_actor_config_is_known",
        {"hybrid": True, "ref_actor_config": {"max_tokens_per_gpu": 9}},
        "note",
        "the actor itself computes",
    ),
    (
        "ref_actor_config_is_known",
        {**ASYNC, "ref_actor_config": {"max_token_per_gpu": 1}},
        "error",
        "did you mean 'max_tokens",
    ),
    (
        "ref_actor_config_is_known",
        {**ASYNC, "ref_actor_config": {"max_tokens_per_gpu": 0}},
        "error",
        "must be at least 1",
    ),
    (
        "ref_actor_config_is_known",
        {
            **{**ASYNC, **KL, "resource": WITH_REFERENCE, "use_rollout_logprobs": True},
            "ref_actor_config": {"tensor_model_parallel_size": 2},
        },
        "error",
        "does not divide reference's 1",
    ),
    ("forward_roles_fit", {**ASYNC, "tensor_model_parallel_size": 2}, "error", "actor_fwd has 1 devices"),
    (
        "forward_roles_fit",
        {
            **{**ASYNC, "tensor_model_parallel_size": 2, "use_rollout_logprobs": True, "use_opd": True},
            **{"opd_type": "megatron", "opd_teacher_load": "x", "resource": {**ASYNC["resource"], "teacher": [1, 1]}},
        },
        "error",
        "teacher has 1 devices",
    ),
    (
        "warmup_ends_before_the_decay_does",
        {"lr_decay_style": "linear", "lr_warmup_iters": 10, "num_rollout": 4},
        "error",
        "leaves nothing of the 4 steps",
    ),
    ("rollout_divides_into_steps", {"global_batch_size": 6}, "error", "8 samples, which do not divide"),
    ("steps_and_batch_agree", {"global_batch_size": 4, "num_steps_per_rollout": 4}, "error", "not the 8 samples"),
    ("batch_keeps_groups_whole", {"global_batch_size": 1}, "error", "split a prompt group of 2"),
    (
        "batch_divides_over_ranks",
        {"resource": {"actor": [1, 3], "rollout": [1, 1]}},
        "error",
        "a batch of 8 does not divide over 3 data-parallel ranks",
    ),
    ("rank_batch_divides_into_micro_batches", {"micro_batch_size": 3}, "error", "each rank's 8 samples"),
    ("on_policy_batch", {"global_batch_size": 4}, "note", "2 optimizer steps per rollout"),
    ("dynamic_batch_has_budget", {"use_dynamic_batch_size": True}, "error", "--max-tokens-per-gpu (not set)"),
    (
        "budget_holds_longest_sample",
        {"max_tokens_per_gpu": 100, "rollout_max_context_len": 101},
        "error",
        "101 tokens and does not fit into 100 x 1",
    ),
    (
        "budget_holds_longest_sample",
        {"max_tokens_per_gpu": 200, "log_probs_max_tokens_per_gpu": 50, "rollout_max_context_len": 101},
        "error",
        "Fix: --log-probs-max-tokens-per-gpu 101 or more",
    ),
    (
        "lengths_leave_room",
        {"rollout_max_context_len": 10, "rollout_max_prompt_len": 10},
        "error",
        "leaves no room for a response",
    ),
    (
        "lengths_leave_room",
        {"rollout_max_context_len": 20, "rollout_max_prompt_len": 10, "rollout_max_response_len": 15},
        "note",
        "cut at the context limit",
    ),
    ("run_has_an_end", {"num_rollout": None}, "error", "how long to train is open"),
    ("run_has_an_end", {"num_epoch": 1}, "note", "the smaller number"),
    ("run_has_an_end", {"start_rollout_id": 2}, "error", "end before it starts"),
    ("algorithm_is_known", {"advantage_estimator": "grp"}, "error", "Fix: --advantage-estimator grpo"),
    (
        "algorithm_is_known",
        {"advantage_estimator": "gspo", "kl_coef": 0.1},
        "error",
        "--advantage-estimator gspo, --kl-coef 0.1: gspo clips one ratio",
    ),
    (
        "algorithm_is_known",
        {"advantage_estimator": "rloo", "calculate_per_token_loss": True, **ASYNC},
        "error",
        "--advantage-estimator rloo, --max-staleness 2: rloo has no importance ratio, so stale data bias its gradient. "
        "Fix: --max-staleness 0",
    ),
    (
        "algorithm_is_known",
        {"advantage_estimator": "rloo", "calculate_per_token_loss": True, "global_batch_size": 4},
        "error",
        "--num-steps-per-rollout 2: rloo has no importance ratio, so a second step",
    ),
    ("algorithm_is_known", {"advantage_estimator": "rloo"}, "error", "Fix: add --calculate-per-token-loss"),
    (
        "algorithm_is_known",
        {"advantage_estimator": "reinforce_plus_plus"},
        "error",
        "normalises advantages over the batch. Fix: add --normalize-advantages",
    ),
    (
        "algorithm_is_known",
        {"advantage_estimator": "m2po", "use_tis": True},
        "error",
        "--use-tis: m2po already compares with the policy that sampled",
    ),
    ("one_kl_term", {"kl_coef": 0.1, **KL}, "error", "counted twice"),
    ("kl_loss_is_used", {"kl_loss_coef": 0.1}, "warning", "add --use-kl-loss"),
    ("kl_loss_is_used", {"use_kl_loss": True}, "note", "weight 0"),
    ("kl_loss_is_used", {"use_unbiased_kl": True}, "warning", "no KL term to correct"),
    ("one_behaviour_policy", {"use_tis": True, "use_rollout_logprobs": True}, "error", "every importance weight is 1"),
    ("one_behaviour_policy", {"use_decoupled_ppo": True, "use_rollout_logprobs": True}, "error", "--use-decoupled-ppo"),
    (
        "one_behaviour_policy",
        {"custom_tis_function_path": "json.loads", "advantage_estimator": "m2po"},
        "error",
        "already compares with the policy that sampled",
    ),
    ("tis_range", {"use_tis": True, "tis_clip": 1.0, "tis_clip_low": 1.5}, "error", "lies above the upper"),
    ("tis_range", {"tis_clip": 3.0}, "warning", "--tis-clip 3.0, --use-tis (not set): without effect"),
    (
        "tis_range",
        {"custom_tis_function_path": "json.loads", "tis_mode": "mask"},
        "warning",
        "your function makes the weights",
    ),
    (
        "tis_mean_is_known_before_the_step",
        {"use_tis": True, "tis_batch_normalize": True},
        "error",
        "not known before the step",
    ),
    ("opsm_has_an_old_policy", {"opsm_delta": 0.1}, "warning", "add --use-opsm"),
    ("opsm_has_an_old_policy", {"use_opsm": True}, "warning", "by the policy that sampled it"),
    ("decoupling_needs_stale_data", {"use_decoupled_ppo": True}, "note", "so this is --use-tis"),
    (
        "stale_samples_are_clipped",
        {"hybrid": True, "max_staleness": 2, "use_decoupled_ppo": True},
        "note",
        "every ratio is 1 and nothing is clipped",
    ),
    ("stale_samples_are_clipped", {"hybrid": True, "max_staleness": 2, "use_tis": True}, "note", "--use-tis"),
    ("stale_samples_are_clipped", {**ASYNC, "true_on_policy_mode": True}, "warning", "as if they were fresh"),
    ("distillation_is_on", {"opd_kl_coef": 0.5}, "warning", "add --use-opd"),
    ("teachers_read_text", {**OPD, "multimodal_keys": {"image": "x"}}, "error", "teachers that are engines read text"),
    ("distillation_has_one_mode", {**OPD, "opd_loss_coef": 1.0, "opd_kl_coef": 1.0}, "error", "would count twice"),
    ("distillation_has_one_mode", {**OPD, "opd_kl_coef": 0.0}, "error", "the teacher has no weight"),
    ("distillation_has_one_mode", {**OPD, "opd_is_clip": 5.0}, "warning", "without effect in the advantage"),
    ("divergence_can_be_computed", {**OPD, "opd_kl_type": "jsd"}, "error", "needs the probabilities of more tokens"),
    (
        "divergence_can_be_computed",
        {**OPD, "opd_kl_type": "low_var_kl", "opd_log_prob_top_k": 4},
        "error",
        "an estimate from the sampled token",
    ),
    ("divergence_can_be_computed", {**OPD, "opd_loss_coef": 1.0}, "warning", "Fix: --opd-is-clip 10"),
    ("divergence_can_be_computed", {**OPD, "rollout_temperature": 0.7}, "warning", "at temperature 1"),
    ("there_is_a_teacher", {"use_opd": True}, "error", "Fix: --opd-teacher-url or --teacher-hf-checkpoint"),
    ("there_is_a_teacher", {**OPD, "opd_type": "megatron"}, "error", "needs one of opd_teacher_load and nothing else"),
    ("one_reduction", {"calculate_per_token_loss": True, "loss_constant_length": 8}, "error", "different ways"),
    (
        "one_reduction",
        {"custom_pg_loss_reducer_function_path": "json.loads", "loss_constant_length": 8},
        "error",
        "remove --loss-constant-length",
    ),
    ("group_of_one", {"n_samples_per_prompt": 1}, "warning", "every advantage is 0"),
    ("flags_of_other_algorithms", {"gamma": 0.9}, "warning", "read by ppo, reinforce_plus_plus"),
    ("flags_of_other_algorithms", {"advantage_estimator": "sapo", "eps_clip_c": 3.0}, "warning", "--eps-clip-c 3.0"),
    ("kl_in_the_reward_is_k1", {"kl_coef": 0.1, "kl_loss_type": "k3"}, "warning", "Fix: --kl-loss-type k1"),
    ("loss_has_what_it_needs", {"loss_type": "dpo"}, "error", "Fix: --rejected-key COLUMN"),
    ("loss_has_what_it_needs", {"loss_type": "sft", "label_key": None}, "error", "Fix: --label-key COLUMN"),
    ("loss_has_what_it_needs", {"dpo_beta": 0.2}, "warning", "Fix: --loss-type dpo"),
    ("loss_has_what_it_needs", {"classification_threshold": 0.6}, "warning", "Fix: --loss-type seq_cls"),
    ("loss_has_what_it_needs", {"loss_type": "custom_loss"}, "error", "come together"),
    ("loss_has_what_it_needs", {"custom_loss_function_path": "json.loads"}, "error", "come together"),
    ("supervised_is_colocate", {"loss_type": "sft", **ASYNC}, "error", "samples nothing"),
    ("supervised_is_colocate", {"loss_type": "sft", "hybrid": True}, "error", "Fix: remove --hybrid"),
    ("dropout_is_off", {"attention_dropout": 0.1}, "warning", "--attention-dropout 0"),
    ("learning_rate_schedule", {"lr": 1e-6, "min_lr": 1e-5}, "error", "above the peak"),
    (
        "learning_rate_schedule",
        {"lr_decay_style": "cosine", "lr_warmup_iters": 10, "lr_decay_iters": 10},
        "error",
        "Fix: --lr-warmup-iters 9 or less",
    ),
    ("roles_have_devices", {"advantage_estimator": "ppo"}, "error", "--resource lacks critic"),
    ("idle_roles", {"resource": PPO["resource"]}, "note", "critic does not run as a role"),
    ("critic_flags_need_a_critic", {"critic_lr": 1e-5}, "warning", "this algorithm has no critic"),
    ("critic_trains_before_the_actor", {**PPO, "num_critic_only_steps": 2}, "error", "the actor is never trained"),
    (
        "critic_fits_its_devices",
        {**PPO, "resource": {"actor": [1, 2], "critic": [1, 1], "rollout": [1, 1]}, "tensor_model_parallel_size": 2},
        "error",
        "one copy of the critic takes 2 devices",
    ),
    ("critic_schedule", {**PPO, "lr": 1e-5, "min_lr": 1e-6, "critic_lr": 1e-7}, "error", "the critic's peak"),
    (
        "critic_schedule",
        {**PPO, "lr_decay_style": "linear", "critic_lr_warmup_iters": 2},
        "error",
        "leaves nothing of the 2 steps",
    ),
    ("critic_save_needs_save", {**PPO, "critic_save": "/tmp/critic"}, "error", "--save (not set)"),
    ("critic_model", {**PPO, "critic_load": "/no/such"}, "note", "a new critic starts from --ref-load"),
    ("reward_is_named", {"rm_type": None}, "warning", "every prompt must bring an `rm_type`"),
    (
        "hooks_exist",
        {"custom_rm_path": "json.loads", "user_code_paths": ["/srv/rewards"]},
        "error",
        "is in none of the declared paths",
    ),
    ("reward_is_named", {"custom_rm_path": "json.loads"}, "note", "the custom reward is used"),
    ("reward_terms_are_known", {"reward_terms": {"maths": 1.0}}, "error", "did you mean 'math'?"),
    ("reward_terms_are_known", {"reward_terms": {"math": "much"}}, "error", "is no finite number"),
    ("reward_terms_are_known", {"reward_terms": {"math": 1.0}}, "error", "Fix: --reward-key score"),
    (
        "reward_terms_are_known",
        {"reward_terms": {"math": 1.0}, "reward_key": "math"},
        "error",
        "a term has the name of the sum",
    ),
    ("reward_servers_are_named", {"rm_type": "remote_rm"}, "error", "Fix: --rm-url"),
    (
        "reward_servers_are_named",
        {"reward_terms": {"judge": {"reward": "genrm", "weight": 0.5}}},
        "error",
        "Fix: --genrm-url",
    ),
    (
        "one_judge",
        {"genrm_url": "http://h:1/v1", "genrm_model_path": "/nowhere"},
        "error",
        "served elsewhere or by this run, not both",
    ),
    ("one_judge", {"genrm_model_path": "/nowhere"}, "error", "there is no model with a tokenizer"),
    ("one_judge", {"genrm_sampling_config": {"top_p": 0.5}}, "warning", "the run serves no judge"),
    ("group_reward_is_custom", {"group_rm": True}, "error", "score single samples"),
    (
        "length_penalties_act",
        {"overlong_buffer_len": 64, "rollout_max_response_len": 16},
        "error",
        "Fix: --overlong-buffer-len 16 or less",
    ),
    ("deferred_rewards_come", {"defer_reward_to_post_process": True}, "error", "nothing would give rewards"),
    (
        "deferred_rewards_come",
        {
            "defer_reward_to_post_process": True,
            "custom_reward_post_process_path": "json.loads",
            "dynamic_sampling_filter_path": "json.loads",
        },
        "error",
        "the filter would see groups without rewards",
    ),
    ("length_penalties_act", {"overlong_penalty_factor": 0.5}, "warning", "add --overlong-buffer-len"),
    (
        "length_penalties_act",
        {"length_penalty_coef": 0.5, "custom_reward_post_process_path": "json.loads"},
        "warning",
        "your function processes the rewards",
    ),
    ("hooks_exist", {"custom_rm_path": "reward_func"}, "error", "no function is named"),
    ("hooks_exist", {"custom_rm_path": "no_such.module.reward"}, "error", "there is no module no_such.module"),
    ("hooks_exist", {"custom_rm_path": "no/such.py:reward"}, "error", "there is no file no/such.py"),
    (
        "hooks_exist",
        {"custom_tis_function_path": "no/such.py:tis"},
        "error",
        "--custom-tis-function-path no/such.py:tis",
    ),
    ("hooks_exist", {"custom_generate_function_path": "json.nothing.generate"}, "error", "no module json.nothing"),
    ("accepted_without_effect", {"attention_backend": "flash"}, "note", "--attention-backend flash: accepted"),
    ("would_change_the_run", {"rollout_num_gpus_per_engine": 2}, "error", "an engine runs on one device"),
    (
        "sglang_takes_plain_buckets",
        {"rollout_engine": "sglang", "weight_sync_compression": "zstd"},
        "error",
        "cannot read compressed weights",
    ),
    (
        "sglang_takes_plain_buckets",
        {"rollout_engine": "sglang", "weight_sync_transport": "object_store", "weight_sync_url": "s3://a/b"},
        "error",
        "loads directories",
    ),
    (
        "sglang_takes_plain_buckets",
        {"rollout_engine": "sglang", "weight_sync_mode": "delta"},
        "warning",
        "every sync sends all of them",
    ),
    ("repeatable", {"deterministic": True, "rollout_engine": "sglang"}, "error", "from one stream"),
    ("continued_responses_may_be_trained", {**ASYNC, "partial_rollout": True, "max_staleness": 0}, "error", "begun by"),
    (
        "partial_options_need_partial_rollout",
        {"partial_rollout_max_aborted_count": 2},
        "warning",
        "--partial-rollout-max-aborted-count 2, --partial-rollout (not set)",
    ),
    ("partial_rollout_cuts_something", {"partial_rollout": True, "max_staleness": 1}, "note", "nothing is cut off"),
    ("over_sampling_covers_a_rollout", {"over_sampling_batch_size": 1}, "error", "--over-sampling-batch-size 4 or"),
    ("over_sampling_covers_a_rollout", {**ASYNC, "over_sampling_batch_size": 5}, "note", "overtake slow ones"),
    ("repeatable", {"deterministic": True, "over_sampling_batch_size": 5}, "error", "cut off, and where"),
    (
        "filter_has_a_spread",
        {
            "dynamic_sampling_filter_path": "relax_engine.rollout.filters.check_reward_nonzero_std",
            "n_samples_per_prompt": 1,
        },
        "error",
        "every group would be left out",
    ),
    ("one_part_alone", {"debug_train_only": True}, "error", "nothing to train on without sampling"),
    (
        "one_part_alone",
        {"debug_rollout_only": True, "load_debug_rollout_data": "a/{rollout_id}"},
        "error",
        "does nothing",
    ),
    ("recorded_files_have_names", {"save_debug_rollout_data": "a.jsonl"}, "error", "would share one file"),
    (
        "evaluation_needs_engines",
        {"load_debug_rollout_data": "a/{rollout_id}", "eval_interval": 1},
        "note",
        "nothing is evaluated",
    ),
    ("model_directory", {"hf_checkpoint": None}, "error", "no model is named"),
    ("model_directory", {"loss_type": "seq_cls"}, "error", "a classifier is a ...ForSequenceClassification model"),
    ("model_directory", {"hf_checkpoint": "/no/such/model"}, "error", "no such directory"),
    ("model_directory", {"rollout_max_context_len": 5000}, "error", "more than the model's 4096 positions"),
    ("media_need_a_media_model", {"multimodal_keys": {"image": "label"}}, "error", "reads text only"),
    ("frozen_parts_exist", {"freeze_vision_model": True}, "error", "the model has no vision encoder"),
    ("frozen_parts_exist", {"freeze_language_model": True}, "error", "nothing is left to train"),
    ("media_budgets_are_ranges", {"image_min_token_num": 20000}, "error", "20000 is above 16384"),
    ("model_divides", {"pipeline_model_parallel_size": 5}, "error", "layers do not divide over 5 pipeline ranks"),
    ("model_divides", {"num_virtual_stages_per_pipeline_rank": 2}, "error", "needs pipeline_model_parallel_size"),
    (
        "experts_fit_the_devices",
        {"resource": {"actor": [1, 3], "rollout": [1, 1]}, "expert_model_parallel_size": 2},
        "error",
        "3 actor devices are not a multiple of 2",
    ),
    ("sequence_parallel_needs_tensor_parallel", {"sequence_parallel": True}, "error", "no tensor-parallel ranks"),
    ("recompute_is_complete", {"recompute_granularity": "full"}, "error", "needs a method"),
    ("recompute_is_complete", {"recompute_method": "block"}, "warning", "without effect"),
    ("saving_needs_a_directory", {"save_interval": 5}, "error", "--save-interval 5, --save (not set)"),
    ("saving_needs_a_directory", {"max_actor_ckpt_to_keep": 2}, "error", "no directory to save to"),
    ("reference_exists", {"ref_load": "/no/such"}, "error", "--ref-load /no/such: no such directory"),
    ("resume_finds_a_checkpoint", {"load": "/no/such"}, "note", "starts at rollout 0"),
    ("evaluation_has_data", {"eval_interval": 5}, "error", "nothing to evaluate on"),
    ("prompts_are_named", {"prompt_data": []}, "error", "no prompts"),
    ("prompt_files", {"prompt_data": ["/no/such.parquet"]}, "error", "/no/such.parquet does not exist"),
    ("prompt_files", {"input_key": "question"}, "error", "no column 'question', but prompt, label, extra_info"),
    ("prompt_files", {"label_key": "answer"}, "error", "--label-key answer"),
    ("eval_files", {"eval_prompt_data": {"a": ["/no/such.jsonl"]}}, "error", "/no/such.jsonl does not exist"),
    (
        "template_arguments_are_used",
        {"apply_chat_template_kwargs": {"enable_thinking": False}},
        "warning",
        "add --apply-chat-template",
    ),
]


def findings(config: RunConfig, name: str) -> list[Finding]:
    return [finding for finding in check(config) if finding.rule == name]


@pytest.fixture
def complete(run_files: Any) -> RunConfig:
    return RunConfig.from_flat(**run_files.flags)


@pytest.mark.parametrize(("name", "flags", "severity", "part"), CASES)
def test_rule(complete: RunConfig, name: str, flags: dict[str, Any], severity: str, part: str) -> None:
    found = findings(complete.replace(**flags), name)
    assert [finding.severity for finding in found] == [severity]
    assert part in str(found[0])


def test_every_rule_has_a_case(complete: RunConfig) -> None:
    check(complete)
    assert set(RULES) == {name for name, *_ in CASES}


def test_complete_runs_have_no_findings(complete: RunConfig, run_files: Any) -> None:
    assert check(complete) == []
    assert check(complete.replace(**ASYNC)) == []
    assert check(complete.replace(use_tis=True)) == []
    rloo = {"advantage_estimator": "rloo", "calculate_per_token_loss": True}
    assert check(complete.replace(**rloo)) == []
    assert check(complete.replace(advantage_estimator="gspo", eps_clip=3e-4, eps_clip_high=4e-4, **ASYNC)) == []
    whitened = {"advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True, "gamma": 0.99}
    assert check(complete.replace(**whitened, **ASYNC)) == []
    penalised = {"advantage_estimator": "cispo", "kl_coef": 0.01, **ASYNC, "resource": WITH_REFERENCE}
    assert check(complete.replace(**penalised)) == []
    resource = {"actor": [1, 1], "rollout": [1, 1], "advantages": [1, 0]}
    penalised = {"advantage_estimator": "m2po", **ASYNC, "resource": resource}
    assert check(complete.replace(**penalised)) == []
    assert check(complete.replace(**ASYNC, use_tis=True, tis_batch_normalize=True, use_opsm=True)) == []
    reference = {**ASYNC, **KL, "resource": WITH_REFERENCE}
    assert check(complete.replace(**reference)) == []
    assert check(complete.replace(**PPO, critic_lr=1e-5, critic_load=run_files.flags["hf_checkpoint"])) == []
    sft = {"loss_type": "sft", "rm_type": None, "resource": {"actor": [1, 1]}, "global_batch_size": 3}
    assert check(complete.replace(**sft)) == []
    assert check(complete.replace(**OPD)) == []
    assert check(complete.replace(**OPD, opd_loss_coef=1.0, opd_log_prob_top_k=8, opd_kl_type="jsd")) == []
    served = {"use_opd": True, "teacher_hf_checkpoint": str(run_files.model)}
    assert "--resource lacks teacher" in str(findings(complete.replace(**served), "roles_have_devices")[0])
    assert check(complete.replace(**served, resource={"actor": [1, 1], "rollout": [1, 1], "teacher": [1, 1]})) == []
    held = {"use_opd": True, "opd_type": "megatron", "opd_teacher_load": str(run_files.model)}
    assert check(complete.replace(**held)) == []
    assert check(complete.replace(**sft | {"loss_type": "dpo", "rejected_key": "prompt"})) == []
    custom = {"loss_type": "custom_loss", "custom_loss_function_path": "json.loads"}
    assert check(complete.replace(**custom)) == []
    evaluated = {"eval_interval": 1, "eval_prompt_data": {"test": [f"{run_files.test}[0:1]"]}}
    assert check(complete.replace(**evaluated)) == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, "warning: the training pass is the first over its rows"),
        ({"get_mismatch_metrics": True}, None),
        ({"num_steps_per_rollout": 2}, None),
        (ASYNC, None),
        ({"use_rollout_routing_replay": True}, "note: the rollout's experts are replayed in the pass"),
        ({"use_rollout_logprobs": True}, "error: the old log-probs are the engine's"),
        ({"loss_type": "sft", "rm_type": None}, "error: there are no old log-probs"),
    ],
)
def test_choices_can_be_replayed_that_were_recorded(
    complete: RunConfig, run_files: Any, flags: dict[str, Any], expected: str | None
) -> None:
    file = run_files.model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_experts": 8}))
    found = findings(complete.replace(use_routing_replay=True, **flags), "replayed_routing_was_recorded")
    shown = [f"{finding.severity}: {finding.message.removeprefix('without effect: ')}" for finding in found]
    assert [line.startswith(expected or "") for line in shown] == [True] * (expected is not None)


def test_own_log_probs_need_no_actor_fwd(complete: RunConfig) -> None:
    resource = {"actor": [1, 1], "rollout": [1, 1]}
    config = complete.replace(fully_async=True, resource=resource, max_staleness=1, use_rollout_logprobs=True)
    assert check(config) == []
    assert check(complete.replace(fully_async=True, resource=resource)) == []
    decoupled = complete.replace(fully_async=True, resource=resource, max_staleness=1, use_decoupled_ppo=True)
    assert [finding.rule for finding in check(decoupled)] == ["stale_samples_are_clipped"]


def test_staleness_rules_of_an_algorithm_ignore_colocate(complete: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from relax_engine.algorithms import registry

    strict = dataclasses.replace(registry.get("grpo"), name="strict", forbids_stale=True)
    monkeypatch.setattr(registry, "_registered", {"strict": strict})
    stale = {"advantage_estimator": "strict", "max_staleness": 1}
    assert findings(complete.replace(**stale), "algorithm_is_known") == []
    found = findings(complete.replace(**ASYNC | stale), "algorithm_is_known")
    assert "--max-staleness 1" in str(found[0])


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "gives 2 scores"),
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM'; supported"),
        ({"vocab_size": 7}, "the critic's vocabulary has 7 tokens"),
        (None, "not valid JSON"),
    ],
)
def test_a_model_that_cannot_be_the_critic_is_refused(
    complete: RunConfig, run_files: Any, tmp_path: Path, changes: dict[str, Any] | None, part: str
) -> None:
    model = tmp_path / "critic"
    model.mkdir()
    actor = json.loads((run_files.model / "config.json").read_text())
    (model / "config.json").write_text("{" if changes is None else json.dumps(actor | changes))
    [found] = findings(complete.replace(**PPO, critic_load=str(model)), "critic_model")
    assert found.severity == "error"
    assert part in str(found)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("config.json", "{", "config.json is not valid JSON"),
        ("config.json", None, "has no config.json"),
        ("config.json", '{"architectures": ["MambaForCausalLM"]}', "'MambaForCausalLM'; supported: Deepseek"),
        ("config.json", '{"architectures": ["Qwen3ForCausalLM"]}', "lacks the key"),
        ("tokenizer.json", None, "has no tokenizer"),
    ],
)
def test_model_directory_is_inspected(
    complete: RunConfig, run_files: Any, name: str, content: str | None, part: str
) -> None:
    path = run_files.model / name
    path.unlink() if content is None else path.write_text(content)
    assert part in str(findings(complete, "model_directory")[0])


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.jsonl", "", "has no rows"),
        ("a.jsonl", "[1]\n", "line 1: expected a JSON object, found list"),
        ("a.jsonl", "{\n", "cannot be read"),
        ("a.parquet", "not parquet", "cannot be read"),
        ("a.csv", "prompt\n", "unknown format '.csv'"),
        ("a.jsonl", json.dumps({"prompt": "x"}) + "\n", "no column 'label', but prompt"),
    ],
)
def test_prompt_files_are_inspected(complete: RunConfig, tmp_path: Path, name: str, content: str, part: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert part in str(findings(complete.replace(prompt_data=[str(path)]), "prompt_files")[0])


def test_an_empty_parquet_file_is_refused(complete: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string()), "label": pa.array([], pa.string())}), path)
    assert "has no rows" in str(findings(complete.replace(prompt_data=[str(path)]), "prompt_files")[0])


def test_hooks_in_files_are_found(complete: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def score(args, sample): return 1.0\n")
    config = complete.replace(rm_type=None, custom_rm_path=f"{path}:score", group_rm=True)
    assert check(config) == []


def test_agents_need_no_reward_function(complete: RunConfig) -> None:
    assert findings(complete.replace(**AGENTS, rm_type=None), "reward_is_named") == []


def test_require_valid_lists_every_error_and_logs_the_rest(
    complete: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError) as raised:
        require_valid(complete.replace(save_interval=5, eval_interval=5))
    assert len(str(raised.value).splitlines()) == 2
    with caplog.at_level("INFO"):
        require_valid(complete.replace(gamma=0.9, global_batch_size=4))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_errors_come_first(complete: RunConfig) -> None:
    severities = [finding.severity for finding in check(complete.replace(gamma=0.9, num_epoch=1, save_interval=1))]
    assert severities == ["error", "warning", "note"]


def test_flags_are_quoted_as_typed() -> None:
    assert quote("--colocate", True) == "--colocate"
    assert quote("--save", None) == "--save (not set)"
    assert quote("--resource", {"actor": (1, 1)}) == '--resource {"actor": [1, 1]}'
    assert quote("--kl-coef", 0.0) == "--kl-coef 0.0"


def test_rule_names_are_unique() -> None:
    def one_mode(config: RunConfig, report: Any) -> Any:
        yield from ()

    with pytest.raises(ValueError, match="two rules named one_mode"):
        rule(one_mode)

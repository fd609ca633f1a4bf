"""Defaults that depend on other fields.

What lives here: the value of each field whose documentation says `Default: ...` in terms of another one.
What does not: judgement about combinations (`relax_engine.config.rules`).
"""

from __future__ import annotations

from typing import Any

OLD_POLICY_FLAGS = (
    "use_tis",
    "use_decoupled_ppo",
    "custom_tis_function_path",
    "true_on_policy_mode",
    "keep_old_actor",
)
"""Each says by itself what stale samples are compared with."""


def derived_defaults(flat: dict[str, Any]) -> dict[str, Any]:
    """The fields to fill in, given all values with None (or the plain default) where nothing was set."""
    samples = flat["rollout_batch_size"] * flat["n_samples_per_prompt"]
    fallbacks: dict[str, Any] = {
        "eps_clip_high": flat["eps_clip"],
        "log_probs_max_tokens_per_gpu": flat["max_tokens_per_gpu"],
        "expert_tensor_parallel_size": flat["tensor_model_parallel_size"],
        "ref_load": flat["hf_checkpoint"],
        "eval_temperature": flat["rollout_temperature"],
        "eval_top_p": flat["rollout_top_p"],
        "eval_top_k": flat["rollout_top_k"],
        "eval_max_response_len": flat["rollout_max_response_len"],
        "eval_function_path": flat["rollout_function_path"],
        "over_sampling_batch_size": flat["rollout_batch_size"],
        "stream_max_rows": (flat["max_staleness"] + 1) * samples * (8 if flat["use_agentic_rollout"] else 1),
    }
    fallbacks["offload_rollout"] = not (flat["fully_async"] or flat["hybrid"])
    if flat["dump_details"] is not None:
        fallbacks["save_debug_rollout_data"] = f"{flat['dump_details']}/rollout_data/{{rollout_id}}.jsonl"
        fallbacks["save_debug_train_data"] = f"{flat['dump_details']}/train_data/{{rollout_id}}.npz"
    fallbacks |= _batch_sizes(flat, samples) | _lengths(flat) | _names(flat)
    fallbacks |= _critic(flat)
    derived = {name: value for name, value in fallbacks.items() if flat[name] is None and value is not None}
    if flat["load_debug_rollout_data"] is not None:
        derived["debug_train_only"] = True
    if flat["max_tokens_per_gpu"] is not None:
        derived["use_dynamic_batch_size"] = True
    if _trains_stale_in_process(flat) and not any(flat[name] for name in OLD_POLICY_FLAGS):
        derived["use_rollout_logprobs"] = True
    if flat["experiment_name"] == "default" and flat["tb_experiment_name"] is not None:
        derived["experiment_name"] = flat["tb_experiment_name"]
    return derived


def _trains_stale_in_process(flat: dict[str, Any]) -> bool:
    """Whether the actor computes old log-probs itself, when it trains, for samples of older weights.

    They would be those of the weights it trains, as if the samples were fresh.
    """
    if flat["fully_async"] or flat["loss_type"] in ("sft", "dpo", "seq_cls"):
        return False
    ahead = flat["max_staleness"] > 0 and (flat["hybrid"] or flat["partial_rollout"])
    return bool(ahead or flat["update_weights_interval"] > 1)


def _batch_sizes(flat: dict[str, Any], samples: int) -> dict[str, Any]:
    """Both of global_batch_size and num_steps_per_rollout, from whichever is given.

    Where the division leaves a rest it is rounded down, and the doctor refuses the combination.
    """
    if flat["global_batch_size"] is not None:
        return {"num_steps_per_rollout": max(1, samples // flat["global_batch_size"])}
    steps = flat["num_steps_per_rollout"] or 1
    return {"global_batch_size": max(1, samples // steps), "num_steps_per_rollout": steps}


def _lengths(flat: dict[str, Any]) -> dict[str, Any]:
    context, prompt = flat["rollout_max_context_len"], flat["rollout_max_prompt_len"]
    if context is None and prompt is not None:
        return {"rollout_max_context_len": prompt + flat["rollout_max_response_len"]}
    if context is not None and prompt is None:
        return {"rollout_max_prompt_len": context - 1}
    return {}


def _critic(flat: dict[str, Any]) -> dict[str, Any]:
    if "critic" not in flat["resource"]:
        return {}
    directories = {f"critic_{name}": f"{flat[name]}/critic" for name in ("load", "save") if flat[name] is not None}
    return {"critic_lr": flat["lr"], **directories}


def _names(flat: dict[str, Any]) -> dict[str, Any]:
    experiment = flat["experiment_name"]
    if experiment == "default" and flat["tb_experiment_name"] is not None:
        experiment = flat["tb_experiment_name"]
    saved_here = flat["save"] if flat["save"] and "://" not in flat["save"] else None
    return {"tb_experiment_name": experiment, "run_dir": saved_here or f"build/runs/{experiment}"}

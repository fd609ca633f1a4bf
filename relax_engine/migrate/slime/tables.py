"""Flags of slime and Relax that are not ours.

What lives here: new names, and reasons for those that fall away or need the user; names have underscores. What does
not: flags that we have under the same name.
"""

from __future__ import annotations

RENAMED: dict[str, str] = {
    "wandb_project": "tb_project_name",
    "wandb_group": "tb_experiment_name",
    "update_weight_mode": "weight_sync_mode",
    "update_weight_disk_dir": "weight_sync_url",
    "deterministic_mode": "deterministic",
}

VALUES: dict[tuple[str, str], dict[str, object]] = {
    ("loss_type", "sft_loss"): {"loss_type": "sft"},
    ("update_weight_transport", "disk"): {"weight_sync_transport": "object_store"},
    ("update_weight_transport", "nccl"): {"weight_sync_transport": "broadcast"},
    ("advantage_estimator", "reinforce_plus_plus_baseline"): {"advantage_estimator": "reinforce_plus_plus_baseline"},
}
"""Values with another spelling here."""

FUNCTIONS: dict[str, str] = {
    "check_reward_nonzero_std": "relax_engine.rollout.filters.check_reward_nonzero_std",
    "check_no_failure": "relax_engine.rollout.filters.check_no_failure",
}
"""Functions of the source's package that are built in here, by their last name."""

SUPERVISED_ROLLOUTS = ("sft_rollout.generate_rollout", "fully_async_rollout.generate_rollout_fully_async")
"""Rollout functions of the source's package for what a mode or loss type does here."""

_ARCHITECTURE = "the model's architecture comes from its config.json"
_KERNELS = "a choice of kernels or layout that changes no result; the backend chooses"
_ENGINES = "engines are started and watched by the run itself"

NOT_NEEDED: dict[str, str] = {
    "ref_micro_batch_size": "forward passes are packed by tokens (--log-probs-max-tokens-per-gpu)",
    "num_layers": _ARCHITECTURE,
    "*hidden_size": _ARCHITECTURE,
    "num_attention_heads": _ARCHITECTURE,
    "*query_group*": _ARCHITECTURE,
    "group_query_attention": _ARCHITECTURE,
    "swiglu": _ARCHITECTURE,
    "num_experts": _ARCHITECTURE,
    "optimize_routing_replay": "the same result; choices of experts always travel as packed columns",
    "multi_latent_attention": _ARCHITECTURE,
    "normalization": _ARCHITECTURE,
    "norm_epsilon": _ARCHITECTURE,
    "*rope*": _ARCHITECTURE,
    "*rotary*": _ARCHITECTURE,
    "*position_embedding*": _ARCHITECTURE,
    "vocab_size": _ARCHITECTURE,
    "make_vocab_size_divisible_by": _ARCHITECTURE,
    "kv_channels": _ARCHITECTURE,
    "*layernorm*": _ARCHITECTURE,
    "*bias*": _ARCHITECTURE,
    "untie_embeddings_and_output_weights": _ARCHITECTURE,
    "*lora_rank": _ARCHITECTURE,
    "*head_dim": _ARCHITECTURE,
    "qk_pos_emb_head_dim": _ARCHITECTURE,
    "mscale*": _ARCHITECTURE,
    "*attention_output_gate": _ARCHITECTURE,
    "use_gated_attention": _ARCHITECTURE,
    "max_position_embeddings": _ARCHITECTURE,
    "linear_*": _ARCHITECTURE,
    "seq_length": _ARCHITECTURE,
    "moe_*": _ARCHITECTURE,
    "num_gpus_per_node": "Ray says which node has which devices",
    "no_check_for_nan_in_loss_and_grad": "a loss that is not finite is always an error",
    "*gradient_accumulation_fusion": _KERNELS,
    "no_rope_fusion": _KERNELS,
    "no_*_fusion": _KERNELS,
    "cross_entropy*": _KERNELS,
    "enable_experimental": _KERNELS,
    "allgather_cp": _KERNELS,
    "data_pad_size_multiplier": _KERNELS,
    "log_probs_chunk_size": _KERNELS,
    "decoder_*_pipeline_num_layers": "pipeline stages have equally many layers, up to the rest of the division",
    "virtual_pipeline*": "give --num-virtual-stages-per-pipeline-rank to interleave stages; the result is the same",
    "num_layers_per_virtual*": "give --num-virtual-stages-per-pipeline-rank to interleave; the result is the same",
    "wandb_*": "metrics go to metrics.jsonl in --run-dir",
    "disable_wandb_random_suffix": "metrics go to metrics.jsonl in --run-dir",
    "clearml_*": "metrics go to metrics.jsonl in --run-dir",
    "tensorboard_dir": "metrics go to metrics.jsonl in --run-dir",
    "notify_urls": "metrics go to metrics.jsonl in --run-dir",
    "timeline_dump_dir": "metrics.jsonl has the phase times",
    "use_pytorch_profiler": "metrics.jsonl has the phase times",
    "profile_*": "metrics.jsonl has the phase times",
    "record_memory_history": "metrics.jsonl has the phase times",
    "memory_*": "metrics.jsonl has the phase times",
    "sglang_config": _ENGINES,
    "sglang_router_*": _ENGINES,
    "use_slime_router": _ENGINES,
    "slime_router_*": _ENGINES,
    "prefill_num_servers": _ENGINES,
    "rollout_external*": _ENGINES,
    "use_distributed_post": _ENGINES,
    "rollout_skip_special_tokens": "tokens, not texts, travel between engine and trainer",
    "model_name": "Hugging Face weights are converted by the built-in mapping",
    "skip_hf_validate": _ARCHITECTURE,
    "spec": _ARCHITECTURE,
    "custom_model_provider_path": _ARCHITECTURE,
    "offload": "engines free their cache where they share devices (--offload-rollout)",
    "offload_train": _KERNELS,
    "no_offload_train": _KERNELS,
    "no_save_optim": "a checkpoint holds everything that resuming needs",
    "no_load_*": "give --only-load-weight",
    "finetune": "give --only-load-weight",
    "async_save": "checkpoints are written while training goes on",
    "ckpt_format": "there is one format of checkpoints",
    "dist_ckpt*": "there is one format of checkpoints",
    "rotate_ckpt": "give --max-actor-ckpt-to-keep",
    "update_weight_delta_*": "changed tensors are sent and checked in one built-in form",
    "update_weight_local_checkpoint_dir": "engines read --weight-sync-url",
    "overlap_*": _KERNELS,
    "distributed_*": "every wait has a deadline of its own",
    "ddp_*": _KERNELS,
    "train_memory_margin_bytes": _KERNELS,
    "disable_weights_backuper": _KERNELS,
    "train_backend": "there is one training backend",
    "polling_mode": "roles are woken by the stream",
    "per_rank_fetch": "roles are woken by the stream",
    "rlsp_server_port": "ports are chosen by the run",
    "http_proxy": "engines are on the cluster's own network",
    "transformer_impl": _KERNELS,
    "ci_*": "a self-test of the source",
    "log_*": "these numbers are always logged",
    "initial_loss_scale": "training is in float32, or in bfloat16 with --bf16",
    "no_rotary*": _ARCHITECTURE,
    "agentic_session_lifecycle": _ENGINES,
    "agentic_program_admission": "agents start as --agentic-concurrency allows",
    "agentic_admission_*": "agents start as --agentic-concurrency allows",
    "tokenizer_type": "the tokenizer is that of --hf-checkpoint",
}
"""Patterns of flags without which the run is the same."""

NEEDS_YOU: dict[str, str] = {
    "*mtp*": "multi-token prediction is not offered",
    "lora_*": "this part of the adapters has no flag here",
    "eval_config": "write its datasets as --eval-prompt-data name path ..., and its defaults as --eval-... flags",
    "genrm_*": "a generative judge is not served by the run: serve it and give its address with --genrm-url",
    "disable_compute_advantages_and_returns": "advantages are always computed; with --loss-type sft there are none",
    "lr_warmup_fraction": "a share of all optimizer steps: give --lr-warmup-iters",
    "data_source_path": "a data source of your own: write the rows to files and name them in --prompt-data",
    "disable_rollout_global_dataset": "rollouts need --prompt-data, or a --rollout-function-path with its own prompts",
    "loss_mask_type": "rows of many turns become prompt and answer: convert them to --input-key and --label-key",
    "rollout_buffer*": "read by functions of the source's own: give it under `custom`, and name them here",
    "fp16": "training is in float32 or bfloat16",
    "fp8*": "training is in float32 or bfloat16",
}
"""Patterns of flags that change the run and have no flag here."""

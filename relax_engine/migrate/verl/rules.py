"""Settings of verl that depend on each other.

What lives here: one function per subject (batches, devices, length of training, ...), each taking its keys out of the
settings. What does not: keys that stand alone (`tables`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from relax_engine.migrate.draft import Draft, read_value
from relax_engine.migrate.shell.symbols import is_known, render
from relax_engine.migrate.verl.settings import Settings
from relax_engine.migrate.verl.tables import ACTOR, MODEL, REF, ROLLOUT

Rule = Callable[[Settings, Draft], None]
RULES: list[Rule] = []

_ESTIMATORS = {
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "gae": "ppo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
}
_LOSSES = {"vanilla": None, "gspo": "gspo", "cispo": "cispo", "sapo": "sapo"}
_KL_TYPES = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "low_var_kl", "k3": "low_var_kl"}
_LOSS_MODES: dict[str, dict[str, Any]] = {
    "token-mean": {"calculate_per_token_loss": True},
    "seq-mean-token-mean": {"calculate_per_token_loss": False},
    "seq-mean-token-sum": {"loss_constant_length": 1},
}


def rule(function: Rule) -> Rule:
    """Add a rule; they run in the order of definition."""
    RULES.append(function)
    return function


@rule
def model(settings: Settings, draft: Draft) -> None:
    """The model's path: weights, tokenizer and reference in one."""
    for key in (MODEL + "path", "model.partial_pretrain", "model.path"):
        path = settings.take(key)
        if path is not None:
            draft.settle(key, path, {"hf_checkpoint": path, "ref_load": path})
    checkpointing = settings.take(MODEL + "enable_gradient_checkpointing")
    targets = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    key = MODEL + "enable_gradient_checkpointing"
    if checkpointing is None:
        if not settings.has_prefix(ACTOR + "megatron."):
            draft.default(key, "True", targets, "the source recomputes activations unless told otherwise")
    elif read_value(checkpointing) is True:
        draft.settle(key, checkpointing, targets)
    else:
        draft.skip(key, checkpointing, "activations are kept unless --recompute-granularity is given")


@rule
def data_files(settings: Settings, draft: Draft) -> None:
    """Files and columns; verl's rows are converted first (`relax data convert`)."""
    files = settings.take("data.train_files")
    if files is not None:
        draft.settle("data.train_files", files, {"prompt_data": paths(files)}, "after `relax data convert`")
    files = settings.take("data.val_files")
    if files is not None:
        draft.settle("data.val_files", files, {"eval_prompt_data": by_name(paths(files))}, "after `relax data convert`")
    column = settings.take("data.prompt_key")
    if column in (None, "prompt"):
        if column is not None:
            draft.settle("data.prompt_key", column, {"input_key": "prompt"})
    else:
        draft.needs("data.prompt_key", column or "", "conversion reads the column prompt; rename it in the source")
    column = settings.take("data.response_key")
    if column is not None:
        draft.settle("data.response_key", column, {"label_key": column})
    draft.values |= {"input_key": "prompt", "label_key": draft.values.get("label_key", "label")}
    draft.values |= {"metadata_key": "metadata", "apply_chat_template": True}
    if settings.get("data.shuffle") is None:
        draft.default("data.shuffle", "True", {"rollout_shuffle": True}, "the source shuffles unless told otherwise")
    chosen = settings.take("data.gen_batch_size")
    if chosen is not None and (number(chosen) or 0) > (number(settings.get("data.train_batch_size")) or 0) > 0:
        draft.settle("data.gen_batch_size", chosen, {"over_sampling_batch_size": number(chosen)})
    elif chosen is not None:
        draft.skip("data.gen_batch_size", chosen, "as many prompts are under way as a rollout needs")


@rule
def batches(settings: Settings, draft: Draft) -> None:
    """Prompts per rollout, samples per step; verl counts both in prompts."""
    samples = number(settings.get(ROLLOUT + "n")) or 1
    batch = settings.take("data.train_batch_size")
    mini = settings.take(ACTOR + "ppo_mini_batch_size")
    waits = settings.take("async_training.require_batches")
    per_step = number(mini) if mini is not None else 256
    prompts = number(batch) if batch is not None else 1024
    if waits is not None and per_step and number(waits):
        prompts = per_step * (number(waits) or 1)
        draft.settle(
            "async_training.require_batches", waits, {"rollout_batch_size": prompts}, "mini-batches per rollout"
        )
        if batch is not None:
            draft.skip("data.train_batch_size", batch, "the rollout's size is require_batches mini-batches")
    elif batch is not None:
        value: Any = prompts if prompts is not None else batch
        draft.settle("data.train_batch_size", batch, {"rollout_batch_size": value}, "prompts per rollout")
    elif not settings.supervised:
        draft.default("data.train_batch_size", "1024", {"rollout_batch_size": 1024}, "the source's default")
    if settings.supervised:
        if prompts:
            draft.values["global_batch_size"] = prompts
        return
    reason = "samples per optimizer step: verl's prompts times the samples of each"
    if mini is not None:
        draft.settle(
            ACTOR + "ppo_mini_batch_size", mini, {"global_batch_size": per_step * samples if per_step else mini}, reason
        )
    elif prompts:
        step = min(256, prompts)
        draft.default(ACTOR + "ppo_mini_batch_size", "256", {"global_batch_size": step * samples}, reason)
    epochs = settings.take(ACTOR + "ppo_epochs")
    if epochs is not None and number(epochs) == 1:
        draft.skip(ACTOR + "ppo_epochs", epochs, "a rollout is trained once")
    elif epochs is not None:
        draft.needs(ACTOR + "ppo_epochs", epochs, "a rollout is trained once; there are no further passes over it")


@rule
def micro_batches(settings: Settings, draft: Draft) -> None:
    """Packed by tokens, or a fixed number of samples."""
    key = "data.use_dynamic_bsz" if settings.supervised else ACTOR + "use_dynamic_bsz"
    dynamic = settings.take(key)
    tokens = settings.take(ACTOR + "ppo_max_token_len_per_gpu")
    packed = dynamic is not None and read_value(dynamic) is True
    if dynamic is not None:
        if packed:
            draft.settle(key, dynamic, {"use_dynamic_batch_size": True})
        else:
            draft.skip(key, dynamic, "micro-batches have --micro-batch-size samples")
    if tokens is not None and packed:
        draft.settle(ACTOR + "ppo_max_token_len_per_gpu", tokens, {"max_tokens_per_gpu": read_value(tokens)})
    elif tokens is not None:
        draft.skip(
            ACTOR + "ppo_max_token_len_per_gpu", tokens, "in the source without use_dynamic_bsz it has no effect"
        )
    elif packed:
        draft.default(
            ACTOR + "ppo_max_token_len_per_gpu", "16384", {"max_tokens_per_gpu": 16384}, "the source's default"
        )
    for key in (ACTOR + "ppo_micro_batch_size_per_gpu", "data.micro_batch_size_per_gpu"):
        size = settings.take(key)
        if size is not None and packed:
            draft.skip(key, size, "micro-batches are packed up to --max-tokens-per-gpu")
        elif size is not None:
            draft.settle(key, size, {"micro_batch_size": read_value(size)})
    for key in (ACTOR + "ppo_micro_batch_size", "data.micro_batch_size"):
        size = settings.take(key)
        if size is not None:
            total = number(size)
            per_device = max(1, total // settings.devices) if total and settings.devices else None
            if per_device is None:
                draft.needs(key, size, "a micro-batch over all devices: give --micro-batch-size, samples on each")
            else:
                draft.settle(key, size, {"micro_batch_size": per_device}, "per device")
    for key in (ROLLOUT + "log_prob_max_token_len_per_gpu", REF + "log_prob_max_token_len_per_gpu"):
        tokens = settings.take(key)
        if tokens is not None and packed:
            draft.settle(key, tokens, {"log_probs_max_tokens_per_gpu": read_value(tokens)})
        elif tokens is not None:
            draft.skip(key, tokens, "in the source without use_dynamic_bsz it has no effect")


@rule
def algorithm(settings: Settings, draft: Draft) -> None:
    """Advantage estimator and policy loss are one name here."""
    if settings.supervised:
        draft.values |= {"loss_type": "sft"}
        return
    estimator = settings.take("algorithm.adv_estimator")
    loss = settings.take(ACTOR + "policy_loss.loss_mode")
    name = _ESTIMATORS.get(estimator or "gae")
    if estimator is None:
        draft.default("algorithm.adv_estimator", "gae", {"advantage_estimator": "ppo"}, "the source's default")
    elif name is None:
        draft.needs(
            "algorithm.adv_estimator", estimator, f"there is no estimator {render(estimator)!r} here; take the nearest"
        )
    else:
        draft.settle("algorithm.adv_estimator", estimator, {"advantage_estimator": name})
    if loss is not None and loss not in _LOSSES:
        draft.needs(
            ACTOR + "policy_loss.loss_mode", loss, "this policy loss is not offered: write --custom-loss-function-path"
        )
    elif loss is not None and _LOSSES[loss] is None:
        draft.skip(ACTOR + "policy_loss.loss_mode", loss, "the clipped loss is the estimator's own")
    elif loss is not None and name == "grpo":
        draft.settle(ACTOR + "policy_loss.loss_mode", loss, {"advantage_estimator": _LOSSES[loss]})
    elif loss is not None:
        draft.needs(
            ACTOR + "policy_loss.loss_mode", loss, "this loss goes with advantages normalised in the group only"
        )
    std = settings.take("algorithm.norm_adv_by_std_in_grpo")
    if std is not None:
        draft.settle(
            "algorithm.norm_adv_by_std_in_grpo", std, {"disable_grpo_std_normalization": read_value(std) is False}
        )


@rule
def clipping(settings: Settings, draft: Draft) -> None:
    """Clip ranges; verl always has the dual clip."""
    both = settings.take(ACTOR + "clip_ratio")
    if both is not None:
        draft.settle(ACTOR + "clip_ratio", both, {"eps_clip": read_value(both), "eps_clip_high": read_value(both)})
    if settings.supervised:
        return
    if settings.get(ACTOR + "clip_ratio_c") is None:
        draft.default(ACTOR + "clip_ratio_c", "3.0", {"eps_clip_c": 3.0}, "the source always clips this way")
    mode = settings.take(ACTOR + "loss_agg_mode")
    scale = settings.take(ACTOR + "loss_scale_factor")
    if mode is None:
        targets = _LOSS_MODES["token-mean"]
        draft.default(
            ACTOR + "loss_agg_mode", "token-mean", targets, "the source averages over the tokens of the batch"
        )
    elif mode == "seq-mean-token-sum-norm":
        length = number(scale) or number(settings.get("data.max_response_length")) or 512
        draft.settle(ACTOR + "loss_agg_mode", mode, {"loss_constant_length": length})
    elif mode in _LOSS_MODES:
        draft.settle(ACTOR + "loss_agg_mode", mode, _LOSS_MODES[mode])
    else:
        draft.needs(ACTOR + "loss_agg_mode", mode, "write --custom-pg-loss-reducer-function-path")
    if scale is not None:
        draft.skip(ACTOR + "loss_scale_factor", scale, "part of loss_agg_mode")


@rule
def kl(settings: Settings, draft: Draft) -> None:
    """KL in the loss or in the reward, whichever is on."""
    loss = read_value(settings.get(ACTOR + "use_kl_loss") or "False") is True
    coefficient = settings.take(ACTOR + "kl_loss_coef")
    kind = settings.take(ACTOR + "kl_loss_type")
    if loss:
        if coefficient is not None:
            draft.settle(ACTOR + "kl_loss_coef", coefficient, {"kl_loss_coef": read_value(coefficient)})
        else:
            draft.default(ACTOR + "kl_loss_coef", "0.001", {"kl_loss_coef": 0.001}, "the source's default")
        name = _KL_TYPES.get((kind or "low_var_kl").removesuffix("+"))
        if kind is None:
            draft.default(ACTOR + "kl_loss_type", "low_var_kl", {"kl_loss_type": "low_var_kl"}, "the source's default")
        elif name is None:
            draft.needs(ACTOR + "kl_loss_type", kind, "not among k1, k2, k3 and low_var_kl")
        else:
            draft.settle(ACTOR + "kl_loss_type", kind, {"kl_loss_type": name})
    else:
        for key, value in ((ACTOR + "kl_loss_coef", coefficient), (ACTOR + "kl_loss_type", kind)):
            if value is not None:
                draft.skip(key, value, "in the source without use_kl_loss it has no effect")
    _reward_kl(settings, draft)


def _reward_kl(settings: Settings, draft: Draft) -> None:
    used = settings.take("algorithm.use_kl_in_reward")
    coefficient = settings.take("algorithm.kl_ctrl.kl_coef")
    penalty = settings.take("algorithm.kl_penalty")
    on = used is not None and read_value(used) is True
    value = read_value(coefficient) if coefficient is not None else 0.001
    if used is not None and on:
        draft.settle("algorithm.use_kl_in_reward", used, {"kl_coef": value})
    elif used is not None:
        draft.skip("algorithm.use_kl_in_reward", used, "without --kl-coef there is no KL in the reward")
    if coefficient is not None and on:
        draft.settle("algorithm.kl_ctrl.kl_coef", coefficient, {"kl_coef": value})
    elif coefficient is not None:
        draft.skip("algorithm.kl_ctrl.kl_coef", coefficient, "in the source without use_kl_in_reward it has no effect")
    if penalty is not None and not on and used is None:
        targets = {"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "low_var_kl"}
        draft.settle("algorithm.kl_penalty", penalty, targets, "as RedAccel's guide has it")
    elif penalty is not None:
        draft.skip("algorithm.kl_penalty", penalty, "KL in the reward is the plain log-ratio (k1)")


@rule
def corrections(settings: Settings, draft: Draft) -> None:
    """Importance weights of samples from other weights."""
    prefix = "algorithm.rollout_correction."
    level = settings.take(prefix + "rollout_is")
    threshold = settings.take(prefix + "rollout_is_threshold")
    on = level is not None and level.strip("'\"") in ("token", "sequence")
    if level is not None and on:
        draft.settle(prefix + "rollout_is", level, {"use_tis": True, "tis_level": level.strip("'\"")})
    elif level is not None:
        draft.skip(prefix + "rollout_is", level, "no importance weights")
    if threshold is not None and on:
        draft.settle(prefix + "rollout_is_threshold", threshold, {"tis_clip": read_value(threshold)})
    elif threshold is not None:
        draft.skip(prefix + "rollout_is_threshold", threshold, "in the source without rollout_is it has no effect")
    rejection = settings.take(prefix + "rollout_rs")
    bound = settings.take(prefix + "rollout_rs_threshold")
    off = rejection is None or rejection.strip("'\"") in ("null", "None", "")
    for key, value in ((prefix + "rollout_rs", rejection), (prefix + "rollout_rs_threshold", bound)):
        if value is not None and off:
            draft.skip(key, value, "no sample is rejected")
        elif value is not None:
            draft.needs(key, value, "rejection by this statistic is not offered: write --custom-tis-function-path")
    bypass = settings.take(prefix + "bypass_mode")
    if bypass is not None:
        draft.settle(prefix + "bypass_mode", bypass, {"use_rollout_logprobs": read_value(bypass) is True})
    loss = settings.take(prefix + "loss_type")
    if loss is not None and loss.strip("'\"") == "ppo_clip":
        draft.skip(prefix + "loss_type", loss, "the clipped loss is the estimator's own")
    elif loss is not None:
        draft.needs(prefix + "loss_type", loss, "this loss is not offered: write --custom-loss-function-path")
    proximal = settings.take("async_training.compute_prox_log_prob")
    if proximal is not None:
        draft.settle(
            "async_training.compute_prox_log_prob", proximal, {"use_decoupled_ppo": read_value(proximal) is True}
        )


@rule
def sampling(settings: Settings, draft: Draft) -> None:
    """Settings that mean the same in other numbers."""
    for key, field in ((ROLLOUT + "top_k", "rollout_top_k"), (ROLLOUT + "val_kwargs.top_k", "eval_top_k")):
        value = settings.take(key)
        if value is not None:
            draft.settle(key, value, {field: -1 if number(value) == 0 else read_value(value)})
    eager = settings.take(ROLLOUT + "enforce_eager")
    if eager is not None:
        draft.settle(ROLLOUT + "enforce_eager", eager, {"sglang_disable_cuda_graph": read_value(eager)})
    sample, temperature = (
        settings.take(ROLLOUT + "val_kwargs.do_sample"),
        settings.take(ROLLOUT + "val_kwargs.temperature"),
    )
    greedy = sample is not None and read_value(sample) is False
    if temperature is not None and not greedy:
        draft.settle(ROLLOUT + "val_kwargs.temperature", temperature, {"eval_temperature": read_value(temperature)})
    elif temperature is not None:
        draft.skip(ROLLOUT + "val_kwargs.temperature", temperature, "evaluation is greedy")
    else:
        draft.default(
            ROLLOUT + "val_kwargs.temperature", "0", {"eval_temperature": 0.0}, "evaluation is greedy in the source"
        )
    if sample is not None:
        draft.skip(ROLLOUT + "val_kwargs.do_sample", sample, "an --eval-temperature of 0 is greedy, others sample")
    rate = settings.take(ROLLOUT + "over_sample_rate")
    if rate is not None and read_value(rate) in (0, 0.0):
        draft.skip(ROLLOUT + "over_sample_rate", rate, "as many prompts are under way as a rollout needs")
    elif rate is not None:
        prompts, share = number(settings.original("data.train_batch_size")), read_value(rate)
        known = prompts and isinstance(share, int | float)
        if known:
            draft.settle(
                ROLLOUT + "over_sample_rate", rate, {"over_sampling_batch_size": math.ceil(prompts * (1 + share))}
            )
        else:
            draft.needs(ROLLOUT + "over_sample_rate", rate, "give --over-sampling-batch-size")
    filtered = settings.take("algorithm.filter_groups.enable")
    metric = settings.take("algorithm.filter_groups.metric")
    if filtered is not None and read_value(filtered) is True:
        path = "relax_engine.rollout.filters.check_reward_nonzero_std"
        draft.settle("algorithm.filter_groups.enable", filtered, {"dynamic_sampling_filter_path": path})
    elif filtered is not None:
        draft.skip("algorithm.filter_groups.enable", filtered, "every group is trained on")
    if metric is not None:
        draft.skip("algorithm.filter_groups.metric", metric, "the filter looks at the rewards")
    for key in settings.matching(ROLLOUT + "engine_kwargs.sglang.*"):
        value = settings.take(key)
        draft.settle(key, value or "", {"sglang_" + key.rsplit(".", 1)[-1]: read_value(value or "")})


@rule
def tensor_parallel(settings: Settings, draft: Draft) -> None:
    """One size for the trainer: Megatron's, or else the engine's, as the guide has it."""
    key = ROLLOUT + "tensor_model_parallel_size"
    value = settings.take(key)
    if value is None:
        return
    if settings.has_prefix(ACTOR + "megatron.tensor_model_parallel_size"):
        draft.skip(key, value, "an engine runs on one device; the trainer has a size of its own")
    else:
        draft.settle(
            key, value, {"tensor_model_parallel_size": read_value(value)}, "the trainer's; an engine runs on one device"
        )


@rule
def schedule(settings: Settings, draft: Draft) -> None:
    """Warm-up and decay."""
    for prefix, field in (
        (ACTOR + "optim.", "lr_warmup_iters"),
        ("critic.optim.", "critic_lr_warmup_iters"),
        ("optim.", "lr_warmup_iters"),
    ):
        steps, ratio = settings.take(prefix + "lr_warmup_steps"), settings.take(prefix + "lr_warmup_steps_ratio")
        count = number(steps) if steps is not None else None
        if steps is not None and (read_value(steps) is None or (count or 0) < 0):
            draft.skip(prefix + "lr_warmup_steps", steps, "left to lr_warmup_steps_ratio")
        elif steps is not None:
            draft.settle(prefix + "lr_warmup_steps", steps, {field: read_value(steps)})
        total, share = number(settings.original("trainer.total_training_steps")), read_value(ratio or "0")
        if ratio is None:
            continue
        if share == 0:
            draft.skip(prefix + "lr_warmup_steps_ratio", ratio, "no warm-up")
        elif total and isinstance(share, int | float):
            draft.settle(prefix + "lr_warmup_steps_ratio", ratio, {field: int(share * total)}, f"of {total} steps")
        else:
            reason = "a share of all optimizer steps, whose number follows from the data: give it in steps"
            draft.needs(prefix + "lr_warmup_steps_ratio", ratio, reason)
    for key in (ACTOR + "optim.lr_scheduler_type", ACTOR + "optim.warmup_style", "optim.lr_scheduler"):
        style = settings.take(key)
        if style is not None:
            draft.settle(key, style, {"lr_decay_style": style})
    for prefix in (ACTOR + "optim.", "optim."):
        betas, ratio = settings.take(prefix + "betas"), settings.take(prefix + "min_lr_ratio")
        if betas is not None:
            pair = read_value(betas)
            pair = pair if isinstance(pair, list) else [betas]
            draft.settle(prefix + "betas", betas, dict(zip(("adam_beta1", "adam_beta2"), pair, strict=False)))
        if ratio is None:
            continue
        share, peak = read_value(ratio), read_value(settings.original(prefix + "lr") or "1e-6")
        if isinstance(share, int | float) and isinstance(peak, int | float):
            draft.settle(prefix + "min_lr_ratio", ratio, {"min_lr": share * peak}, "times the peak")
        else:
            draft.needs(prefix + "min_lr_ratio", ratio, "a share of the peak: give --min-lr")


@rule
def length_of_training(settings: Settings, draft: Draft) -> None:
    """Epochs, steps, and what happens in between."""
    for key in ("trainer.total_epochs", "rollout.total_epochs"):
        epochs = settings.take(key)
        if epochs is not None:
            draft.settle(key, epochs, {"num_epoch": read_value(epochs)})
    steps = settings.take("trainer.total_training_steps")
    if steps is not None and read_value(steps) is None:
        draft.skip("trainer.total_training_steps", steps, "follows from the epochs")
    elif steps is not None:
        draft.settle("trainer.total_training_steps", steps, {"num_rollout": read_value(steps)})
    total = settings.take("rollout.total_rollout_steps")
    size = draft.values.get("rollout_batch_size")
    if total is not None and number(total) and isinstance(size, int):
        draft.settle(
            "rollout.total_rollout_steps", total, {"num_rollout": max(1, (number(total) or 0) // size)}, "prompts"
        )
    elif total is not None:
        draft.needs(
            "rollout.total_rollout_steps", total, "prompts over the whole run: give --num-rollout, batches of prompts"
        )
    for key, field in (("trainer.save_freq", "save_interval"), ("trainer.test_freq", "eval_interval")):
        every = settings.take(key)
        if every is not None and (number(every) or 1) <= 0:
            draft.skip(key, every, f"off: there is no --{field.replace('_', '-')}")
        elif every is not None:
            draft.settle(key, every, {field: read_value(every)})
    before = settings.take("trainer.val_before_train")
    if before is not None:
        draft.settle("trainer.val_before_train", before, {"skip_eval_before_train": read_value(before) is False})
    stale = settings.take("async_training.staleness_threshold")
    if stale is not None:
        share = read_value(stale)
        versions = math.ceil(share) if isinstance(share, int | float) else stale
        draft.settle(
            "async_training.staleness_threshold", stale, {"max_staleness": versions}, "in whole weight versions"
        )


@rule
def checkpoints(settings: Settings, draft: Draft) -> None:
    """Where checkpoints go, and whether a run resumes from them."""
    directory, resume = settings.take("trainer.default_local_dir"), settings.take("trainer.resume_mode")
    where = directory if directory is not None else "checkpoints/${EXP_NAME}"
    resumes = resume is None or resume == "auto"
    targets = {"save": where, "load": where} if resumes else {"save": where}
    if directory is not None:
        draft.settle("trainer.default_local_dir", directory, targets)
    elif "save_interval" in draft.values:
        name = render(settings.original("trainer.experiment_name") or "default")
        project = render(settings.original("trainer.project_name") or "verl_examples")
        where = f"checkpoints/{project}/{name}"
        draft.default("trainer.default_local_dir", where, {key: where for key in targets}, "the source's default")
    if resume is not None:
        text = "--load is the directory of --save" if resumes else "there is no --load"
        draft.skip("trainer.resume_mode", resume, text)


@rule
def trackers(settings: Settings, draft: Draft) -> None:
    """The console is always there."""
    logger = settings.take("trainer.logger")
    if logger is not None:
        known = [name for name in ("wandb", "tensorboard", "clearml") if name in logger]
        targets = {f"use_{name}": True for name in known}
        if targets:
            draft.settle("trainer.logger", logger, targets)
        else:
            draft.skip("trainer.logger", logger, "metrics go to metrics.jsonl in --run-dir")
    for key, field in (("trainer.rollout_data_dir", "save_debug_rollout_data"),):
        directory = settings.take(key)
        if directory is not None and read_value(directory) is not None:
            draft.settle(key, directory, {field: directory + "/{rollout_id}.jsonl"})


@rule
def rewards(settings: Settings, draft: Draft) -> None:
    """Managers, penalties and arguments; the function itself is rewritten elsewhere."""
    manager = settings.take("reward_model.reward_manager")
    if manager == "batch":
        draft.settle("reward_model.reward_manager", manager, {"group_rm": True})
    elif manager is not None:
        draft.skip(
            "reward_model.reward_manager", manager, "samples are scored as they finish, each with its own function"
        )
    prefix = "reward_model.reward_kwargs.overlong_buffer_cfg."
    on = read_value(settings.get(prefix + "enable") or "False") is True
    for name, field in (("len", "overlong_buffer_len"), ("penalty_factor", "overlong_penalty_factor")):
        value = settings.take(prefix + name)
        if value is not None and on:
            draft.settle(prefix + name, value, {field: read_value(value)})
        elif value is not None:
            draft.skip(prefix + name, value, "the penalty is off")
    for key in ("custom_reward_function.path", "custom_reward_function.name", "reward_model.reward_name"):
        value = settings.take(key)
        if value is not None:
            settings.reward[key.rsplit(".", 1)[-1]] = value
            draft.settle(key, value, {"reward_key": "score"}, "rewritten as reward_func (--custom-rm-path)")
    for key in settings.matching("custom_reward_function.reward_kwargs.*"):
        value = settings.take(key) or ""
        name = key.rsplit(".", 1)[-1]
        draft.custom[name] = read_value(value)
        settings.reward_arguments.append(name)
        draft.settle(key, value, {}, f"args.{name}, under `custom` in the YAML file")
    enabled = settings.get("reward_model.enable")
    if enabled is not None and read_value(enabled) is False:
        for key in settings.matching("reward_model.*"):
            draft.skip(key, settings.take(key) or "", "there is no reward model")


@rule
def devices(settings: Settings, draft: Draft) -> None:
    """All devices of the source; the modes divide them among roles."""
    for key in ("trainer.nnodes", "trainer.n_gpus_per_node", "rollout.nnodes", "rollout.n_gpus_per_node"):
        value = settings.take(key)
        if value is None:
            continue
        if number(value) is not None:
            draft.settle(key, value, {}, "part of --resource")
        else:
            draft.needs(key, value, "how many devices there are is set outside of the script: correct --resource")


def paths(text: str) -> list[str]:
    """The files that `text` lists: `a`, `[a, b]` or `['a', "b"]`."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
        return [item.strip().strip("'\"") for item in inner.split(",") if item.strip()]
    return [inner]


def by_name(files: list[str]) -> dict[str, list[str]]:
    """Evaluation files by the name of their dataset: the file's, or its folder's where that says nothing."""
    named: dict[str, list[str]] = {}
    for file in files:
        path = PurePath(render(file))
        generic = path.stem in ("test", "val", "valid", "validation", "eval", "dev")
        name = path.parent.name if generic and path.parent.name and "$" not in path.parent.name else path.stem
        named.setdefault(name.strip("$(){}") or "eval", []).append(file)
    return named


def number(text: str | None) -> int | None:
    """The whole number that `text` spells, else None."""
    value = read_value(text) if text is not None and is_known(text) else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

"""Settings of verl about the model, files and batches.

What lives here: one function per subject, each taking its keys out of the settings. What does not: keys that stand
alone (`tables`).
"""

from __future__ import annotations

from typing import Any

from relax_engine.migrate.draft import Draft, read_value
from relax_engine.migrate.verl.settings import Settings
from relax_engine.migrate.verl.tables import ACTOR, MODEL, REF, ROLLOUT
from relax_engine.migrate.verl.values import by_name, number, paths


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

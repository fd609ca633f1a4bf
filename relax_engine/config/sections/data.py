"""Where prompts come from, how they become tokens, and how samples form batches."""

from __future__ import annotations

from relax_engine.config.sections.base import JsonObject, Section, StrList, flag, group


class Data(Section):
    """Prompts, columns and batch sizes."""

    prompt_data: StrList = group(list)
    """Training prompts: one or more Parquet or JSONL files, each whole or a row slice (`a.parquet[0:100]`), also as
    folder, glob or URL (docs/data.md); a list may be written `"['a.parquet', 'b.parquet']"`."""

    input_key: str = "input"
    """Column that holds the prompt: text, or chat messages (`[{"role", "content"}, ...]`)."""

    label_key: str | None = None
    """Column that holds the ground truth (text) handed to the reward; for supervised training, the answer."""

    rejected_key: str | None = None
    """Column that holds the worse answer to each prompt, for `--loss-type dpo`; `--label-key` names the better one."""

    metadata_key: str = "metadata"
    """Column that holds a dictionary handed to rewards and environments as `sample.metadata`."""

    apply_chat_template: bool = False
    """Render prompts with the tokenizer's chat template; without it they are taken as plain text."""

    apply_chat_template_kwargs: JsonObject = group(dict)
    """Extra arguments of the chat template, as JSON (`{"enable_thinking": false}`)."""

    system_prompt: str | None = None
    """System message put before every prompt that has none."""

    custom_prompt_path: str | None = None
    """Function `(prompt, row) -> prompt` that builds the prompt (text or messages) from its column and its row."""

    use_streaming_dataset: bool = False
    """Read rows as they are needed; that is how data sets of any size are read."""

    prefetch_max_cached: int = flag(256, ge=0, unit="prompts")
    """Prompts read and tokenised ahead of their use."""

    rollout_shuffle: bool = False
    """Shuffle the prompts anew in every epoch, by `--rollout-seed` and the epoch."""

    num_rollout: int | None = flag(None, ge=1, unit="rollouts")
    """Rollouts (batches of prompts) to train for, in supervised training optimizer steps; with `--num-epoch` too, the
    smaller of both counts."""

    num_epoch: int | None = flag(None, ge=1, unit="epochs")
    """Passes over the prompts; one epoch is `dataset length // rollout_batch_size` rollouts, or in supervised
    training `dataset length // global_batch_size` steps."""

    rollout_batch_size: int = flag(32, ge=1, unit="prompts")
    """Prompts (groups) per rollout."""

    n_samples_per_prompt: int = flag(1, ge=1, unit="samples")
    """Responses sampled for each prompt; together they are the prompt's group."""

    global_batch_size: int | None = flag(None, ge=1, unit="samples")
    """Samples per optimizer step, over all data-parallel ranks. Default:
    `rollout_batch_size * n_samples_per_prompt / num_steps_per_rollout`."""

    num_steps_per_rollout: int | None = flag(None, ge=1, unit="steps")
    """Optimizer steps per rollout. Default: `rollout_batch_size * n_samples_per_prompt / global_batch_size`."""

    num_iters_per_train_update: int = flag(1, ge=1)
    """Parts in which the samples of an optimizer step travel through the stream and add to its gradient, so that
    later roles and the trainer start before it is complete; it adds no optimizer steps."""

    micro_batch_size: int = flag(1, ge=1, unit="samples")
    """Samples per forward pass on each data-parallel rank, without dynamic batches."""

    use_dynamic_batch_size: bool = False
    """Pack as many samples into a micro-batch as fit into `--max-tokens-per-gpu`; implied by that flag."""

    max_tokens_per_gpu: int | None = flag(None, ge=1, unit="tokens")
    """Token budget of one packed training micro-batch on one device."""

    log_probs_max_tokens_per_gpu: int | None = flag(None, ge=1, unit="tokens")
    """Token budget of one forward-only micro-batch. Default: `--max-tokens-per-gpu`."""

    balance_data: bool = False
    """Give every data-parallel rank about the same number of tokens, keeping groups whole."""

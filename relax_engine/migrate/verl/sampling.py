"""Settings of verl about how responses are sampled and scored.

What lives here: sampling, filters, engines and rewards. What does not: the reward function, which is rewritten
(`relax_engine.migrate.code`).
"""

from __future__ import annotations

import math

from relax_engine.migrate.draft import Draft, read_value
from relax_engine.migrate.verl.settings import Settings
from relax_engine.migrate.verl.tables import ACTOR, ROLLOUT
from relax_engine.migrate.verl.values import number


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


def rewards(settings: Settings, draft: Draft) -> None:
    """Managers, penalties and arguments; the function itself is rewritten elsewhere."""
    manager = settings.take("reward_model.reward_manager")
    if manager == "batch":
        draft.settle("reward_model.reward_manager", manager, {"group_rm": True})
    elif manager is not None:
        draft.skip(
            "reward_model.reward_manager", manager, "samples are scored as they finish, each with its own function"
        )
    for prefix in ("reward_model.overlong_buffer.", "reward_model.reward_kwargs.overlong_buffer_cfg."):
        enabled = settings.get(prefix + "enable")
        on = read_value(enabled or "False") is True
        for name, field in (("len", "overlong_buffer_len"), ("penalty_factor", "overlong_penalty_factor")):
            value = settings.take(prefix + name)
            if value is not None and on:
                draft.settle(prefix + name, value, {field: read_value(value)})
            elif value is not None:
                draft.skip(prefix + name, value, "the penalty is off")
        if enabled is not None:
            draft.skip(prefix + "enable", settings.take(prefix + "enable") or "", "follows len and penalty_factor")
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
    if enabled is None or read_value(enabled) is False:
        for key in settings.matching("reward_model.*"):
            draft.skip(key, settings.take(key) or "", "there is no reward model")

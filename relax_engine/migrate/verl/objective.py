"""Settings of verl about advantages and the loss.

What lives here: estimator, clipping, KL, replay of experts and importance weights. What does not: keys that stand alone
(`tables`).
"""

from __future__ import annotations

from typing import Any

from relax_engine.migrate.draft import Draft, read_value
from relax_engine.migrate.shell.symbols import render
from relax_engine.migrate.verl.settings import Settings
from relax_engine.migrate.verl.tables import ACTOR, ROLLOUT
from relax_engine.migrate.verl.values import number

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
        whitens = {"normalize_advantages": True} if name.startswith("reinforce_plus_plus") else {}
        draft.settle("algorithm.adv_estimator", estimator, {"advantage_estimator": name} | whitens)
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


_REPLAYS = {"R2": "use_routing_replay", "R3": "use_rollout_routing_replay"}


def routing_replay(settings: Settings, draft: Draft) -> None:
    """Whose experts are replayed in training; verl has the rollout say which it chose by a key of its own."""
    rollout = ROLLOUT + "enable_rollout_routing_replay"
    returned = settings.take(rollout)
    for key in (ACTOR + "router_replay.mode", ACTOR + "megatron.router_replay.mode"):
        mode = settings.take(key)
        name = (mode or "").strip("'\" ")
        if mode is not None and name in _REPLAYS:
            draft.settle(key, mode, {_REPLAYS[name]: True})
        elif mode is not None and name in ("disabled", "null", "None", ""):
            draft.skip(key, mode, "off in the source")
        elif mode is not None:
            draft.needs(key, mode, "for R2 give --use-routing-replay, for R3 --use-rollout-routing-replay")
    if returned is not None:
        draft.skip(rollout, returned, "with --use-rollout-routing-replay engines say which experts they chose")


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

"""What is optimised: the objective and its corrections."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import Section, flag


class Algorithm(Section):
    """Advantages, the policy loss, KL and entropy terms, and off-policy corrections."""

    advantage_estimator: str = "grpo"
    """Algorithm, by its name in the registry (`relax_engine/algorithms`)."""

    loss_type: Literal["policy_loss", "sft", "dpo", "seq_cls", "custom_loss"] = "policy_loss"
    """`policy_loss` for reinforcement learning; `sft` for supervised training on the same prompt files, `dpo` on pairs
    of answers, `seq_cls` on class labels; `custom_loss` for reinforcement learning with
    `--custom-loss-function-path`."""

    problem_type: Literal["single_label_classification", "multi_label_classification"] = "single_label_classification"
    """`seq_cls`: exactly one label per row and a cross entropy over all, or any number and a binary one for each."""

    classification_threshold: float = flag(0.5, gt=0, lt=1)
    """Probability from which a label counts as predicted in the accuracy of `multi_label_classification`."""

    custom_loss_function_path: str | None = None
    """Your loss for `--loss-type custom_loss`: `fn(args, batch, log_probs, sum_of_sample_mean)` returns
    `(loss, metrics)`."""

    dpo_beta: float = flag(0.1, gt=0)
    """Strength of DPO's pull towards the reference."""

    dpo_reference_free: bool = False
    """DPO without a reference model: its log-probs count as 0."""

    eps_clip: float = flag(0.2, gt=0)
    """Lower clip range of the probability ratio: `1 - eps_clip`."""

    eps_clip_high: float | None = flag(None, gt=0)
    """Upper clip range of the probability ratio: `1 + eps_clip_high`. Default: `--eps-clip`."""

    eps_clip_c: float | None = flag(None, gt=1)
    """Dual clip: for negative advantages the loss is at most `-c * A`. Default: off."""

    value_clip: float = flag(0.2, gt=0)
    """Largest distance of the critic's value from the value it had when the returns were computed."""

    sapo_tau_pos: float = flag(1.0, gt=0)
    """SAPO: how fast the gate closes for positive advantages."""

    sapo_tau_neg: float = flag(1.05, gt=0)
    """SAPO: how fast the gate closes for negative advantages."""

    m2po_kl2_budget: float = flag(0.01, gt=0)
    """M2PO: largest mean square of the log-ratio over the tokens that have moved with their advantage."""

    m2po_miniclip_low: float = flag(0.3, ge=0, le=1)
    """M2PO: the lower clip bound is at least this far from one."""

    m2po_miniclip_high: float = flag(0.5, ge=0)
    """M2PO: the upper clip bound is at least this far from one."""

    kl_coef: float = flag(0.0, ge=0)
    """Coefficient of the KL penalty inside the reward; excludes `--kl-loss-coef`."""

    use_kl_loss: bool = False
    """Add a KL term against the reference model to the loss."""

    kl_loss_coef: float = flag(0.0, ge=0)
    """Coefficient of the KL term in the loss; excludes `--kl-coef`."""

    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = "k1"
    """KL estimator; `low_var_kl` is k3 clamped to [-10, 10]."""

    use_unbiased_kl: bool = False
    """Weight the KL term by the ratio of the current to the old policy, which makes its gradient unbiased."""

    entropy_coef: float = flag(0.0, ge=0)
    """Coefficient of the entropy bonus."""

    use_rollout_entropy: bool = False
    """Log the policy's entropy on the sampled tokens (`train/entropy_loss`) without a bonus, too."""

    gamma: float = flag(1.0, ge=0, le=1)
    """Discount per token, for estimators with token-level returns."""

    lambd: float = flag(1.0, ge=0, le=1)
    """Lambda of generalised advantage estimation, for estimators with a critic."""

    num_critic_only_steps: int = flag(0, ge=0, unit="rollouts")
    """First rollouts on which the critic alone is trained; the actor keeps its weights, and versions count on."""

    critic_train_only: bool = False
    """Train the critic alone, on every rollout."""

    normalize_advantages: bool = False
    """Shift and scale the advantages of a batch to mean 0 and variance 1 over its unmasked tokens."""

    calculate_per_token_loss: bool = False
    """Average the loss over all tokens of the batch instead of per sample first."""

    loss_constant_length: int | None = flag(None, ge=1, unit="tokens")
    """Divide every sample's token sum by this constant instead of by its own length (Dr. GRPO)."""

    disable_rewards_normalization: bool = False
    """Use raw rewards as advantages, without normalisation within the group."""

    disable_grpo_std_normalization: bool = False
    """Subtract the group's mean reward but do not divide by its standard deviation (Dr. GRPO)."""

    use_rollout_logprobs: bool = False
    """Take the engine's log-probs as the old policy instead of recomputing them; excludes `--use-tis`. Default: on
    where the actor would recompute them for stale samples with the weights it trains (hybrid, partial rollout), unless
    another flag names the old policy."""

    use_rollout_routing_replay: bool = False
    """Rollout routing replay (R3): train a mixture of experts with the experts that the engine sent each token to; the
    router is trained through their weights."""

    use_routing_replay: bool = False
    """Routing replay (R2): train a mixture of experts with the experts that the trainer chose when it computed the old
    log-probs; the rollout's, with `--use-rollout-routing-replay`, come first."""

    use_decoupled_ppo: bool = False
    """Decoupled PPO: clip around the trainer's policy at the start of the step, whatever the age of the samples, and
    weight the loss by that policy over the engine's. The `--tis-*` flags shape the weight."""

    use_tis: bool = False
    """Truncated importance sampling: weight the loss by `exp(old - rollout)`, bounded."""

    tis_clip: float = flag(2.0, gt=0)
    """Upper bound of the importance weight."""

    tis_clip_low: float = flag(0.0, ge=0)
    """Lower bound of the importance weight."""

    tis_level: Literal["token", "sequence", "geometric"] = "token"
    """Ratio that becomes the weight: the token's own, the product over the response (`sequence`), or the geometric mean
    over the response."""

    tis_mode: Literal["truncate", "mask"] = "truncate"
    """What happens to a weight outside of the bounds: cut to the bound, or its tokens left out (`mask`, IcePop)."""

    tis_batch_normalize: bool = False
    """Divide importance weights by their mean over the batch."""

    custom_tis_function_path: str | None = None
    """Your correction in place of `--use-tis`: `fn(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks,
    total_lengths, response_lengths)` returns `(pg_loss, masks, metrics)`."""

    get_mismatch_metrics: bool = False
    """Recompute log-probs with the trainer even where training does not need them, to log how far they are from the
    engine's."""

    use_opsm: bool = False
    """Off-policy sequence masking: leave out responses with a negative advantage that the policy has already left."""

    opsm_delta: float = flag(1e-4, ge=0, unit="nats per token")
    """Mean of old minus current log-probs above which `--use-opsm` leaves a response out."""

    custom_pg_loss_reducer_function_path: str | None = None
    """Your reduction of the policy loss: `fn(total_lengths, response_lengths, masks, calculate_per_token_loss)` returns
    a function from token losses to their sum over the samples at hand."""

    custom_advantage_function_path: str | None = None
    """Your advantages: `fn(args, rollout_data)` puts lists of tensors under `advantages` and `returns`."""

"""The whole training loss, as the one function that the training backend calls.

What lives here: policy loss, correction, KL and entropy put together under the token weights, and
the metrics. What does not: any single term's formula, and anything about models or ranks.

Contract: a loss is a plain sum over tokens of `loss_weights * per-token loss`. Summed over
micro-batches and data-parallel ranks it is the step's loss. Metrics add up in the same way (they
are sums weighted by `loss_weights`, or counts named `.../sum`), except those named `.../max`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relax_engine.algorithms import registry
from relax_engine.algorithms.corrections.apply import corrected_loss
from relax_engine.algorithms.distillation import DistillationSettings, distillation_loss, distilled_advantages
from relax_engine.algorithms.hooks import LossHooks
from relax_engine.algorithms.kl import kl_penalty
from relax_engine.algorithms.loss import importance_ratio
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec, PolicyTerms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Rows of one micro-batch: compact `[R]` columns by name, and response boundaries int64 `[rows + 1]`.

    `total_lengths` int64 `[rows]` counts prompt and response tokens; only hooks need it. `candidates`
    `[R, n]` are log-probs, with gradient, of the tokens in the column that the loss names as its `candidates`.
    """

    columns: Mapping[str, Tensor]
    offsets: Tensor
    total_lengths: Tensor | None = None
    candidates: Tensor | None = None


LossFn = Callable[["Tensor", "Tensor | None", LossInputs], "tuple[Tensor, dict[str, Tensor]]"]
"""(log_probs `[R]`, entropy `[R]` or None, inputs) -> (scalar, metrics of 0-d tensors)."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Loss of one algorithm: `policy - entropy_coef * entropy + kl_loss_coef * KL`.

    Which log-probs are the *old* ones (of the proximal policy) is fixed when the loss is made: the
    column `log_probs` (recomputed by the trainer), the engine's with `--use-rollout-logprobs` and where
    the algorithm compares with the sampling policy, or, where the weights do not change before the
    batch has been trained, the current ones without gradient.

    Attributes:
        columns: Columns that every call needs.
        needs_entropy: Whether the caller must compute the entropy of the sampling distribution.
    """

    spec: AlgorithmSpec
    settings: AlgorithmSettings
    true_on_policy: bool
    hooks: LossHooks = field(default_factory=LossHooks)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)

    @property
    def columns(self) -> tuple[str, ...]:
        names = ["loss_masks", "loss_weights", "advantages", "rollout_log_probs", *self.spec.loss_columns]
        names += self.spec.stage_columns
        if not self.true_on_policy and not self.compares_with_sampler:
            names.append("log_probs")
        if self.settings.tis_batch_normalize:
            names.append("tis_mean")
        if self.hooks.reducer is not None:
            names.append("reducer_scale")
        if self.settings.needs_reference:
            names.append("ref_log_probs")
        return (*names, *self.distillation.columns)

    @property
    def candidates(self) -> str | None:
        """The column of token ids whose log-probs every call needs in `LossInputs.candidates`."""
        return "teacher_topk_ids" if self.distillation.use_opd and self.distillation.opd_log_prob_top_k else None

    @property
    def needs_entropy(self) -> bool:
        return self.settings.entropy_coef != 0.0 or self.settings.use_rollout_entropy

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, inputs: LossInputs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted sum over the tokens of `inputs`; with no (unmasked) token it is 0 and still has a gradient.

        Raises:
            KeyError: a column of `columns` is missing.
            ValueError: entropy is needed and not given.
        """
        settings = self.settings
        masked = inputs.columns["loss_masks"] == 0
        weights = inputs.columns["loss_weights"]

        def column(name: str) -> Tensor:
            return inputs.columns[name].masked_fill(masked, 0.0)

        terms = self._terms(log_probs, inputs)
        current, old = terms.log_probs, terms.old_log_probs
        rollout = column("rollout_log_probs")
        policy = self.spec.policy_loss(terms, settings)
        corrected = corrected_loss(
            policy.per_token, terms, rollout, settings, self.hooks, total_lengths=inputs.total_lengths
        )
        token_metrics = policy.metrics | corrected.metrics
        policy_loss, per_token = self._reduced(corrected.per_token, corrected.keep, inputs)
        ratio = importance_ratio(current, old)
        abs_diff = (old - rollout).abs()
        token_metrics |= {
            "pg_loss": corrected.per_token,
            "ppo_kl": old - current,
            "ois": ratio,
            "train_rollout_logprob_abs_diff": abs_diff,
            "train_rollout_prob_abs_diff": (old.exp() - rollout.exp()).abs(),
        }
        if settings.kl_in_loss:
            kl = kl_penalty(
                current,
                column("ref_log_probs"),
                settings.kl_loss_type,
                ratio=ratio if settings.use_unbiased_kl else None,
            )
            per_token = per_token + settings.kl_loss_coef * kl
            token_metrics["kl_loss"] = kl
        if self.distillation.use_opd:
            token_metrics["opd_reverse_kl"] = old - column("teacher_log_probs")
        if self.distillation.in_loss:
            divergence = self._divergence(terms, inputs)
            per_token = per_token + self.distillation.opd_loss_coef * divergence
            token_metrics["opd_loss"] = divergence
        if settings.kl_in_reward:
            token_metrics["kl_reward"] = kl_penalty(old, column("ref_log_probs"), settings.kl_loss_type)
        if self.needs_entropy:
            if entropy is None:
                raise ValueError(f"--entropy-coef {settings.entropy_coef} needs the entropy of each token")
            entropy = entropy.masked_fill(masked, 0.0)
            per_token = per_token - settings.entropy_coef * entropy
        if entropy is not None:
            token_metrics["entropy_loss"] = entropy.masked_fill(masked, 0.0)

        loss = policy_loss + (weights * per_token).sum()
        metrics = corrected.sums | {name: (weights * value.detach()).sum() for name, value in token_metrics.items()}
        metrics["loss"] = loss.detach()
        metrics["loss_weight"] = weights.sum()
        metrics["loss_tokens/sum"] = (~masked).sum().to(weights.dtype)
        metrics["train_rollout_logprob_abs_diff/max"] = _max(abs_diff)
        metrics["ratio/max"] = _max(ratio * ~masked)
        return loss, metrics

    @property
    def compares_with_sampler(self) -> bool:
        """Whether the old policy is the one that sampled, as the engine reported its log-probs."""
        return self.settings.use_rollout_logprobs or self.spec.ratio_to_behaviour

    def _terms(self, log_probs: Tensor, inputs: LossInputs) -> PolicyTerms:
        masked = inputs.columns["loss_masks"] == 0
        current = log_probs.masked_fill(masked, 0.0)
        if self.compares_with_sampler:
            old = inputs.columns["rollout_log_probs"].masked_fill(masked, 0.0)
        elif self.true_on_policy:
            old = current.detach()
        else:
            old = inputs.columns["log_probs"].masked_fill(masked, 0.0)
        advantages = inputs.columns["advantages"].masked_fill(masked, 0.0)
        if self.distillation.in_advantage and self.candidates:
            # Log-probs of the teacher's choice are known here and nowhere else.
            assert inputs.candidates is not None
            teacher = inputs.columns["teacher_topk_log_probs"]
            advantages = distilled_advantages(advantages, inputs.candidates, teacher, ~masked, self.distillation)
        return PolicyTerms(
            log_probs=current,
            old_log_probs=old,
            advantages=advantages,
            mask=~masked,
            offsets=inputs.offsets,
            columns=inputs.columns,
        )

    def _divergence(self, terms: PolicyTerms, inputs: LossInputs) -> Tensor:
        """The teacher's term of the loss, `[R]`, 0 where masked."""
        teacher = "teacher_topk_log_probs" if self.candidates else "teacher_log_probs"
        divergence = distillation_loss(
            terms.log_probs,
            terms.old_log_probs,
            inputs.columns[teacher],
            self.distillation,
            candidates=inputs.candidates if self.candidates else None,
        )
        return divergence.masked_fill(~terms.mask, 0.0)

    def _reduced(self, per_token: Tensor, keep: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        """The policy loss as a user's reducer sums it, and what is left to the token weights `[R]`."""
        if self.hooks.reducer is None:
            return per_token.new_zeros(()), per_token
        if inputs.total_lengths is None:
            raise ValueError("--custom-pg-loss-reducer-function-path needs the total lengths of the samples")
        lengths = inputs.offsets.diff().tolist()
        masks = list(keep.to(per_token.dtype).split(lengths))
        reduce = self.hooks.reducer(
            inputs.total_lengths.tolist(), lengths, masks, self.settings.calculate_per_token_loss
        )
        scale = inputs.columns["reducer_scale"]
        # An empty micro-batch has no scale, and nothing to scale.
        reduced = reduce(per_token) * scale[0] if scale.numel() else per_token.sum()
        return reduced, per_token.new_zeros(per_token.shape)


def make_policy_loss(
    settings: AlgorithmSettings,
    *,
    true_on_policy: bool = False,
    args: Any = None,
    distillation: DistillationSettings | None = None,
) -> PolicyLoss:
    """The loss of the algorithm that `settings.advantage_estimator` names.

    Args:
        settings: The algorithm's flags.
        true_on_policy: The weights have not changed since the batch was sampled (one optimizer
            step per batch, no staleness), so the old log-probs are the current ones and need not
            be recomputed.
        args: What user functions get first: every flag as an attribute.
        distillation: Flags of a teacher's term.

    Raises:
        KeyError: unknown algorithm.
        ValueError: corrections together with `--use-rollout-logprobs`, or a path that names no function.
        ImportError: a user's module cannot be imported.
    """
    if settings.weights_policies and settings.use_rollout_logprobs:
        raise ValueError(
            "--use-tis and --use-decoupled-ppo correct the trainer's log-probs towards the engine's, "
            "--use-rollout-logprobs already uses the engine's: remove one of them"
        )
    hooks = LossHooks.load(settings, args)
    spec = registry.get(settings.advantage_estimator)
    return PolicyLoss(spec, settings, true_on_policy, hooks, distillation or DistillationSettings())


def _max(values: Tensor) -> Tensor:
    values = values.detach()
    return values.amax() if values.numel() else values.new_zeros(())

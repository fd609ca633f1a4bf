"""The model: Megatron's `GPTModel` from a `ModelSpec`, ending in one number per response token.

What lives here: the translation of the architecture into Megatron's configuration, and the two heads,
log-probabilities (a policy) and values (a critic), which see response positions only. What does not:
layers (`spec.py`), loading weights (`weights.py`).
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel import layers as parallel_layers
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from relax_engine.backends.megatron.device import compute_device
from relax_engine.backends.megatron.log_probs import VocabSlice, likeliest, token_log_probs
from relax_engine.backends.megatron.rows import RowGather
from relax_engine.backends.megatron.settings import ParallelLayout, RecomputeSettings
from relax_engine.backends.megatron.spec import block_spec
from relax_engine.checkpoint.families import ModelSpec
from relax_engine.checkpoint.mapping import padded_vocab_size


@dataclass(frozen=True, slots=True)
class ResponseTargets:
    """What the head computes: for each response token the position that predicts it, and the token.

    `tokens` is int64 `[R]`, or `[R, n]` where n tokens are scored at each position. Behind the first
    `count` (R) of both there is padding. `likeliest` asks for that many of the likeliest tokens as well.
    """

    predictors: RowGather
    tokens: Tensor
    count: int
    temperature: float
    entropy: bool
    likeliest: int = 0


class ResponseModel(GPTModel):
    """`GPTModel` whose output, given `labels=ResponseTargets`, is per response token.

    Hidden states elsewhere (prompts, last tokens) never meet the head.
    """

    def __init__(self, spec: ModelSpec, config: TransformerConfig) -> None:
        self.tensor_parallel = config.tensor_model_parallel_size
        super().__init__(
            config=config,
            transformer_layer_spec=block_spec(config),
            vocab_size=padded_vocab_size(spec.vocab_size, self.tensor_parallel),
            max_sequence_length=spec.max_position_embeddings,
            share_embeddings_and_output_weights=spec.tie_word_embeddings,
            position_embedding_type="none",  # PackedAttention applies RoPE
        )

    def _states(self, hidden_states: Tensor, labels: ResponseTargets, *, partial_gradients: bool) -> Tensor:
        """The states before each response token, `[R + padding, hidden]`, from `[tokens, 1, hidden]`.

        `partial_gradients`: whether each tensor-parallel rank's gradient of the result is a part of the sum, or the
        whole.
        """
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(
                hidden_states, tensor_parallel_output_grad=partial_gradients
            )
        return labels.predictors(hidden_states.squeeze(1))


class PolicyModel(ResponseModel):
    """`forward(...)` returns `[R]` log-probabilities, or rows `[rows, R]`, in this order: one of log-probabilities for
    each token that is scored at a position, one of entropies if asked for, and for each of the likeliest tokens one of
    ids (as float32, exact below 2^24) and one of log-probabilities."""

    def __init__(self, spec: ModelSpec, config: TransformerConfig) -> None:
        super().__init__(spec, config)
        columns = self.vocab_size // self.tensor_parallel
        start = parallel_state.get_tensor_model_parallel_rank() * columns
        group = parallel_state.get_tensor_model_parallel_group() if self.tensor_parallel > 1 else None
        self.vocab_slice = VocabSlice(start, max(0, min(columns, spec.vocab_size - start)), group)

    def _postprocess(self, hidden_states: Tensor, *, labels: ResponseTargets, **_: Any) -> Tensor:
        """Megatron's hook between the last layer and the output; `hidden_states` is `[tokens, 1, hidden]`."""
        selected = self._states(hidden_states, labels, partial_gradients=True)
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits = parallel_layers.linear_with_grad_accumulation_and_async_allreduce(
            selected,
            self.output_layer.weight if weight is None else weight,
            bias=None,
            gradient_accumulation_fusion=False,
            allreduce_dgrad=self.tensor_parallel > 1 and not self.config.sequence_parallel,
            sequence_parallel=False,
            tp_group=parallel_state.get_tensor_model_parallel_group(),
        )
        log_probs, entropy = token_log_probs(
            logits, labels.tokens, self.vocab_slice, temperature=labels.temperature, entropy=labels.entropy
        )
        rows = [log_probs] if log_probs.dim() == 1 else list(log_probs.unbind(1))
        if entropy is not None:
            rows.append(entropy)
        if labels.likeliest:
            ids, values = likeliest(logits, labels.likeliest, self.vocab_slice, temperature=labels.temperature)
            rows += [*ids.float().unbind(1), *values.unbind(1)]
        return rows[0][: labels.count] if len(rows) == 1 else torch.stack([row[: labels.count] for row in rows])


class ValueModel(ResponseModel):
    """`forward(...)` returns float32 scores of the state before each response token: `[R]` for one label (the values of
    a critic), `[labels, R]` for several.

    The head is one row per label without bias, the same on every tensor-parallel rank. A new one is zero, so that the
    first values are 0 and the trunk keeps its weights until the head has learnt something.
    """

    def __init__(self, spec: ModelSpec, config: TransformerConfig) -> None:
        # A tied model has no output layer of its own, which leaves the vocabulary projection out.
        super().__init__(dataclasses.replace(spec, tie_word_embeddings=True), config)
        self.score = torch.nn.Linear(spec.hidden_size, spec.num_labels or 1, bias=False)
        torch.nn.init.zeros_(self.score.weight)

    def _postprocess(self, hidden_states: Tensor, *, labels: ResponseTargets, **_: Any) -> Tensor:
        """Megatron's hook between the last layer and the output; `hidden_states` is `[tokens, 1, hidden]`."""
        selected = self._states(hidden_states, labels, partial_gradients=False)
        scores = torch.mm(self.score.weight.float(), selected.float().T)[:, : labels.count]
        return scores[0] if len(scores) == 1 else scores


def build_model(
    spec: ModelSpec, layout: ParallelLayout, *, dtype: torch.dtype, recompute: RecomputeSettings
) -> ResponseModel:
    """A randomly initialised model on `compute_device`: with values where `spec` has a score layer."""
    kind = PolicyModel if spec.num_labels is None else ValueModel
    with warnings.catch_warnings():
        # Megatron warns about defaults and calls of its own.
        warnings.filterwarnings("ignore", message="full scope is deprecated", category=UserWarning)
        warnings.filterwarnings("ignore", message="MLP requires ffn_hidden_size", category=DeprecationWarning)
        return kind(spec, _transformer_config(spec, layout, dtype, recompute)).to(compute_device(), dtype)


def _transformer_config(
    spec: ModelSpec, layout: ParallelLayout, dtype: torch.dtype, recompute: RecomputeSettings
) -> TransformerConfig:
    return TransformerConfig(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        ffn_hidden_size=spec.ffn_hidden_size,
        num_attention_heads=spec.num_attention_heads,
        num_query_groups=spec.num_query_groups,
        kv_channels=spec.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=spec.rms_norm_eps,
        qk_layernorm=spec.qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        use_te_activation_func=True,  # take the activation from the layer specification
        add_bias_linear=False,
        add_qkv_bias=spec.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=compute_device().type == "cpu",
        # The loss is a plain sum over all ranks' tokens: gradients are added up, never averaged.
        calculate_per_token_loss=True,
        # Fusions below are compiled or CUDA-only.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        recompute_granularity=recompute.granularity,
        recompute_method=recompute.method,
        recompute_num_layers=recompute.num_layers,
    )

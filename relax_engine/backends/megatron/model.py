"""The model: chunks of Megatron's `GPTModel` from a `ModelSpec`, the last ending in one number per response token.

What lives here: the two heads, log-probabilities (a policy) and values (a critic), which see response positions only,
and building the chunks. What does not: Megatron's configuration (`architecture.py`), layers (`spec.py`), loading
weights (`weights.py`).
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
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from relax_engine.backends.megatron.architecture import transformer_config
from relax_engine.backends.megatron.chunks import ModelChunks
from relax_engine.backends.megatron.device import compute_device
from relax_engine.backends.megatron.log_probs import VocabSlice, likeliest, token_log_probs
from relax_engine.backends.megatron.media_model import Embedded, add_tower
from relax_engine.backends.megatron.rows import RowGather
from relax_engine.backends.megatron.settings import RecomputeSettings
from relax_engine.backends.megatron.spec import PackedSequences, block_spec
from relax_engine.checkpoint.divisibility import misfits
from relax_engine.checkpoint.mapping import padded_vocab_size
from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.config.layout import ParallelLayout


@dataclass(frozen=True, slots=True)
class ResponseTargets:
    """What the head computes: for each response token the position that predicts it, and the token.

    `tokens` is int64 `[r]`, or `[r, n]` where n tokens are scored at each position, padded to the same size on all
    context-parallel ranks. `order` says where the `[R]` response tokens stand in all ranks' `[r]`, end to end; None
    where there is one rank, whose first `count` they are. `likeliest` asks for that many of the likeliest tokens, too.
    """

    predictors: RowGather
    tokens: Tensor
    count: int
    order: Tensor | None
    temperature: float
    entropy: bool
    likeliest: int = 0


class ResponseModel(GPTModel):
    """`GPTModel` whose output, given `labels=ResponseTargets`, is per response token.

    Hidden states elsewhere (prompts, last tokens) never meet the head.
    """

    def __init__(self, spec: ModelSpec, config: TransformerConfig, virtual_stage: int | None) -> None:
        self.tensor_parallel = config.tensor_model_parallel_size
        super().__init__(
            config=config,
            transformer_layer_spec=block_spec(config, spec, virtual_stage),
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual_stage),
            vp_stage=virtual_stage,
            vocab_size=padded_vocab_size(spec.vocab_size, self.tensor_parallel),
            max_sequence_length=spec.max_position_embeddings,
            share_embeddings_and_output_weights=spec.tie_word_embeddings,
            position_embedding_type="none",  # PackedAttention applies RoPE
            scatter_embedding_sequence_parallel=spec.media is None,  # media are merged into whole embeddings
        )

    def _preprocess(
        self, input_ids: Tensor, position_ids: None, *, packed_seq_params: PackedSequences, **rest: Any
    ) -> tuple[Any, ...]:
        """Megatron's hook before the first layer."""
        if hasattr(self, "media"):
            text = self.embedding(input_ids=input_ids, position_ids=position_ids)
            parallel = self.config.sequence_parallel
            embedded = Embedded(text, self.media, packed_seq_params.media, sequence_parallel=parallel)
            rest["decoder_input"] = embedded.hidden
            packed_seq_params.deepstack = embedded.deepstack
        whole: tuple[Any, ...] = super()._preprocess(
            input_ids, position_ids, packed_seq_params=packed_seq_params, **rest
        )
        return whole

    def _states(self, hidden_states: Tensor, labels: ResponseTargets, *, partial_gradients: bool) -> Tensor:
        """The states before this rank's response tokens, `[r, hidden]`, from `[tokens, 1, hidden]`.

        `partial_gradients`: whether each tensor-parallel rank's gradient of the result is a part of the sum, or the
        whole.
        """
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(
                hidden_states, tensor_parallel_output_grad=partial_gradients
            )
        return labels.predictors(hidden_states.squeeze(1))

    def _of_all_ranks(self, rows: Tensor, labels: ResponseTargets) -> Tensor:
        """`[..., R]` from the `[..., r]` of each context-parallel rank; every rank goes on with all of them."""
        if labels.order is None:
            return rows[..., : labels.count]
        group = parallel_state.get_context_parallel_group()
        last = rows.movedim(-1, 0).contiguous()
        gathered = gather_from_sequence_parallel_region(last, tensor_parallel_output_grad=False, group=group)
        return gathered.index_select(0, labels.order).movedim(0, -1)


class PolicyModel(ResponseModel):
    """`forward(...)` returns `[R]` log-probabilities, or rows `[rows, R]`, in this order: one of log-probabilities for
    each token that is scored at a position, one of entropies if asked for, and for each of the likeliest tokens one of
    ids (as float32, exact below 2^24) and one of log-probabilities."""

    def __init__(self, spec: ModelSpec, config: TransformerConfig, virtual_stage: int | None) -> None:
        super().__init__(spec, config, virtual_stage)
        columns = self.vocab_size // self.tensor_parallel
        start = parallel_state.get_tensor_model_parallel_rank() * columns
        group = parallel_state.get_tensor_model_parallel_group() if self.tensor_parallel > 1 else None
        self.vocab_slice = VocabSlice(start, max(0, min(columns, spec.vocab_size - start)), group)

    def _postprocess(self, hidden_states: Tensor, *, labels: ResponseTargets, **_: Any) -> Tensor:
        """Megatron's hook between the last layer and the output; `hidden_states` is `[tokens, 1, hidden]`."""
        if not self.post_process:
            return hidden_states
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
        return self._of_all_ranks(rows[0] if len(rows) == 1 else torch.stack(rows), labels)


class ValueModel(ResponseModel):
    """`forward(...)` returns float32 scores of the state before each response token: `[R]` for one label (the values of
    a critic), `[labels, R]` for several.

    The head is one row per label without bias, the same on every tensor-parallel rank. A new one is zero, so that the
    first values are 0 and the trunk keeps its weights until the head has learnt something.
    """

    def __init__(self, spec: ModelSpec, config: TransformerConfig, virtual_stage: int | None) -> None:
        super().__init__(dataclasses.replace(spec, tie_word_embeddings=False), config, virtual_stage)
        if self.post_process:
            del self.output_layer  # the vocabulary projection
            self.score = torch.nn.Linear(spec.hidden_size, spec.num_labels or 1, bias=False)
            torch.nn.init.zeros_(self.score.weight)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Megatron's, but for that of a language model, which looks for a vocabulary projection."""
        content: dict[str, Any] = MegatronModule.sharded_state_dict(self, prefix, sharded_offsets, metadata)
        return content

    def _postprocess(self, hidden_states: Tensor, *, labels: ResponseTargets, **_: Any) -> Tensor:
        """Megatron's hook between the last layer and the output; `hidden_states` is `[tokens, 1, hidden]`."""
        if not self.post_process:
            return hidden_states
        selected = self._states(hidden_states, labels, partial_gradients=False)
        scores = torch.mm(self.score.weight.float(), selected.float().T)
        scores = self._of_all_ranks(scores, labels)
        return scores[0] if len(scores) == 1 else scores


def build_model(
    spec: ModelSpec, layout: ParallelLayout, *, dtype: torch.dtype, recompute: RecomputeSettings
) -> ModelChunks:
    """This rank's chunks of a randomly initialised model, on `compute_device`: with values where `spec` has a score
    layer.

    Raises:
        ValueError: the model's sizes do not divide over the layout.
    """
    problems = [problem for _, problem in misfits(spec, layout)]
    if problems:
        raise ValueError(f"{spec.architecture} cannot be spread over {layout}: {'; '.join(problems)}")
    kind = PolicyModel if spec.num_labels is None else ValueModel
    with warnings.catch_warnings():
        # Megatron warns about defaults and calls of its own.
        warnings.filterwarnings("ignore", message="full scope is deprecated", category=UserWarning)
        warnings.filterwarnings("ignore", message="MLP requires ffn_hidden_size", category=DeprecationWarning)
        config = transformer_config(spec, layout, dtype, recompute)
        stages = range(layout.virtual) if layout.virtual > 1 else [None]
        chunks = [kind(spec, config, stage).to(compute_device(), dtype) for stage in stages]
    if spec.media is not None and chunks[0].pre_process:
        add_tower(chunks[0], spec.media, dtype=dtype, device=compute_device())
    return ModelChunks(chunks)

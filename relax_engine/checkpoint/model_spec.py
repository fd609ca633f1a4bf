"""What the training backend, the embedded engine and the weight mapping need to know of a model.

What lives here: plain values. What does not: reading them from a `config.json` (`relax_engine.checkpoint.families`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relax_engine.checkpoint.rope import RopeSpec
from relax_engine.multimodal.families import MediaFamily


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The mixture of experts that stands in the place of a layer's MLP.

    Each token goes to `top_k` of `count` experts of width `ffn_hidden_size`, by the softmax of the router's logits, or
    by their sigmoids. `normalise` rescales the chosen scores to sum to 1, `scale` multiplies them. Shared experts see
    every token: one MLP of width `shared_ffn_hidden_size` (None: there is none), times a sigmoid gate of the token
    where `shared_gate`. `dense_layers` are layers that have a plain MLP instead.

    With `bias`, one number per expert is added to the scores for the choice alone. Where `top_groups` are less than
    `groups`, experts are chosen from the groups of neighbours that are best by the sum of their `group_best` largest
    scores.
    """

    count: int
    top_k: int
    ffn_hidden_size: int
    normalise: bool
    shared_ffn_hidden_size: int | None = None
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()
    scores: Literal["softmax", "sigmoid"] = "softmax"
    bias: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    scale: float = 1.0
    shared_name: str = "mlp.shared_expert"
    """The shared experts' module in Hugging Face's names, without the layer's prefix."""
    fused_files: bool = False
    """Whether files hold the experts of a layer as two tensors; see `relax_engine.checkpoint.fused_experts`."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    Keys and values of all heads are projections of one normalised vector of `kv_rank` elements per token; queries of
    one of `q_rank`, or of the hidden state where that is None. A head's query and key have `plain_dim` elements without
    positions and `rotary_dim` with; the latter of the key are the same for all heads. Its value has `value_dim`. Norms
    of the latent vectors have `norm_eps`. `softmax_mscale` is YaRN's temperature of the scores, whose square multiplies
    them.
    """

    kv_rank: int
    q_rank: int | None
    plain_dim: int
    rotary_dim: int
    value_dim: int
    norm_eps: float = 1e-6
    softmax_mscale: float = 1.0

    @property
    def softmax_scale(self) -> float:
        """What scores are multiplied with."""
        return self.softmax_mscale**2 / (self.plain_dim + self.rotary_dim) ** 0.5


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer: RMSNorm, rotary attention with grouped KV heads or latent ones, SwiGLU, or experts of
    SwiGLU.

    Sizes are element counts; with latent attention `head_dim` is a query's. `dtype` is the checkpoint's name for it
    (`float32`, `bfloat16`, ...). `num_labels` is the width of a score layer that stands in the place of the vocabulary
    projection; None for a language model. `sandwich_norms`: the outputs of attention and MLP are normalised, too.
    `fused_gate_up`: Hugging Face stores both projections of the MLP as one tensor. `mtp_layers` layers for the
    prediction of further tokens stand behind the others in the checkpoint; they are carried along, not computed.
    `media` is what the model sees and hears; None for text alone.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool
    qk_norm: bool = False
    qkv_bias: bool = False
    dtype: str = "float32"
    num_labels: int | None = None
    experts: ExpertSpec | None = None
    latent: LatentSpec | None = None
    output_bias: bool = False
    sandwich_norms: bool = False
    fused_gate_up: bool = False
    mtp_layers: int = 0
    media: MediaFamily | None = None

    @property
    def rotary_head_dim(self) -> int:
        """The part of a head that RoPE is applied to, wholly or in part."""
        return self.head_dim if self.latent is None else self.latent.rotary_dim

    def has_experts(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) is a mixture of experts."""
        return self.experts is not None and layer not in self.experts.dense_layers

"""Arithmetic of a model's passes, and what a device could do at most: what utilization is computed from.

What lives here: formulas and published peaks. What does not: which passes were made, and how long they took
(`relax_engine.components.throughput`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from relax_engine.checkpoint.model_spec import ModelSpec

PEAK_TFLOPS = MappingProxyType(
    {
        "GB200": 2500.0,
        "B200": 2250.0,
        "H200": 989.0,
        "H100 PCIe": 756.0,
        "H100": 989.0,
        "H800": 989.0,
        "H20": 148.0,
        "A100": 312.0,
        "A800": 312.0,
        "L40S": 362.0,
        "L40": 181.0,
        "L20": 119.5,
        "L4": 121.0,
        "A40": 149.7,
        "A10": 125.0,
        "RTX 4090": 165.2,
    }
)
"""Dense bfloat16 with float32 accumulation, of NVIDIA's data sheets, by what the device's name contains; the first that
fits counts."""

BACKWARD = 2.0
"""A backward pass has two matrix products for each one of the forward pass."""


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Floating-point operations of a language model, by the formula of PaLM (Chowdhery et al. 2022, arXiv:2204.02311,
    appendix B): `6 N + 12 L H Q T` a token for forward and backward together, a third of it for the forward pass.

    Attributes:
        weights: `N`, the weights that a token is multiplied with: of experts those it goes to, without the embedding.
        attention: `L H Q`, layers times heads times the size of a head, queries and values averaged.

    Attention counts all `T` positions for each token of a sequence of `T`, also those that a causal mask hides. What is
    computed again in the backward pass, and vision and audio towers, do not count.
    """

    weights: float
    attention: float

    @classmethod
    def of(cls, spec: ModelSpec) -> ModelFlops:
        """The formula's constants for an architecture."""
        layers = sum(_attention(spec) + _feed_forward(spec, layer) for layer in range(spec.num_layers))
        outputs = spec.vocab_size if spec.num_labels is None else spec.num_labels
        value_dim = spec.head_dim if spec.latent is None else spec.latent.value_dim
        mixed = spec.num_attention_heads * (spec.head_dim + value_dim) / 2
        return cls(float(layers + spec.hidden_size * outputs), spec.num_layers * mixed)

    def forward(self, lengths: np.ndarray) -> float:
        """Of one forward pass over sequences of `lengths` tokens each."""
        tokens = lengths.astype(np.float64)
        return float(2.0 * self.weights * tokens.sum() + 4.0 * self.attention * np.square(tokens).sum())


def peak_tflops(device_name: str | None) -> float | None:
    """What a device can do at most in bfloat16, in 10^12 operations a second; None for one that is not known."""
    return next((peak for name, peak in PEAK_TFLOPS.items() if device_name is not None and name in device_name), None)


def _attention(spec: ModelSpec) -> int:
    """Weights of a layer's attention."""
    heads, latent = spec.num_attention_heads * spec.head_dim, spec.latent
    if latent is None:  # queries and output; keys and values
        return 2 * spec.hidden_size * (heads + spec.num_query_groups * spec.head_dim)
    into = spec.hidden_size if latent.q_rank is None else latent.q_rank
    queries = into * heads + (0 if latent.q_rank is None else spec.hidden_size * latent.q_rank)
    shared = spec.hidden_size * (latent.kv_rank + latent.rotary_dim)
    own = spec.num_attention_heads * (latent.kv_rank * (latent.plain_dim + latent.value_dim))
    return queries + shared + own + spec.num_attention_heads * latent.value_dim * spec.hidden_size


def _feed_forward(spec: ModelSpec, layer: int) -> int:
    """Weights of a layer's MLP, or of its router and the experts that a token goes to."""
    experts = spec.experts
    if experts is None or not spec.has_experts(layer):
        return 3 * spec.hidden_size * spec.ffn_hidden_size
    width = experts.top_k * experts.ffn_hidden_size + (experts.shared_ffn_hidden_size or 0)
    return spec.hidden_size * (3 * width + experts.count + int(experts.shared_gate))

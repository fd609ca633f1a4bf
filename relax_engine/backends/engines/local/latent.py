"""Latent attention (DeepSeek-V2, arXiv 2405.04434) as attention of all heads to one key/value head.

What lives here: the projections on both sides of it. Scores of a head's plain part are `q^T W_k c` with the latent
vector c of a token, and its output is `W_v` times a weighted sum of such vectors: so `W_k` moves to the query and `W_v`
behind attention, and what is cached of a token is its rotary key and c, the same for all heads. What does not:
attention, which is that of other models.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from relax_engine.backends.engines.local.linear import Linear
from relax_engine.backends.engines.local.norm import normalised
from relax_engine.checkpoint.model_spec import LatentSpec, ModelSpec


class LatentProjection:
    """Normalised hidden states `[rows, hidden]` to queries, key and value of the one head, `[rows, (heads + 2) * d]`.

    A query and a key begin with the rotary part. A value is the key with zeros there.
    """

    def __init__(self, latent: LatentSpec, down: Linear, up: Linear | None, keys: Tensor) -> None:
        """`down` gives the queries (or their latent vector), the latent vector and the rotary key; `up` is of the
        queries' latent vector; `keys` is `W_k`, `[heads, plain_dim, kv_rank]`."""
        self._latent, self._down, self._up, self._keys = latent, down, up, keys

    def __call__(self, x: Tensor) -> Tensor:
        latent, (heads, plain_dim, rank) = self._latent, self._keys.shape
        projected = self._down(x)
        of_queries = projected.shape[1] - rank - latent.rotary_dim
        query, compressed, rotary = projected.split([of_queries, rank, latent.rotary_dim], dim=1)
        if self._up is not None:
            query = self._up(normalised(query, latent.norm_eps))
        plain, turned = query.unflatten(1, (heads, -1)).split([plain_dim, latent.rotary_dim], dim=2)
        out = x.new_zeros(len(x), heads + 2, latent.rotary_dim + rank)
        out[:, :heads, : latent.rotary_dim] = turned
        out[:, :heads, latent.rotary_dim :] = torch.bmm(plain.transpose(0, 1), self._keys).transpose(0, 1)
        out[:, heads, : latent.rotary_dim] = rotary
        out[:, heads:, latent.rotary_dim :] = normalised(compressed, latent.norm_eps)[:, None]
        return out.flatten(1)


class LatentOutput:
    """What all heads attended to, `[rows, heads * d]`, to `[rows, hidden]`."""

    def __init__(self, latent: LatentSpec, values: Tensor, out: Linear) -> None:
        """`values` is `W_v`, `[heads, kv_rank, value_dim]`."""
        self._latent, self._values, self._out = latent, values, out

    def __call__(self, x: Tensor) -> Tensor:
        attended = x.unflatten(1, (len(self._values), -1))[..., self._latent.rotary_dim :]
        return self._out(torch.bmm(attended.transpose(0, 1), self._values).transpose(0, 1).flatten(1))


def fuse_latent(
    spec: ModelSpec,
    get: Callable[[str], Tensor],
    linear: Callable[[Tensor], Linear],
    pairs: Callable[[Tensor, int], Tensor],
    *,
    norm: Tensor,
    dtype: torch.dtype,
) -> tuple[LatentProjection, LatentOutput]:
    """Both projections of one layer, norms folded into what follows and the softmax scale into the queries.

    Args:
        get: a tensor of the layer's attention by name, float32.
        linear: a product with a matrix.
        pairs: reorders the rows of heads of that many dimensions so that rotated pairs are neighbours.
        norm: the weight of the norm before attention.
    """
    latent = spec.latent
    assert latent is not None
    heads, plain, rank = spec.num_attention_heads, latent.plain_dim, latent.kv_rank
    weight = get("kv_b_proj.weight").unflatten(0, (heads, -1)) * get("kv_a_layernorm.weight")
    keys, values = weight.split([plain, latent.value_dim], dim=1)
    compress, rotary = get("kv_a_proj_with_mqa.weight").split([rank, latent.rotary_dim])
    queries = get("q_proj.weight" if latent.q_rank is None else "q_b_proj.weight") * latent.softmax_scale
    unturned, turned = queries.unflatten(0, (heads, -1)).split([plain, latent.rotary_dim], dim=1)
    turned = pairs(turned.flatten(0, 1), latent.rotary_dim).unflatten(0, (heads, -1))
    queries = torch.cat([unturned, turned], dim=1).flatten(0, 1)
    up = None
    if latent.q_rank is not None:
        up = linear(queries * get("q_a_layernorm.weight"))
        queries = get("q_a_proj.weight")
    down = linear(torch.cat([queries, compress, pairs(rotary, latent.rotary_dim)]) * norm)
    return (
        LatentProjection(latent, down, up, keys.to(dtype).contiguous()),
        LatentOutput(latent, values.transpose(1, 2).to(dtype).contiguous(), linear(get("o_proj.weight"))),
    )

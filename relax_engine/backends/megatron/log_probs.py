"""Log-probabilities and entropy of the sampling distribution from vocabulary-parallel logits.

What lives here: the fused log-softmax, gather and entropy over tensor-parallel slices of the
vocabulary, with its gradient. What does not: the model, and which positions are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class VocabSlice:
    """The columns of the vocabulary that this rank holds.

    `start` is the first token id, `valid` the number of real tokens (columns behind them are padding),
    `group` the ranks that hold the other slices, or None when there are none.
    """

    start: int
    valid: int
    group: dist.ProcessGroup | None

    def reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """`tensor` reduced over all slices, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, operation, group=self.group)
        return tensor


def token_log_probs(
    logits: Tensor, targets: Tensor, vocab: VocabSlice, *, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target, and optionally the entropy, under `softmax(logits / temperature)`.

    Args:
        logits: `[R, columns]`, this rank's slice.
        targets: int64 `[R]`, token ids of the whole vocabulary; or several for each row, `[R, n]`.
        temperature: of sampling, above 0.

    Returns:
        `(log_probs, entropy)`, float32 natural logarithms in the shape of `targets` and `[R]`, the same
        on all ranks of the group; entropy is None unless asked for. Both are differentiable in `logits`.

    Raises:
        ValueError: the temperature is not above 0.
    """
    if temperature <= 0.0:
        raise ValueError(f"log-probabilities need a temperature above 0, got {temperature}")
    several = targets if targets.dim() == 2 else targets[:, None]
    log_probs, entropies = _TokenLogProbs.apply(logits, several, vocab, temperature, entropy)
    return log_probs.view(targets.shape), entropies if entropy else None


@torch.no_grad()
def likeliest(logits: Tensor, count: int, vocab: VocabSlice, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of each row and their log-probabilities, likeliest first.

    Args:
        logits: `[R, columns]`, this rank's slice.
        count: at most the size of the vocabulary.

    Returns:
        `(ids, log_probs)`, int64 and float32 `[R, count]`, the same on all ranks of the group.
    """
    real = logits[:, : vocab.valid]
    found = real.topk(min(count, real.shape[1]), dim=1)
    values, ids = found.values.float(), found.indices + vocab.start
    if vocab.group is not None:
        size = dist.get_world_size(vocab.group)
        missing = count - values.shape[1]  # a slice may hold fewer real tokens than are asked for
        values = torch.nn.functional.pad(values, (0, missing), value=float("-inf")).contiguous()
        ids = torch.nn.functional.pad(ids, (0, missing)).contiguous()
        all_values, all_ids = ([torch.empty_like(part) for _ in range(size)] for part in (values, ids))
        dist.all_gather(all_values, values, group=vocab.group)
        dist.all_gather(all_ids, ids, group=vocab.group)
        values, order = torch.cat(all_values, dim=1).topk(count, dim=1)
        ids = torch.cat(all_ids, dim=1).gather(1, order)
    return ids, token_log_probs(logits, ids, vocab, temperature=temperature)[0]


class _TokenLogProbs(torch.autograd.Function):
    """Keeps one float32 copy of the slice (the log-probabilities) for the gradient.

    With `l = log softmax(z)`, `p = exp(l)`, `H = -sum p l`:
    `d l_t / d z_j = [j = t] - p_j` and `d H / d z_j = -p_j (l_j + H)`.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, vocab: VocabSlice, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        scaled = logits.float() / temperature
        if vocab.valid < scaled.shape[1]:
            scaled[:, vocab.valid :] = torch.finfo(torch.float32).min
        peak = vocab.reduce(scaled.amax(dim=1), dist.ReduceOp.MAX)
        scaled -= peak[:, None]
        log_total = vocab.reduce(scaled.exp().sum(dim=1)).log_()
        log_probs_all = scaled.sub_(log_total[:, None])
        local = targets - vocab.start
        elsewhere = (local < 0) | (local >= logits.shape[1])
        local = local.masked_fill(elsewhere, 0)
        log_probs = log_probs_all.gather(1, local).masked_fill_(elsewhere, 0.0)
        log_probs = vocab.reduce(log_probs)
        if entropy:
            entropies = vocab.reduce((log_probs_all.exp() * log_probs_all).sum(dim=1).neg_())
        else:
            entropies = log_probs.new_empty(0)
        ctx.save_for_backward(log_probs_all, local, elsewhere, entropies)
        ctx.temperature, ctx.entropy, ctx.dtype = temperature, entropy, logits.dtype
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        log_probs_all, local, elsewhere, entropies = ctx.saved_tensors
        of_log_probs, of_entropy = grads
        of_row = of_log_probs.sum(dim=1, keepdim=True)
        grad = log_probs_all.exp()
        if ctx.entropy:
            grad *= (log_probs_all + entropies[:, None]).mul_(-of_entropy[:, None]).sub_(of_row)
        else:
            grad *= -of_row
        grad.scatter_add_(1, local, of_log_probs.masked_fill(elsewhere, 0.0))
        return grad.div_(ctx.temperature).to(ctx.dtype), None, None, None, None

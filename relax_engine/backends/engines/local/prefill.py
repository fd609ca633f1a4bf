"""Computing prefixes: keys, values, the last hidden state and, when asked, the log-probs of the prompt.

Prompts of one call are padded on the left to a common length, computed in chunks of bounded size, and
handed back; identical prompts are the caller's business (it passes each once).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relax_engine.backends.engines.local.decoder import Arena, Decoder, Workspace
from relax_engine.backends.engines.local.linear import round_rows
from relax_engine.backends.engines.local.media import PrefixMedia
from relax_engine.backends.engines.local.placed_media import PlacedMedia

CHUNK_TOKENS = 2048
BLOCK_TOKENS = 8192
_HEAD_ROWS = 256
_ROW_STEP = 64


@dataclass(slots=True)
class Prefilled:
    """Per-layer keys `[prompts, kv, dim, length]` and values `[prompts, kv, length, dim]`, left-padded;
    `hidden` `[prompts, hidden]` of the last token; `log_probs[i]` float32 `[length_i - 1]` or None; `likeliest[i]` ids
    and log-probs `[length_i - 1, k]` of the likeliest tokens in the place of each but the first, or None."""

    keys: list[Tensor]
    values: list[Tensor]
    hidden: Tensor
    log_probs: list[Tensor | None]
    likeliest: list[tuple[Tensor, Tensor] | None]
    experts: list[Tensor] | None = None
    """Of each prompt the experts that its tokens were sent to, int16 `[length_i, layers * experts for each]`."""

    def top(self, prompt: int, tokens: int, count: int) -> list[list[tuple[float, int]]]:
        """`(log-prob, id)` of the `count` likeliest tokens in the place of the first `tokens` but one; [] for 0."""
        found = self.likeliest[prompt]
        if found is None or count == 0:
            return []
        ids, values = (part[:tokens, :count].tolist() for part in found)
        return [list(zip(*pair, strict=True)) for pair in zip(values, ids, strict=True)]


def blocks(lengths: Sequence[int]) -> list[range]:
    """Consecutive prompts that are computed together: padded size at most `BLOCK_TOKENS`, at least one."""
    result, first, longest = [], 0, 0
    for index, length in enumerate(lengths):
        longest = max(longest, length)
        if index > first and longest * (index - first + 1) > BLOCK_TOKENS:
            result.append(range(first, index))
            first, longest = index, length
    if lengths:
        result.append(range(first, len(lengths)))
    return result


def prefill(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    score: Sequence[bool],
    top: Sequence[int],
    media: Sequence[PrefixMedia | None],
) -> Prefilled:
    """Run the model over `prompts`; `score[i]` asks for the log-probs (temperature 1) of prompt i's tokens, and
    `top[i]` for that many of the likeliest tokens in their place; `media[i]` stands in place of its placeholders."""
    arch, device = decoder.arch, decoder.device
    count, length = len(prompts), max(len(prompt) for prompt in prompts)
    tokens = torch.tensor([[0] * (length - len(p)) + list(p) for p in prompts], device=device)
    pads = torch.tensor([length - len(p) for p in prompts], device=device)
    positions = (torch.arange(length, device=device) - pads[:, None]).clamp_(min=0)
    placed = PlacedMedia(media, positions, pads) if any(media) else None
    kv, dim = arch.num_kv_heads, arch.head_dim
    keys = [
        torch.empty(count, kv, dim, length, dtype=decoder.dtype, device=device) for _ in range(arch.spec.num_layers)
    ]
    values = [
        torch.empty(count, kv, length, dim, dtype=decoder.dtype, device=device) for _ in range(arch.spec.num_layers)
    ]
    collected: list[list[Tensor]] = [[] for _ in prompts]
    chosen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in prompts]
    sent: list[Tensor] = []
    step = max(1, CHUNK_TOKENS // count)
    arena = Arena()
    hidden = torch.empty(count, arch.spec.hidden_size, dtype=decoder.dtype, device=device)
    for begin in range(0, length, step):
        end = min(begin + step, length)
        used = count * (end - begin)
        rows = round_rows(used, _ROW_STEP)
        ws = Workspace(arch, rows, arena, dtype=decoder.dtype, device=device)
        inject = None
        if placed is None:
            rope = decoder.rope(F.pad(positions[:, begin:end].reshape(-1), (0, rows - used)), length)
        else:
            rope = decoder.media_rope(F.pad(placed.positions[..., begin:end].reshape(3, -1), (0, rows - used)))
            inject = placed.injection(begin, end)
        attend = _ChunkAttention(keys, values, pads, begin, end)
        decoder.forward(ws, F.pad(tokens[:, begin:end].reshape(-1), (0, rows - used)), rope, attend, inject)
        if decoder.routed is not None:
            sent.append(decoder.routed.taken(used).cpu().view(count, end - begin, -1))
        states = ws.x[:used].view(count, end - begin, -1)
        for index, wanted in enumerate(score):
            if wanted:
                following = tokens[index, begin + 1 : end + 1]
                for scores, likeliest in _log_probs(decoder, states[index, : len(following)], following, top[index]):
                    collected[index].append(scores)
                    chosen[index].append(likeliest)
        if end == length:
            hidden.copy_(states[:, -1])
    log_probs: list[Tensor | None] = []
    likeliest_of: list[tuple[Tensor, Tensor] | None] = []
    for index, wanted in enumerate(score):
        pad = int(pads[index])
        log_probs.append(torch.cat(collected[index])[pad:] if wanted else None)
        if wanted and top[index]:
            pieces = [torch.cat([pair[part] for pair in chosen[index]])[pad:] for part in (0, 1)]
            likeliest_of.append((pieces[0], pieces[1]))
        else:
            likeliest_of.append(None)
    whole = torch.cat(sent, dim=1) if sent else None
    experts = None if whole is None else [whole[index, int(pad) :] for index, pad in enumerate(pads)]
    return Prefilled(keys, values, hidden, log_probs, likeliest_of, experts)


class _ChunkAttention:
    """Causal attention of columns `[begin, end)` over `[0, end)`, blind to the padding on the left."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], pads: Tensor, begin: int, end: int) -> None:
        self.keys, self.values, self.begin, self.end = keys, values, begin, end
        column = torch.arange(end, device=pads.device)
        query = column[begin:, None]
        visible = (column <= query) & (column >= pads[:, None, None])
        # A padding query sees itself, so that its softmax is defined.
        self.mask = (visible | (column == query))[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        count, kv, dim, _ = keys.shape
        size, group = self.end - self.begin, q.shape[1]
        used, padding = count * size, k.shape[0] - count * size
        keys[..., self.begin : self.end] = k[:used].unflatten(0, (count, size)).permute(0, 2, 3, 1)
        values[:, :, self.begin : self.end] = v[:used].unflatten(0, (count, size)).transpose(1, 2)
        queries = (
            q[: used * kv].unflatten(0, (count, size, kv)).permute(0, 2, 3, 1, 4).reshape(count, kv * group, size, dim)
        )
        seen_keys = keys[..., : self.end].transpose(2, 3).repeat_interleave(group, dim=1)
        seen_values = values[:, :, : self.end].repeat_interleave(group, dim=1)
        result = F.scaled_dot_product_attention(queries, seen_keys, seen_values, attn_mask=self.mask, scale=1.0)
        return F.pad(result.transpose(1, 2).reshape(used, kv * group * dim), (0, 0, 0, padding))


def _log_probs(
    decoder: Decoder, states: Tensor, following: Tensor, top: int
) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
    """Log-probs float32 `[n]` of the tokens `following` (int64 `[n]`) after hidden `states` `[n, hidden]`, with ids and
    log-probs `[n, top]` of the likeliest tokens; in pieces of n."""
    for first in range(0, len(following), _HEAD_ROWS):
        rows = torch.log_softmax(decoder.head(states[first : first + _HEAD_ROWS]), -1)
        values, ids = rows.topk(top, dim=-1)
        yield rows.gather(1, following[first : first + _HEAD_ROWS, None]).squeeze(1), (ids, values)
    if len(following) == 0:
        empty = torch.empty(0, top, device=states.device)
        yield empty.new_empty(0), (empty.long(), empty)

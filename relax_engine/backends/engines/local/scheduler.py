"""Continuous batching: which requests own a cache row, and when one leaves it.

Single-threaded and free of I/O: `engine.py` drives it from its thread. Rows `0..n-1` are the running
requests, with holes (computed, ignored) that keep n a multiple of `ROW_STEP`. A row that finishes stays as a
hole until a whole step of rows can go, then the last rows move into the holes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relax_engine.backends.engines.local.decode import DecodePlan, StopTable, output_uniforms
from relax_engine.backends.engines.local.decoder import Arena, Decoder
from relax_engine.backends.engines.local.durations import DurationHistogram
from relax_engine.backends.engines.local.kv_cache import KVCache
from relax_engine.backends.engines.local.linear import round_rows
from relax_engine.backends.engines.local.media import MediaPrompt
from relax_engine.backends.engines.local.prefill import Prefilled, blocks, prefill
from relax_engine.backends.engines.local.request import Batch, PrefixKey, Request
from relax_engine.backends.engines.local.sampling import RowSampling, sample
from relax_engine.backends.engines.local.tokenizer import TextDecoder

_HEADROOM = 32


class Scheduler:
    """Admits, steps and finishes requests.

    Invariants: every live request is in exactly one of `waiting` and `rows`; `rows[i]` owns cache row i;
    `rows[i].finish` is set exactly for holes. Trace, two rows: admit a, b -> rows [a, b]; a draws its
    stop token -> a reported, rows [a (hole), b]; compaction moves b -> rows [b].
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        *,
        max_running: int,
        version: str,
        text: TextDecoder | None,
    ) -> None:
        self.decoder, self.cache, self.version = decoder, cache, version
        self.max_running, self._text = max_running, text
        self.waiting: deque[Request] = deque()
        self.rows: list[Request] = []
        self._batches: dict[Request, Batch] = {}
        self._arena = Arena()
        self._plan: DecodePlan | None = None
        self._sampling: RowSampling | None = None
        self._stops: StopTable | None = None
        self._next_end = 0
        self._watch_text: list[Request] = []
        self.generated_tokens = self.prompt_tokens = self.finished_requests = self.retracted_requests = 0
        self.queue_time, self.ttft = DurationHistogram(), DurationHistogram()

    # -- entry points ------------------------------------------------------------------------------

    @property
    def running(self) -> list[Request]:
        """Requests that own a row, holes excluded."""
        return [request for request in self.rows if request.finish is None]

    @property
    def busy(self) -> bool:
        """True while there is anything to compute."""
        return bool(self.waiting or self.rows)

    def submit(self, batch: Batch) -> None:
        """Queue a batch; its requests are admitted in order."""
        for request in batch.requests:
            self._batches[request] = batch
        self.waiting.extend(batch.requests)

    def abort(self, selected: Callable[[Request], bool], message: str) -> int:
        """Finish the selected requests with what they have; returns their number."""
        waiting = [request for request in self.waiting if selected(request)]
        self.waiting = deque(request for request in self.waiting if not selected(request))
        running = [request for request in self.running if selected(request)]
        for request in waiting + running:
            self._finish(request, {"type": "abort", "message": message})
        if running:
            self._compact(force=True)
        return len(waiting) + len(running)

    def retract(self) -> int:
        """Drop the cache of all running requests and queue them first, outputs kept; returns their number."""
        running = self.running
        for request in running:
            self._collect(request)
            request.retractions += 1
        self.retracted_requests += len(running)
        self.waiting.extendleft(reversed(running))
        self.rows, self._plan = [], None
        return len(running)

    @property
    def produced_tokens(self) -> int:
        """Output tokens so far, those of unfinished requests included."""
        waiting = sum(len(request.output_ids) for request in list(self.waiting))
        return self.generated_tokens + waiting + sum(self._produced(request) for request in self.running)

    def set_version(self, version: str) -> None:
        """Attribute what was sampled so far to the old version and continue as `version`."""
        for request in self.running:
            request.extend_span(self.version, self._produced(request))
        for request in self.waiting:
            request.extend_span(self.version, len(request.output_ids))
        self.version = version

    def advance(self, interrupted: Callable[[], bool]) -> None:
        """Admit what fits, then step until a request finishes or `interrupted()` is true."""
        if self.waiting:
            self._admit()
        while self.rows:
            if self._plan is None or self.cache.cursor >= self._plan.high:
                self._make_plan()
            assert self._plan is not None
            stopped = self._plan.step()
            due = stopped or self.cache.cursor >= self._next_end or bool(self._watch_text)
            if due and self._finish_rows():
                return
            if interrupted():
                return

    # -- admission ---------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Move waiting requests to rows, in order, as far as the cache allows."""
        scoring = [request for request in self.waiting if request.remaining == 0]
        if scoring:
            self.waiting = deque(request for request in self.waiting if request.remaining > 0)
            self._prefill(scoring, first_row=None)
            for request in scoring:
                self._finish(request, {"type": "length", "length": len(request.output_ids)})
        if self.waiting and self.rows:
            self._compact(force=True)
        chosen = self._reserve()
        if not chosen:
            return
        first_row = len(self.rows)
        self.rows.extend(chosen)
        fresh = [request for request in chosen if request.retractions == 0]
        self._observe(self.queue_time, fresh)
        self._prefill(chosen, first_row=first_row)
        self._observe(self.ttft, fresh)
        self._pad_rows()
        self._rows_changed()
        # A one-token request, or one whose first token is a stop token, is done already.
        self._finish_rows()

    @staticmethod
    def _observe(histogram: DurationHistogram, requests: Sequence[Request]) -> None:
        """Record how long ago `requests` arrived."""
        now = time.monotonic()
        for request in requests:
            histogram.observe(now - request.created)

    def _reserve(self) -> list[Request]:
        """Choose the requests to admit and bring the cache to a layout that holds them and the running ones."""
        cache, chosen = self.cache, list[Request]()
        longest_prefix = max((cache.cursor - r.start for r in self.rows), default=0)
        most_remaining = max((self._end_column(r) - cache.cursor for r in self.rows), default=0)
        columns = 0
        for request in self.waiting:
            if len(self.rows) + len(chosen) >= self.max_running:
                break
            prefix = max(longest_prefix, len(request.prompt) + len(request.output_ids))
            remaining = max(most_remaining, request.remaining)
            needed = cache.padded_columns(prefix + remaining)
            count = len(self.rows) + len(chosen) + 1
            if count * needed > cache.total_tokens and (self.rows or chosen):
                break
            longest_prefix, most_remaining = prefix, remaining
            columns = needed
            chosen.append(request)
        if not chosen:
            return chosen
        for _ in chosen:
            self.waiting.popleft()
        count = len(self.rows) + len(chosen)
        if not self.rows:
            cache.layout(min(round_rows(count), cache.total_tokens // columns), columns)
            cache.cursor = longest_prefix
            return chosen
        low = min(request.start for request in self.rows)
        fits = longest_prefix <= cache.cursor and cache.cursor + most_remaining <= cache.columns
        if count > cache.rows or not fits:
            generous = cache.padded_columns(2 * columns + _HEADROOM)
            rows = min(round_rows(self.max_running), max(round_rows(count), 2 * cache.rows))
            if rows * generous > cache.total_tokens:
                rows, generous = min(round_rows(count), cache.total_tokens // columns), columns
            self._shift(cache.relayout(rows, generous, len(self.rows), low, longest_prefix - (cache.cursor - low)))
        return chosen

    def _shift(self, amount: int) -> None:
        for request in self.rows:
            request.start += amount
            request.first_column += amount
        self._plan = None

    def _prefill(self, requests: Sequence[Request], first_row: int | None) -> None:
        """Compute prefixes, each distinct one once, and the first output of every row."""
        owners: dict[PrefixKey, int] = {}
        owner, media = list[int](), list[MediaPrompt | None]()
        for request in requests:
            key = request.admitted = request.prefix_key
            if key in owners and request.retractions == 0:
                request.cached_tokens = len(request.prompt)
            owner.append(owners.setdefault(key, len(owners)))
            media += [request.media] * (len(owners) - len(media))
        prefixes = [prefix for _, prefix in owners]
        self.prompt_tokens += sum(len(prefix) for prefix in prefixes)
        device, cursor = self.decoder.device, self.cache.cursor
        for request in requests:
            request.start, request.first_column = cursor - len(request.prefix), cursor - 1
        wanted, top = [False] * len(prefixes), [0] * len(prefixes)
        for request, index in zip(requests, owner, strict=True):
            if request.input_log_prob_start is not None and request.input_log_probs is None:
                wanted[index] = True
                top[index] = max(top[index], request.top_log_probs)
        hidden = []
        for block in blocks([len(prefix) for prefix in prefixes]):
            result = prefill(
                self.decoder,
                [prefixes[i] for i in block],
                [wanted[i] for i in block],
                [top[i] for i in block],
                [self.decoder.encode(media[i], len(prefixes[i])) for i in block],
            )
            hidden.append(result.hidden)
            members = [i for i, index in enumerate(owner) if index in block]
            for i in members:
                if result.experts is not None:
                    requests[i].add_experts(0, result.experts[owner[i] - block.start].numpy())
                scores = result.log_probs[owner[i] - block.start]
                if requests[i].input_log_prob_start is not None and scores is not None:
                    place, count = owner[i] - block.start, len(requests[i].prompt) - 1
                    requests[i].input_log_probs = scores[:count].tolist()
                    requests[i].input_top_log_probs = result.top(place, count, requests[i].top_log_probs)
            if first_row is not None:
                self._store(first_row, members, [owner[i] - block.start for i in members], result)
        if first_row is None:
            return
        states = torch.cat(hidden).index_select(0, torch.tensor(owner, device=device))
        self._first_outputs(requests, first_row, self.decoder.head(states))

    def _store(self, first_row: int, members: list[int], local: list[int], result: Prefilled) -> None:
        """Write a prefill block into the rows of `members` (positions in the admission)."""
        device = self.decoder.device
        runs: list[list[int]] = []
        for place, member in enumerate(members):
            if runs and members[runs[-1][-1]] + 1 == member:
                runs[-1].append(place)
            else:
                runs.append([place])
        for run in runs:
            indices = torch.tensor([local[place] for place in run], device=device)
            for layer in range(self.decoder.arch.spec.num_layers):
                row = first_row + members[run[0]]
                self.cache.write_prompts(layer, row, indices, result.keys[layer], result.values[layer])

    def _first_outputs(self, requests: Sequence[Request], first_row: int, logits: Tensor) -> None:
        device, column = self.decoder.device, self.cache.cursor - 1
        StopTable(requests, logits.shape[1], device).hold_back(logits, column)
        draws = torch.from_numpy(output_uniforms(requests, range(column, column + 1))[0]).to(device)
        sampling = RowSampling.of([request.params for request in requests], device=device)
        tokens, log_probs = sample(logits, draws, sampling, torch.empty_like(logits), torch.empty_like(logits))
        rows = slice(first_row, first_row + len(requests))
        self.cache.out_tokens[rows, column], self.cache.out_log_probs[rows, column] = tokens[:, 0], log_probs[:, 0]

    # -- rows --------------------------------------------------------------------------------------

    def _rows_changed(self) -> None:
        """Prepare what depends on the set of rows."""
        self._plan = None
        live = [request for request in self.rows if request.finish is None]
        self._next_end = min((self._end_column(request) for request in live), default=0)
        self._watch_text = [request for request in live if request.params.stop]
        if self.rows:
            device = self.decoder.device
            self._sampling = RowSampling.of([request.params for request in self.rows], device=device)
            self._stops = StopTable(self.rows, self.decoder.arch.spec.vocab_size, device)

    def _make_plan(self) -> None:
        cache = self.cache
        if cache.cursor >= cache.columns:
            low = min(request.start for request in self.rows)
            self._shift(cache.relayout(cache.rows, cache.columns, len(self.rows), low, 0))
            self._rows_changed()
        assert self._sampling is not None
        assert self._stops is not None
        previous = cache.out_tokens[: len(self.rows), cache.cursor - 1].clone()
        self._plan = DecodePlan(self.decoder, cache, self._arena, self.rows, self._sampling, self._stops, previous)

    def _end_column(self, request: Request) -> int:
        """The cursor at which the request has all its tokens."""
        return request.first_column + request.remaining

    def _produced(self, request: Request) -> int:
        """Outputs so far, recorded ones included."""
        return len(request.output_ids) + self.cache.cursor - request.first_column

    def _collect(self, request: Request) -> None:
        """Take the recorded outputs of a row into its request."""
        row, computed = self.rows.index(request), len(request.prompt) + len(request.output_ids)
        log_probs = self.cache.out_log_probs[row, request.first_column : self.cache.cursor]
        request.output_ids.extend(self.cache.out_tokens[row, request.first_column : self.cache.cursor].tolist())
        request.log_probs.extend(log_probs.tolist())
        # A column has what the token before its output was sent to; of the first that was known from the prefix.
        experts = self.cache.out_experts[row, request.first_column + 1 : self.cache.cursor]
        request.add_experts(computed, experts.clone().cpu().numpy())
        # A NaN or an infinity makes the sum one too.
        request.finite = request.finite and math.isfinite(float(log_probs.sum()))
        request.extend_span(self.version, len(request.output_ids))

    def _finish_rows(self) -> bool:
        """Finish the rows that are done at the cursor; True when there were any."""
        last = self.cache.out_tokens[: len(self.rows), self.cache.cursor - 1].tolist()
        done = False
        for request, token in zip(list(self.rows), last, strict=True):
            if request.finish is not None:
                continue
            reason: dict[str, Any] | None = None
            if token in request.stop_ids:
                reason = {"type": "stop", "matched": token}
            elif request.params.stop and (matched := self._matched_text(request)):
                reason = {"type": "stop", "matched": matched}
            elif self._end_column(request) <= self.cache.cursor:
                reason = {"type": "length", "length": request.params.max_new_tokens}
            if reason is not None:
                self._finish(request, reason)
                done = True
        if done:
            self._compact(force=False)
        return done

    def _matched_text(self, request: Request) -> str | None:
        """The stop string that the newest token completed, if any."""
        assert self._text is not None
        if self._produced(request) < request.params.min_new_tokens:
            return None
        row, window = self.rows.index(request), max(map(len, request.params.stop)) + 8
        recorded = self.cache.out_tokens[row, max(request.first_column, self.cache.cursor - window) : self.cache.cursor]
        tail = (request.output_ids[-window:] + recorded.tolist())[-window:]
        text = self._text.decode(tail, skip_special_tokens=request.params.skip_special_tokens)
        return next((stop for stop in request.params.stop if stop in text), None)

    def _finish(self, request: Request, reason: dict[str, Any]) -> None:
        if request in self.rows:
            self._collect(request)
        if not request.finite:
            bad = next(i for i, value in enumerate(request.log_probs) if not math.isfinite(value))
            message = f"output {bad}: the logits are not finite under weights version {self.version!r}"
            reason = {"type": "abort", "message": message}
            del request.output_ids[bad:], request.log_probs[bad:]
            request.spans = [span for span in request.spans if span.start < bad]
            if request.spans:
                request.spans[-1].end = min(request.spans[-1].end, bad)
            self.cache.clear()
        request.finish, request.finished_at, request.version = reason, time.monotonic(), self.version
        self.generated_tokens += len(request.output_ids)
        self.finished_requests += 1
        self._batches.pop(request).request_finished()

    def _pad_rows(self) -> None:
        """Append holes up to a multiple of `ROW_STEP`, as far as the cache has rows."""
        model = self.rows[0]
        while len(self.rows) < min(round_rows(len(self.rows)), self.cache.rows):
            hole = Request("", (0,), model.params, 0, frozenset(), finish={"type": "hole"})
            hole.admitted = ("", (-len(self.rows),))
            hole.start, hole.first_column = self.cache.cursor - 1, self.cache.cursor
            self.rows.append(hole)

    def _compact(self, *, force: bool) -> None:
        """Fill holes with the last rows when there are enough of them."""
        live = [row for row, request in enumerate(self.rows) if request.finish is None]
        holes = len(self.rows) - len(live)
        if not live:
            self.rows, self._plan = [], None
            return
        keep = len(live) if force else min(round_rows(len(live)), len(self.rows))
        if holes and keep < len(self.rows):
            target = [row for row in range(len(live)) if self.rows[row].finish is not None]
            source = [row for row in live if row >= len(live)]
            if source:
                low = min(self.rows[row].start for row in live)
                self.cache.move_rows(source, target, low)
                for src, dst in zip(source, target, strict=True):
                    self.rows[dst] = self.rows[src]
            del self.rows[len(live) :]
            if not force:
                self._pad_rows()
        self._rows_changed()

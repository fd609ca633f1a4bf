"""`/generate`: from a JSON body to requests, and from finished requests to a JSON body.

Field names and shapes are SGLang's. What does not live here: HTTP itself (`server.py`).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_engine.backends.engines.local.engine import LocalEngine
from relax_engine.backends.engines.local.errors import BadRequestError
from relax_engine.backends.engines.local.media import FIELDS, MediaPrompt
from relax_engine.backends.engines.local.params import SamplingParams, parse_sampling_params
from relax_engine.backends.engines.local.request import Request
from relax_engine.backends.engines.local.rng import derive_seed

_SEED_MODULUS = 2**64
_READ = {
    "text", "input_ids", "sampling_params", "rid", "return_logprob", "logprob_start_len", "top_logprobs_num", "stream",
    "return_routed_experts",
    *FIELDS,
}  # fmt: skip
# Fields of SGLang's body that change the result and that this engine does not compute; anything but these
# values is refused rather than ignored.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "input_embeds": (None,),
    "lora_path": (None,),
    "lora_id": (None,),
    "session_params": (None,),
    "token_ids_logprob": (None,),
    "return_hidden_states": (None, False),
    "routed_experts_start_len": (None, 0),
    "custom_logit_processor": (None,),
    "stream": (None, False),
}
_IGNORED = {
    "log_metrics", "modalities", "priority", "routing_key", "extra_key", "return_text_in_logprobs", "no_logs",
    "background", "conversation_id", "data_parallel_rank", "require_reasoning", "bootstrap_host", "bootstrap_port",
    "bootstrap_room", "http_worker_ipc", "session_id", "custom_labels", "return_prompt_token_ids",
}  # fmt: skip


def has_media(body: Any) -> bool:
    """Whether a body has media, which take time to prepare."""
    return isinstance(body, Mapping) and any(body.get(name) for name in FIELDS)


@dataclass(frozen=True)
class GenerateCall:
    """A parsed body: its requests in order and how to shape the answer."""

    requests: list[Request]
    single: bool
    return_log_probs: bool


class GenerateParser:
    """Checks bodies against one engine's bounds; keeps the count that seeds requests without a seed."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self._unseeded = 0

    def parse(self, body: Any) -> GenerateCall:
        """Build the requests of a `/generate` body.

        Raises:
            BadRequestError: naming the field, its value and the bound.
        """
        if not isinstance(body, Mapping):
            raise BadRequestError(f"the body must be a JSON object, got {type(body).__name__}")
        for name, value in body.items():
            if name in _REFUSED and value not in _REFUSED[name]:
                raise BadRequestError(f"{name}={value!r} is not supported by this engine")
            if name not in _READ and name not in _REFUSED and name not in _IGNORED:
                raise BadRequestError(f"{name!r} is not a field of /generate")
        prompts, batched = self._prompts(body)
        media = self._media(body, prompts, batched=batched)
        params = self._sampling(body.get("sampling_params"), len(prompts))
        return_log_probs = body.get("return_logprob") or False
        if not isinstance(return_log_probs, bool):
            raise BadRequestError(f"return_logprob must be true or false, got {return_log_probs!r}")
        starts = self._per_prompt(body.get("logprob_start_len"), len(prompts), "logprob_start_len")
        top = self._per_prompt(body.get("top_logprobs_num"), len(prompts), "top_logprobs_num")
        routed = self._routed_experts(body.get("return_routed_experts"))
        rids = self._rids(body.get("rid"), len(prompts), batched)
        requests = []
        for index, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
            start = self._start(starts[index], len(prompt), where=index) if return_log_probs else None
            likeliest = self._top(top[index], param, start, where=index)
            self._check_length(prompt, param, index)
            seed = self._seed(param)
            for sample in range(param.n):
                rid = rids[index] if param.n == 1 else f"{rids[index]}-{sample}"
                request = self._request(rid, prompt, param, (seed + sample) % _SEED_MODULUS, start)
                request.top_log_probs, request.media = likeliest, media[index]
                request.experts = [] if routed else None
                requests.append(request)
        return GenerateCall(requests, not batched and len(requests) == 1, return_log_probs)

    def _media(
        self, body: Mapping[str, Any], prompts: list[tuple[int, ...]], *, batched: bool
    ) -> list[MediaPrompt | None]:
        """The media of each prompt; the prompts then have a placeholder per feature."""
        found: list[MediaPrompt | None] = [None] * len(prompts)
        if not has_media(body):
            return found
        if self.engine.media is None:
            name = next(name for name in FIELDS if body.get(name))
            raise BadRequestError(f"{name}: {self.engine.arch.name} reads text alone")
        for index, media in enumerate(self.engine.media.read(body, len(prompts), batched=batched)):
            if media:
                prompts[index], found[index] = self.engine.media.place(prompts[index], media, f"input_ids[{index}]")
        return found

    def _request(
        self, rid: str, prompt: tuple[int, ...], params: SamplingParams, seed: int, start: int | None
    ) -> Request:
        stop_ids = frozenset() if params.ignore_eos else self.engine.eos_token_ids | set(params.stop_token_ids)
        if params.stop and self.engine.text is None:
            raise BadRequestError(
                f"sampling_params.stop={list(params.stop)!r} needs a tokenizer, and the engine has none "
                "(no tokenizer.json, or --skip-tokenizer-init)"
            )
        return Request(rid, prompt, params, seed, frozenset(stop_ids), start)

    def _prompts(self, body: Mapping[str, Any]) -> tuple[list[tuple[int, ...]], bool]:
        ids, text = body.get("input_ids"), body.get("text")
        if (ids is None) == (text is None):
            raise BadRequestError("exactly one of input_ids and text must be given")
        if text is not None:
            if self.engine.text is None:
                raise BadRequestError("text needs a tokenizer and the engine has none; send input_ids")
            texts = text if isinstance(text, list) else [text]
            if not texts or not all(isinstance(item, str) for item in texts):
                raise BadRequestError(f"text must be a string or a list of strings, got {text!r}")
            ids = [self.engine.text.encode(item) for item in texts]
            ids = ids if isinstance(text, list) else ids[0]
        if not isinstance(ids, list) or not ids:
            raise BadRequestError(f"input_ids must be a non-empty list of token ids or of such lists, got {ids!r}")
        batched = isinstance(ids[0], list)
        prompts = ids if batched else [ids]
        return [self._prompt(prompt, index) for index, prompt in enumerate(prompts)], batched

    def _prompt(self, prompt: Any, index: int) -> tuple[int, ...]:
        if not isinstance(prompt, list) or not prompt:
            raise BadRequestError(f"input_ids[{index}] must be a non-empty list of token ids, got {prompt!r}")
        size = self.engine.arch.spec.vocab_size
        for token in prompt:
            if type(token) is not int or not 0 <= token < size:
                raise BadRequestError(f"input_ids[{index}] holds {token!r}, token ids are integers in [0, {size})")
        return tuple(prompt)

    def _check_length(self, prompt: tuple[int, ...], params: SamplingParams, index: int) -> None:
        limit, total = self.engine.max_length, len(prompt) + params.max_new_tokens
        if total > limit:
            raise BadRequestError(
                f"input_ids[{index}] has {len(prompt)} tokens and max_new_tokens={params.max_new_tokens}: "
                f"together {total}, above the context length of {limit}"
            )

    def _sampling(self, values: Any, count: int) -> list[SamplingParams]:
        size = self.engine.arch.spec.vocab_size
        if not isinstance(values, list):
            return [parse_sampling_params(values, vocab_size=size)] * count
        return [parse_sampling_params(v, vocab_size=size) for v in self._per_prompt(values, count, "sampling_params")]

    @staticmethod
    def _per_prompt(value: Any, count: int, name: str) -> list[Any]:
        if not isinstance(value, list):
            return [value] * count
        if len(value) != count:
            raise BadRequestError(f"{name} has {len(value)} entries for {count} prompts")
        return value

    def _rids(self, value: Any, count: int, batched: bool) -> list[str]:
        if value is None:
            return [uuid.uuid4().hex for _ in range(count)]
        if isinstance(value, str):
            return [f"{value}_{index}" for index in range(count)] if batched else [value]
        rids = self._per_prompt(value, count, "rid")
        if not all(isinstance(rid, str) and rid for rid in rids) or len(set(rids)) != count:
            raise BadRequestError(f"rid must be distinct non-empty strings, got {value!r}")
        return rids

    @staticmethod
    def _start(value: Any, length: int, *, where: int) -> int | None:
        if value is None or value == -1:
            return None
        if type(value) is not int or not 0 <= value < length:
            raise BadRequestError(
                f"logprob_start_len must be -1 (off) or in [0, {length}) for input_ids[{where}], got {value!r}"
            )
        return value

    def _top(self, value: Any, params: SamplingParams, start: int | None, *, where: int) -> int:
        """How many of the likeliest tokens to return for each token of a prompt that is only scored."""
        size = self.engine.arch.spec.vocab_size
        if value is None or value == 0:
            return 0
        if type(value) is not int or not 0 < value <= size:
            raise BadRequestError(f"top_logprobs_num must be in [0, {size}] for input_ids[{where}], got {value!r}")
        if start is None or params.max_new_tokens:
            raise BadRequestError(
                f"top_logprobs_num={value} for input_ids[{where}] is offered for scoring: with return_logprob, "
                "logprob_start_len and max_new_tokens=0"
            )
        return value

    def _routed_experts(self, value: Any) -> bool:
        if value in (None, False):
            return False
        if value is not True:
            raise BadRequestError(f"return_routed_experts must be true or false, got {value!r}")
        if not self.engine.options.return_routed_experts:
            raise BadRequestError("return_routed_experts: start the engine with --enable-return-routed-experts")
        return True

    def _seed(self, params: SamplingParams) -> int:
        if params.sampling_seed is not None:
            return params.sampling_seed
        self._unseeded += 1
        return derive_seed(self.engine.options.random_seed, self._unseeded)


def _log_prob_json(log_probs: Sequence[float], ids: Sequence[int]) -> str:
    """`[[lp,id,null],...]`; nine significant digits carry a float32 exactly."""
    if not ids:
        return "[]"
    pairs = [value for pair in zip(log_probs, ids, strict=True) for value in pair]
    return ("[" + "[%.9g,%d,null]," * len(ids))[:-1] % tuple(pairs) + "]"


def _input_log_prob_json(request: Request) -> str:
    start, scores = request.input_log_prob_start or 0, request.input_log_probs or []
    if start == 0:
        rest = _log_prob_json(scores, request.prompt[1:])
        return f"[[null,{request.prompt[0]},null]" + ("," + rest[1:] if len(rest) > 2 else "]")
    return _log_prob_json(scores[start - 1 :], request.prompt[start:])


def _input_top_json(request: Request) -> str:
    """`[[[lp,id,null], ...], ...]` by token from `logprob_start_len` on; null for the first of the sequence."""
    start, found = request.input_log_prob_start or 0, request.input_top_log_probs or []
    rows = [_log_prob_json(*zip(*row, strict=True)) for row in found[max(start - 1, 0) :]]
    return "[" + ",".join(["null", *rows] if start == 0 else rows) + "]"


def _experts_text(request: Request) -> str:
    """Base64 of int32 `[tokens - 1, layers, experts for each]`, as SGLang's; the last token was not computed."""
    tokens = len(request.prompt) + len(request.output_ids)
    sent = np.concatenate(request.experts or [])[: tokens - 1]
    return base64.b64encode(sent.astype("<i4").tobytes()).decode()


def render(call: GenerateCall, engine: LocalEngine) -> bytes:
    """The JSON answer of a finished call."""
    texts = _texts(call.requests, engine)
    parts = []
    for request, text in zip(call.requests, texts, strict=True):
        meta = {
            "id": request.rid,
            "finish_reason": request.finish,
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(request.output_ids),
            "cached_tokens": request.cached_tokens,
            "num_retractions": request.retractions,
            "weight_version": request.version,
            "weight_versions": [{"version": s.version, "start": s.start, "end": s.end} for s in request.spans],
            "e2e_latency": round(request.finished_at - request.created, 6),
        }
        extra = ""
        if call.return_log_probs:
            extra += f',"output_token_logprobs":{_log_prob_json(request.log_probs, request.output_ids)}'
            if request.input_log_prob_start is not None and request.input_log_probs is not None:
                extra += f',"input_token_logprobs":{_input_log_prob_json(request)}'
                if request.top_log_probs:
                    extra += f',"input_top_logprobs":{_input_top_json(request)}'
        if request.experts:
            extra += f',"routed_experts":"{_experts_text(request)}"'
        body = json.dumps({"text": text, "output_ids": request.output_ids}, separators=(",", ":"))
        parts.append(body[:-1] + ',"meta_info":' + json.dumps(meta, separators=(",", ":"))[:-1] + extra + "}}")
    return (parts[0] if call.single else "[" + ",".join(parts) + "]").encode()


def _texts(requests: Sequence[Request], engine: LocalEngine) -> list[str]:
    """Output texts: without the stop token or string, unless `no_stop_trim`; empty without a tokenizer."""
    if engine.text is None:
        return [""] * len(requests)
    ids, special = [], [request.params.skip_special_tokens for request in requests]
    for request in requests:
        matched = request.finish.get("matched") if request.finish else None
        trimmed = isinstance(matched, int) and not request.params.no_stop_trim
        ids.append(request.output_ids[:-1] if trimmed else request.output_ids)
    if all(special) or not any(special):
        texts = engine.text.decode_batch(ids, skip_special_tokens=all(special))
    else:
        texts = [engine.text.decode(row, skip_special_tokens=skip) for row, skip in zip(ids, special, strict=True)]
    for index, request in enumerate(requests):
        matched = request.finish.get("matched") if request.finish else None
        if isinstance(matched, str) and not request.params.no_stop_trim:
            texts[index] = texts[index].partition(matched)[0]
    return texts

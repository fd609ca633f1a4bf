"""`--rm-type genrm` and `dapo-genrm`: a judging model behind HTTP.

What lives here: the two rewards and the form of requests. What does not: the judge's prompts and their meaning
(`judge`), retries (`http`), serving the judge (`components.genrm`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from relax_engine.access.listener import trusting
from relax_engine.access.policy import installed
from relax_engine.rewards import judge
from relax_engine.rewards.http import TRIES, TRY_SECONDS, post_json
from relax_engine.types import Sample

SAMPLING = {"temperature": 0.1, "top_p": 1.0, "max_new_tokens": 4096}
JUDGED = "judge_failures"


async def genrm_reward(
    args: Any,
    sample: Sample,
    *,
    mode: Literal["grade", "score", "compare"] = "grade",
    template: str | None = None,
    criteria: str = judge.DEFAULT_CRITERIA,
    lowest: int = 1,
    highest: int = 10,
    unread: float = 0.0,
    votes: int = 1,
    **endpoint: Any,
) -> dict[str, float]:
    """What the judge at `--genrm-url` thinks of the response: `score` in [0, 1], and counters for the metrics.

    `grade`: 1 if the judge finds the label in the response. `score`: its mark between `lowest` and `highest`, as a
    share. `compare`: whether the response is better than the label, asked in both orders, so that a judge that prefers
    a place gives one half. The score is the mean over `votes` answers that could be read, and `unread` if none could.
    `judge_failures` counts those that could not, `judge_inconsistent` pairs of orders that disagree.

    Args:
        template: A prompt of your own, with the names in braces that the built-in one has.
        endpoint: `url`, `model`, `sampling_params`, `route_key`, `tries`, `try_s`; see `ask`.

    Raises:
        ValueError: another mode, no address, or `votes` below 1.
        HttpError: the judge refused, or could not be reached.
    """
    if votes < 1:
        raise ValueError(f"genrm votes must be at least 1, got {votes}")
    if mode == "grade" and not (sample.label or "").strip():
        return {"score": 0.0, JUDGED: 0.0}
    if mode == "compare":
        return await _compare(args, sample, template, criteria, unread, votes, endpoint)
    if mode == "grade":
        messages = judge.grade_prompt(sample, template or judge.GRADE)
    elif mode == "score":
        messages = judge.score_prompt(
            sample, lowest=lowest, highest=highest, criteria=criteria, template=template or judge.SCORE
        )
    else:
        raise ValueError(f"genrm mode {mode!r}: write 'grade', 'score' or 'compare'")
    answers = await asyncio.gather(*(ask(args, messages, **endpoint) for _ in range(votes)))
    readings = [
        judge.read_judgement(answer) if mode == "grade" else judge.read_score(answer, lowest, highest)
        for answer in answers
    ]
    return {"score": _mean(readings, unread), JUDGED: float(readings.count(None))}


async def dapo_genrm_reward(args: Any, sample: Sample, **arguments: Any) -> dict[str, Any]:
    """The judge's `grade` on the scale of `dapo`: `score` 1 or -1, `acc` whether it says yes.

    Raises:
        ValueError, HttpError: as `genrm`.
    """
    graded = await genrm_reward(args, sample, **{**arguments, "mode": "grade"})
    right = graded["score"] > 0.5
    return {"score": 1.0 if right else -1.0, "acc": right, JUDGED: graded[JUDGED]}


async def ask(
    args: Any,
    messages: list[dict[str, str]],
    *,
    url: str | None = None,
    model: str = "default",
    sampling_params: dict[str, Any] | None = None,
    route_key: str | None = None,
    tries: int = TRIES,
    try_s: float = TRY_SECONDS,
) -> str:
    """The judge's answer to `messages`.

    An address that ends in `/generate` is posted `messages`, `sampling_params` and `route_key`, and answers with
    `response`. Every other one is a server with OpenAI's chat completions: `http://host:port/v1`.

    Raises:
        ValueError: there is no address, or an answer without text.
        HttpError: the judge refused, or could not be reached.
    """
    address = (url or args.genrm_url or "").rstrip("/")
    if not address:
        raise ValueError("a judge needs --genrm-url, such as http://host:port/v1, or --genrm-model-path in a run")
    own = _own_judge(args, address)
    sampling = {**({} if own else SAMPLING), **(sampling_params or {})}  # a judge of the run has its own defaults
    if address.endswith("/generate"):
        payload = {"messages": messages, "sampling_params": sampling, "route_key": route_key}
        answer = await post_json(address, payload, tries=tries, try_s=try_s, **own)
        text = answer.get("response", answer.get("text")) if isinstance(answer, dict) else None
    else:
        sampling["max_tokens"] = sampling.pop("max_new_tokens")
        address = address if address.endswith("/chat/completions") else f"{address}/chat/completions"
        answer = await post_json(address, {"model": model, "messages": messages, **sampling}, tries=tries, try_s=try_s)
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            text = None
    if not isinstance(text, str):
        raise ValueError(f"the judge at {address} answered without text: {str(answer)[:200]}")
    return text


def _own_judge(args: Any, address: str) -> dict[str, Any]:
    """What a request to the judge that the run serves itself has besides."""
    if args.genrm_model_path is None or address != args.genrm_url:
        return {}
    token = installed().api_token
    return {
        "headers": {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"},
        "tls": trusting(args.api_ssl_certfile),
    }


async def _compare(
    args: Any, sample: Sample, template: str | None, criteria: str, unread: float, votes: int, endpoint: dict[str, Any]
) -> dict[str, float]:
    question, ours, other = judge.question_of(sample), sample.response, sample.label or ""
    template = template or judge.COMPARE
    forward = judge.compare_prompt(question, ours, other, criteria=criteria, template=template)
    backward = judge.compare_prompt(question, other, ours, criteria=criteria, template=template)
    answers = await asyncio.gather(*(ask(args, messages, **endpoint) for messages in (forward, backward) * votes))
    pairs = [judge.both_orders(*answers[start : start + 2]) for start in range(0, len(answers), 2)]
    return {
        "score": _mean([pair.score for pair in pairs], unread),
        JUDGED: float(sum(pair.failures for pair in pairs)),
        "judge_inconsistent": float(sum(not pair.consistent and not pair.failures for pair in pairs)),
    }


def _mean(readings: list[Any], unread: float) -> float:
    read = [float(reading) for reading in readings if reading is not None]
    return sum(read) / len(read) if read else unread

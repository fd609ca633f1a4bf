"""Turns of a real engine and an environment: what is trained, when it ends, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_continued import SAMPLING, flat, make_groups

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.config.flat import FlatView
from relax_engine.rollout.custom_generate import CustomGenerate
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.pool import EnginePool, RolloutError
from relax_engine.types import Sample, SampleStatus

HALF = tuple(range(3, 131))
"""Tokens of which each ends a turn: about every second one that a random model samples."""

Run = Callable[..., Any]


@pytest.fixture
async def run(engines: list[EngineProcess], model: Path, tokenizer: Any) -> Run:
    """Generates two groups with the built-in turns; returns samples and the arguments."""

    async def run(stop: tuple[int, ...] = HALF, **changes: Any) -> tuple[list[Sample], Any]:
        values: dict[str, Any] = {
            "rollout_interaction_env_path": str(Path(__file__).with_name("user_environment.py")),
            "max_turns": 3,
            "done_after": 9,
            "careless": False,
            "closed": [],
            "hf_checkpoint": str(model),
            "apply_chat_template": True,
            "apply_chat_template_kwargs": {},
            "rollout_max_context_len": None,
            "wait_timeout": 30.0,
            "rollout_http_timeout": 120.0,
            "use_rollout_routing_replay": False,
        }
        args = FlatView(values | changes)
        path = "relax_engine.rollout.multi_turn:generate"
        custom = CustomGenerate(path, args, version=lambda: 0, evaluation=False)
        groups = make_groups(tokenizer, 2)
        async with EnginePool([engine.url for engine in engines], timeout_s=120.0) as pool:
            await Generator(pool, replace(SAMPLING, temperature=1.0, stop_token_ids=stop), custom=custom).generate(
                groups
            )
        return flat(groups), args

    return run


async def test_turns_are_trained_and_observations_are_not(
    run: Run, engines: list[EngineProcess], tokenizer: Any
) -> None:
    samples, args = await run()
    assert sorted(args.closed) == [0, 1, 2, 3]

    for sample in samples:
        assert sample.status is SampleStatus.COMPLETED
        notes = sample.metadata["environment"]
        assert (notes["turns"], notes["stop"], notes["rewards"], len(notes["seen"])) == (3, "max_turns", [0.5] * 3, 3)
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
        shown = [i for i, mask in enumerate(sample.loss_mask) if not mask]
        assert [sample.rollout_log_probs[i] for i in shown] == [0.0] * len(shown)
        # Spans of weights cover the turns, and the gaps between them are the observations.
        assert [i for span in sample.weight_versions for i in range(span.start, span.end)] == [
            i for i, mask in enumerate(sample.loss_mask) if mask
        ]
    assert tokenizer.decode(samples[0].tokens[: samples[0].prompt_length]) == "0 + 0 = "
    # Each turn has randomness of its own, and each sample.
    assert len({tuple(sample.rollout_tokens) for sample in samples}) == 4
    assert len(set(samples[0].metadata["environment"]["seen"])) > 1
    # Each is the log-prob of its token behind all that came before, observations included.
    async with EngineClient(engines[0].url, timeout_s=120.0) as client:
        (scores,) = await client.score([samples[0].tokens])
    trained = np.flatnonzero(samples[0].loss_mask)
    expected = scores[samples[0].prompt_length - 1 :][trained]
    np.testing.assert_allclose(np.array(samples[0].rollout_log_probs)[trained], expected, atol=1e-4)


async def test_an_observation_stands_in_the_frame_of_the_chat_template(run: Run, tokenizer: Any) -> None:
    samples, _ = await run(max_turns=2)
    sample = samples[0]
    shown = [token for token, mask in zip(sample.rollout_tokens, sample.loss_mask, strict=True) if not mask]
    text = tokenizer.decode(shown)
    assert text.endswith("turn 1<|im_end|>\n<|im_start|>assistant\n")
    # The turn ended without the end token, which the frame then brings.
    assert text.startswith("<|im_end|>\n<|im_start|>")
    plain, _ = await run(max_turns=2, apply_chat_template=False)
    shown = [token for token, mask in zip(plain[0].rollout_tokens, plain[0].loss_mask, strict=True) if not mask]
    assert tokenizer.decode(shown) == "turn 1"


async def test_the_same_run_gives_the_same_samples(run: Run) -> None:
    first, _ = await run()
    second, _ = await run()
    assert [sample.tokens for sample in first] == [sample.tokens for sample in second]
    for one, other in zip(first, second, strict=True):  # beside other requests they round otherwise
        np.testing.assert_allclose(one.rollout_log_probs, other.rollout_log_probs, atol=1e-5)


async def test_it_ends_when_the_environment_is_done_or_nothing_fits(run: Run) -> None:
    samples, _ = await run(done_after=2)
    assert all(sample.metadata["environment"]["stop"] == "done" for sample in samples)
    assert all(sample.metadata["environment"]["turns"] == 2 for sample in samples)
    samples, _ = await run(stop=())
    assert all(sample.status is SampleStatus.TRUNCATED for sample in samples)
    assert {sample.metadata["environment"]["stop"] for sample in samples} == {"length"}
    samples, _ = await run(rollout_max_context_len=40, max_turns=8)
    assert all(len(sample.tokens) <= 40 for sample in samples)
    assert {sample.metadata["environment"]["stop"] for sample in samples} <= {"context", "length"}
    assert all(sample.status is SampleStatus.TRUNCATED for sample in samples)


async def test_a_broken_contract_is_named(run: Run) -> None:
    for changes, message in (
        ({"careless": True}, r"step returned \('half', False\); return \(observation, done, info\) or"),
        ({"max_turns": None}, r"turns need rollout_interaction_env_path .* and max_turns of at least 1 \(is None\)"),
    ):
        with pytest.raises(ExceptionGroup) as errors:
            await run(**changes)
        assert errors.group_contains(RolloutError, match=message)

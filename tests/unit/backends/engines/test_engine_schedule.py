"""The scheduler in process: any interleaving gives each request what it gets alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from relax_engine.backends.engines.local.engine import EngineOptions, LocalEngine
from relax_engine.backends.engines.local.params import SamplingParams
from relax_engine.backends.engines.local.request import Batch, Request

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
    "max_position_embeddings": 400, "tie_word_embeddings": True, "eos_token_id": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make_engine(directory: Path, **options: int) -> LocalEngine:
    (directory / "config.json").write_text(json.dumps(CONFIG))
    engine = LocalEngine(EngineOptions(directory, load_format="dummy", **options))
    # Deviation 0.02 gives nearly uniform logits; larger weights make attention matter.
    raw = {name: tensor if "norm" in name else tensor * 12 for name, tensor in engine.raw.items()}
    engine.adopt_weights(raw, None, flush=True)
    return engine


def make_requests(count: int, seed: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [
        Request(
            rid=str(index),
            prompt=tuple(rng.integers(2, 64, size=int(rng.integers(1, 120))).tolist()),
            params=SamplingParams(max_new_tokens=int(rng.integers(1, 150)), temperature=0.8),
            seed=index,
            stop_ids=frozenset({1}),
        )
        for index in range(count)
    ]


def run(engine: LocalEngine, requests: list[Request], *, arrivals: int | None, retract_every: int = 0) -> None:
    """Submit all at once, or one every `arrivals` steps; optionally retract on the way."""
    scheduler, pending, step = engine.scheduler, list(requests), 0
    done: list[int] = []
    if arrivals is None:
        scheduler.submit(Batch(pending, lambda: done.append(len(requests))))
        pending = []
    while pending or scheduler.busy:
        if pending and step % (arrivals or 1) == 0:
            scheduler.submit(Batch([pending.pop(0)], lambda: done.append(1)))
        scheduler.advance(lambda: True)
        step += 1
        if retract_every and step % retract_every == 0:
            scheduler.retract()
        assert step < 20_000
    assert sum(done) == len(requests)


@pytest.mark.parametrize(("arrivals", "retract_every"), [(None, 0), (1, 0), (7, 0), (3, 50)])
@pytest.mark.parametrize("limits", [{}, {"max_total_tokens": 900}, {"max_running_requests": 5}])
def test_company_does_not_change_a_request(
    tmp_path: Path, limits: dict[str, int], arrivals: int | None, retract_every: int
) -> None:
    engine = make_engine(tmp_path, **limits)
    together, alone = make_requests(20, 3), make_requests(20, 3)
    run(engine, together, arrivals=arrivals, retract_every=retract_every)
    for request in alone:
        run(engine, [request], arrivals=None)
    for mixed, single in zip(together, alone, strict=True):
        assert mixed.output_ids == single.output_ids
        np.testing.assert_allclose(mixed.log_probs, single.log_probs, atol=2e-4)
        assert mixed.finish == single.finish
        assert [(span.start, span.end) for span in mixed.spans] == [(0, len(mixed.output_ids))]
    assert len({len(request.output_ids) for request in together}) > 10


def test_a_finished_request_frees_its_row_at_once_for_the_next(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, max_running_requests=2)
    run(engine, make_requests(9, 4), arrivals=None)
    assert engine.scheduler.finished_requests == 9
    assert not engine.scheduler.rows


def test_weights_that_overflow_abort_their_requests_and_leave_no_trace(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    good = dict(engine.raw)
    before = make_requests(3, 5)
    run(engine, before, arrivals=None)
    engine.adopt_weights({name: tensor * float("nan") for name, tensor in good.items()}, "broken", flush=True)
    broken = make_requests(3, 5)
    run(engine, broken, arrivals=None)
    assert [request.output_ids for request in broken] == [[], [], []]
    assert "not finite under weights version 'broken'" in broken[0].finish["message"]  # type: ignore[index]
    engine.adopt_weights(good, "good", flush=True)
    after = make_requests(3, 5)
    run(engine, after, arrivals=None)
    assert [request.log_probs for request in after] == [request.log_probs for request in before]

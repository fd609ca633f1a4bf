"""Router replay: experts of the rollout, or of an earlier pass, in training, whatever the router would choose now."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import EXPERTS, hf_model, make_batch, make_checkpoint, make_settings, run_world, share, single, step

from relax_engine.backends.engines.local.engine import EngineOptions, LocalEngine, PauseMode
from relax_engine.backends.engines.local.errors import BadRequestError
from relax_engine.backends.engines.local.generate_api import GenerateParser, render
from relax_engine.backends.engines.local.request import Batch
from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import ParallelLayout, RecomputeSettings
from relax_engine.stream.columns import OWN_EXPERTS, ROUTED_EXPERTS, Column, ColumnBatch

MODEL: dict[str, Any] = {"family": "Qwen3Moe", **EXPERTS}
LENGTHS, RESPONSES = [23, 9, 31, 14, 6, 27, 12], [11, 4, 0, 13, 2, 20, 1]
GATE = "model.layers.{}.mlp.gate.weight"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("experts"), **MODEL)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, whose routers have since learnt to choose other experts."""
    directory = tmp_path_factory.mktemp("moved")
    _moved_model().save_pretrained(directory)
    return directory


def _moved_model() -> Any:
    model = hf_model(**MODEL)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.add_(torch.randn_like(layer.mlp.gate.weight) * 0.3)
    return model


def _forced(model: Any, sent: torch.Tensor, changed: list[torch.Tensor]) -> None:
    """Let a transformers model send its tokens to `sent` `[tokens, layers, k]`, with its own routers' weights.

    `changed` gets for each layer whether its router would have chosen others, bool `[tokens]`.
    """
    for number, layer in enumerate(model.model.layers):
        weight = layer.mlp.gate.weight

        def route(x: torch.Tensor, weight: torch.Tensor = weight, number: int = number) -> Any:
            logits = torch.nn.functional.linear(x.reshape(-1, x.shape[-1]), weight)
            chosen = sent[: len(logits), number]
            own = logits.topk(chosen.shape[1], dim=-1).indices
            changed.append((own.sort(-1).values != chosen.sort(-1).values).any(-1))
            scores = logits.softmax(-1).gather(1, chosen)
            return logits, scores / scores.sum(-1, keepdim=True), chosen

        layer.mlp.gate.forward = route


def _choices(model: Any, batch: ColumnBatch) -> list[np.ndarray]:
    """What a transformers model chooses for each token: `[tokens, layers * k]`, -1 for the last, as rollouts say."""
    rows = []
    for row in range(batch.num_rows):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        logits = model(tokens[None], output_router_logits=True).router_logits
        sent = torch.stack([each.topk(2, dim=-1).indices for each in logits], dim=1).flatten(1)
        sent[-1] = -1
        rows.append(sent.numpy())
    return rows


@pytest.fixture(scope="module")
def batch() -> ColumnBatch:
    """Rows with the choices of the model before its routers moved."""
    rows = make_batch(LENGTHS, RESPONSES)
    return rows.with_columns(**{ROUTED_EXPERTS: Column.ragged(_choices(hf_model(**MODEL), rows), np.int16)})


def _expected(batch: ColumnBatch) -> tuple[np.ndarray, float, float, float]:
    """Log-probs, loss and gradient norm of the moved model in transformers, sent where the batch says, and the share of
    choices that it would have made otherwise."""
    model = _moved_model()
    log_probs, entropies, changes = [], [], []
    for row, count in enumerate(batch["response_lengths"].values.tolist()):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        sent = torch.tensor(batch[ROUTED_EXPERTS].row(row).astype(np.int64)).clamp(min=0).unflatten(1, (-1, 2))
        changed: list[torch.Tensor] = []
        _forced(model, sent, changed)
        logits = model(tokens[None]).logits[0] / 0.8
        changes += [layer[:-1] for layer in changed]  # nothing is sent of a row's last token
        if not count:
            continue
        distribution = torch.distributions.Categorical(logits=logits[-count - 1 : -1])
        log_probs.append(distribution.log_prob(tokens[-count:]))
        entropies.append(distribution.entropy())
    found = torch.cat(log_probs)
    weights, advantages = (torch.from_numpy(batch[name].values) for name in ("loss_weights", "advantages"))
    loss = -(weights * (advantages * found + 0.1 * torch.cat(entropies))).sum()
    loss.backward()
    gates = [layer.mlp.gate.weight.grad for layer in model.model.layers]
    assert all(float(gate.abs().max()) > 1e-4 for gate in gates)  # routers learn through the weights of the experts
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    return found.detach().numpy(), loss.item(), norm.item(), torch.cat(changes).float().mean().item()


def test_the_rollouts_experts_are_used_and_routers_learn_through_their_weights(moved: Path, batch: ColumnBatch) -> None:
    expected, loss, norm, changed = _expected(batch)
    for recompute in (RecomputeSettings(), RecomputeSettings("full", "uniform", 1)):
        backend = single(make_settings(moved, recompute=recompute))
        own = backend.forward_log_probs(make_batch(LENGTHS, RESPONSES), temperature=0.8, max_tokens=60)
        for max_tokens in (10_000, 40):
            replayed = backend.forward_log_probs(batch, temperature=0.8, max_tokens=max_tokens)
            np.testing.assert_allclose(replayed.values, expected, atol=1e-5)
        assert np.abs(own.values - expected).max() > 0.01
        metrics = step(backend, batch, max_tokens=60)
        backend.close()
        assert (metrics["loss"], metrics["grad_norm"]) == pytest.approx((loss, norm), rel=1e-5)
        assert metrics["routing_replay/changed"] == pytest.approx(changed, abs=1e-6)


def test_the_trainers_own_choices_are_recorded_and_replayed(checkpoint: Path, moved: Path, batch: ColumnBatch) -> None:
    """Prompts that rows share are computed once, and the choices belong to every one of these rows."""
    expected, loss, norm, changed = _expected(batch)
    plain = make_batch(LENGTHS, RESPONSES)
    first, second = plain["tokens"].row(0), plain["tokens"].row(5)
    prompt = second[: len(second) - RESPONSES[5]]
    rows = [first, second, [*prompt, *first[-4:]], [*prompt, *second[-3:]]]
    shared = ColumnBatch(
        {
            "tokens": Column.ragged(rows, np.int32),
            "response_lengths": Column.fixed([RESPONSES[0], RESPONSES[5], 4, 3], np.int32),
        }
    )
    backend = single(make_settings(checkpoint))
    for each, max_tokens in ((shared, 10_000), (shared, 45), (plain, 60)):
        found = backend.forward_routed(each, temperature=0.8, max_tokens=max_tokens)
        plainly = backend.forward_log_probs(each, temperature=0.8, max_tokens=max_tokens)
        assert np.array_equal(found["log_probs"].values, plainly.values)
        for row, choices in enumerate(_choices(hf_model(**MODEL), each)):
            assert np.array_equal(found[OWN_EXPERTS].row(row)[:-1], choices[:-1])
    backend.load_hf(moved)
    replayed = plain.with_columns(**{OWN_EXPERTS: found[OWN_EXPERTS]})
    np.testing.assert_allclose(
        backend.forward_log_probs(replayed, temperature=0.8, max_tokens=60).values, expected, atol=1e-5
    )
    metrics = step(backend, replayed, max_tokens=60)
    backend.close()
    assert (metrics["loss"], metrics["grad_norm"]) == pytest.approx((loss, norm), rel=1e-5)
    # A row without a response has one choice more: that of its last token.
    assert metrics["routing_replay/changed"] == pytest.approx(changed, abs=0.01)


def test_rows_of_another_model_are_refused(moved: Path, batch: ColumnBatch) -> None:
    backend = single(make_settings(moved))
    half = Column(batch[ROUTED_EXPERTS].values[:, :2], batch[ROUTED_EXPERTS].offsets)
    with pytest.raises(ValueError, match=r"4 experts each \(2 layers of 2\)"):
        backend.forward_log_probs(batch.with_columns(**{ROUTED_EXPERTS: half}), temperature=1.0, max_tokens=60)
    backend.close()


def _in_world(rank: int, size: int, init: str, settings: Any, batch: ColumnBatch, checkpoint: Path) -> Any:
    """With the choices that the batch brings, and with those that the backend records under `checkpoint`."""
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(checkpoint)
    mine = share(batch, backend)
    unsent = mine.only([name for name in mine if name != ROUTED_EXPERTS])
    recorded = unsent.with_columns(
        **{OWN_EXPERTS: backend.forward_routed(unsent, temperature=0.8, max_tokens=60)[OWN_EXPERTS]}
    )
    found = []
    for rows in (mine, recorded):
        backend.load_hf(settings.hf_checkpoint)
        log_probs = backend.forward_log_probs(rows, temperature=0.8, max_tokens=60)
        found.append(([log_probs.row(row).copy() for row in range(rows.num_rows)], step(backend, rows)))
    backend.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "layout"),
    [
        (2, ParallelLayout(2, True)),
        (2, ParallelLayout(pipeline=2)),
        (2, ParallelLayout(context=2)),
        (2, ParallelLayout(expert=2)),
        (4, ParallelLayout(2, True, context=2)),
    ],
    ids=["tp-sp", "pp", "cp", "ep", "tp-sp-cp"],
)
def test_every_layout_replays_the_same(
    checkpoint: Path, moved: Path, batch: ColumnBatch, size: int, layout: ParallelLayout
) -> None:
    expected, loss, norm, changed = _expected(batch)
    offsets = np.concatenate([[0], np.cumsum(RESPONSES)])
    for rank, answers in enumerate(run_world(_in_world, size, make_settings(moved, layout), batch, checkpoint)):
        replicas = layout.data_parallel(size)
        own = range(rank % replicas if replicas > 1 else 0, len(LENGTHS), replicas)
        wanted = np.concatenate([expected[offsets[row] : offsets[row + 1]] for row in own])
        for log_probs, metrics in answers:
            np.testing.assert_allclose(np.concatenate(log_probs), wanted, atol=2e-5)
            assert (metrics["loss"], metrics["grad_norm"]) == pytest.approx((loss, norm), rel=1e-5)
            assert metrics["routing_replay/changed"] == pytest.approx(changed, abs=0.01)


def _generate(engine: LocalEngine, body: dict[str, Any], *, disturb: bool = False) -> list[GenerateOutput]:
    call = GenerateParser(engine).parse({"return_logprob": True, "return_routed_experts": True, **body})
    done = threading.Event()
    engine.call(lambda: engine.submit(Batch(call.requests, done.set))).result(30)
    while disturb and not done.wait(0.002):
        engine.call(lambda: engine.pause(PauseMode.RETRACT)).result(30)
        engine.call(engine.resume).result(30)
    assert done.wait(60)
    return [GenerateOutput.from_json(each) for each in json.loads(render(call, engine))]


PARAMS = {"max_new_tokens": 20, "temperature": 1.0, "sampling_seed": 5, "ignore_eos": True}
PROMPTS = [list(range(3, 20)), list(range(5, 9)), list(range(3, 20))]


def _engine(checkpoint: Path, dtype: str) -> LocalEngine:
    options = EngineOptions(checkpoint, dtype=dtype, return_routed_experts=True, skip_tokenizer_init=True)
    engine = LocalEngine(options)
    engine.start()
    return engine


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_says_which_experts_it_chose(checkpoint: Path, dtype: str) -> None:
    engine = _engine(checkpoint, dtype)
    outputs = _generate(engine, {"input_ids": PROMPTS, "sampling_params": PARAMS})
    disturbed = _generate(engine, {"input_ids": PROMPTS, "sampling_params": PARAMS}, disturb=True)
    engine.close()
    model = hf_model(**MODEL).to(getattr(torch, dtype))
    for prompt, output in zip(PROMPTS * 2, outputs + disturbed, strict=True):
        tokens = torch.tensor([*prompt, *output.output_ids.tolist()])
        logits = model(tokens[None, :-1], output_router_logits=True).router_logits
        expected = torch.stack([each.float().topk(2, dim=-1).indices for each in logits], dim=1).flatten(1)
        assert output.routed_experts is not None
        assert output.routed_experts.shape == (len(tokens) - 1, 4)
        same = float((torch.tensor(output.routed_experts.astype(np.int64)) == expected).float().mean())
        assert same == 1.0 if dtype == "float32" else same > 0.9
    assert sum(output.num_retractions for output in disturbed) > 0


def test_replay_brings_the_trainer_closer_to_a_less_exact_engine(checkpoint: Path) -> None:
    """An engine in bfloat16 sends some tokens elsewhere than a trainer in float32 does."""
    engine = _engine(checkpoint, "bfloat16")
    prompts = [list(range(start, start + 12)) for start in range(2, 42)]
    outputs = _generate(engine, {"input_ids": prompts, "sampling_params": {**PARAMS, "max_new_tokens": 30}})
    engine.close()
    rows, sent = [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        rows.append([*prompt, *output.output_ids.tolist()])
        assert output.routed_experts is not None
        sent.append(np.pad(output.routed_experts, ((0, 1), (0, 0)), constant_values=-1))
    batch = ColumnBatch(
        {"tokens": Column.ragged(rows, np.int32), "response_lengths": Column.fixed([30] * len(rows), np.int32)}
    )
    backend = single(make_settings(checkpoint))
    theirs = np.concatenate([output.log_probs for output in outputs])
    gaps = [
        np.abs(backend.forward_log_probs(each, temperature=1.0, max_tokens=1000).values - theirs)
        for each in (batch, batch.with_columns(**{ROUTED_EXPERTS: Column.ragged(sent, np.int16)}))
    ]
    backend.close()
    assert gaps[1].mean() < 0.9 * gaps[0].mean()
    assert gaps[1].max() < gaps[0].max()


def test_an_engine_that_keeps_no_choices_says_so(checkpoint: Path) -> None:
    engine = LocalEngine(EngineOptions(checkpoint, skip_tokenizer_init=True))
    with pytest.raises(BadRequestError, match="--enable-return-routed-experts"):
        GenerateParser(engine).parse({"input_ids": [1, 2], "return_routed_experts": True})

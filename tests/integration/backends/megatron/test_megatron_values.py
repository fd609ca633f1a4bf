"""The value head: values and gradients equal a transformers trunk with a linear layer, however cut and spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import (
    clone,
    hf_model,
    make_batch,
    make_checkpoint,
    make_settings,
    run_world,
    share,
    single,
)

from relax_engine.algorithms.objective import LossInputs
from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import BackendSettings, ParallelLayout
from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.checkpoint.importer import import_checkpoint
from relax_engine.stream.columns import ColumnBatch

LENGTHS = [100, 5, 5, 5, 37, 2]
RESPONSES = [60, 4, 0, 1, 36, 1]
STEPS = 3


class SquaredError:
    """`sum w (v - A)^2`, with the batch's advantages as targets."""

    columns = ("loss_weights", "advantages")

    def __call__(
        self, values: torch.Tensor, entropy: torch.Tensor | None, inputs: LossInputs
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert entropy is None
        error = values - inputs.columns["advantages"]
        return (inputs.columns["loss_weights"] * error.square()).sum(), {"tokens/sum": torch.tensor(float(len(values)))}


def reward_model(directory: Path, *, family: str = "Qwen3", labels: int = 1, **options: Any) -> Any:
    """A random `...ForSequenceClassification` with the trunk of `hf_model`, saved to `directory`."""
    import transformers

    trunk = hf_model(family, **options)
    trunk.config.num_labels = labels
    model = getattr(transformers, f"{family}ForSequenceClassification")(trunk.config).float()
    model.model.load_state_dict(trunk.model.state_dict())
    torch.manual_seed(3)
    torch.nn.init.normal_(model.score.weight)
    model.eval().save_pretrained(directory)
    return model


def reference(model: Any, batch: ColumnBatch) -> torch.Tensor:
    """Values `[R]`: the head applied to the trunk's last states, one unpadded sequence at a time."""
    values = []
    for row in range(batch.num_rows):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        count = int(batch["response_lengths"].values[row])
        states = model.model(tokens[None]).last_hidden_state[0]
        before = states[len(tokens) - count - 1 : len(tokens) - 1]  # the state that predicts each response token
        values.append(model.score(before)[:, 0])
    return torch.cat(values)


def value_settings(checkpoint: Path, layout: ParallelLayout | None = None, **options: Any) -> BackendSettings:
    return make_settings(checkpoint, layout, head="value", **options)


def fit(backend: MegatronBackend, batch: ColumnBatch, **cut: Any) -> dict[str, float]:
    options = {"max_tokens": None, "micro_batch_size": 2, **cut}
    return backend.train_step(batch, SquaredError(), temperature=1.0, **options)


@pytest.fixture(scope="module")
def critic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("critic")
    return directory, reward_model(directory)


@pytest.mark.parametrize("family", ["Qwen3", "Qwen2", "Llama"])
def test_values_are_those_of_the_state_before_each_response_token(family: str, tmp_path: Path) -> None:
    model = reward_model(tmp_path, family=family, tied=family == "Qwen2")
    batch = make_batch(LENGTHS, RESPONSES)
    with torch.no_grad():
        expected = reference(model, batch).numpy()
    assert expected.std() > 1.0
    backend = single(value_settings(tmp_path), trainable=False)
    for max_tokens in (10_000, 60, 1):
        column = backend.forward_values(batch, max_tokens=max_tokens)
        assert column.lengths.tolist() == RESPONSES
        np.testing.assert_allclose(column.values, expected, atol=1e-4)
    exported = dict(backend.named_hf_tensors())
    assert all(torch.equal(exported[name], tensor) for name, tensor in model.named_parameters())
    backend.close()


def test_gradient_of_one_step_equals_autograd(critic: tuple[Path, Any]) -> None:
    directory, model = critic
    batch = make_batch(LENGTHS, RESPONSES)
    weights, targets = (torch.from_numpy(batch[name].values) for name in ("loss_weights", "advantages"))
    loss = (weights * (reference(model, batch) - targets).square()).sum()
    gradients = torch.autograd.grad(loss, [p for n, p in model.named_parameters()])
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    backend = single(value_settings(directory))
    metrics = fit(backend, batch, max_tokens=60)
    backend.close()
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    assert metrics["tokens/sum"] == sum(RESPONSES)


def _after(directory: Path, **cut: Any) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    backend = single(value_settings(directory))
    batch = make_batch([100, 5, 5, 5], [60, 4, 0, 1])
    metrics = [fit(backend, batch, **cut) for _ in range(2)]
    weights = clone(backend.named_hf_tensors())
    backend.close()
    return metrics, weights


@pytest.mark.parametrize("cut", [{}, {"micro_batch_size": 1}, {"max_tokens": 100}], ids=["2", "4", "token-budget"])
def test_step_does_not_depend_on_how_the_batch_is_cut(critic: tuple[Path, Any], cut: dict[str, Any]) -> None:
    whole, expected = _after(critic[0], micro_batch_size=4)
    parts, actual = _after(critic[0], **cut)
    for ours, theirs in zip(parts, whole, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=1e-4)


def _train(rank: int, size: int, init: str, settings: Any, save_to: str | None = None) -> dict[str, Any]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    batch = share(make_batch(LENGTHS, RESPONSES), backend)
    values = backend.forward_values(batch, max_tokens=50)
    metrics = [fit(backend, batch) for _ in range(STEPS)]
    result = {
        "values": values.values.copy(),
        "rank": (backend.data_parallel_rank, backend.data_parallel_size),
        "metrics": metrics,
        "score": dict(clone(backend.named_hf_tensors()))["score.weight"],
    }
    if save_to is not None:
        backend.save(save_to, extra={})
        result["next"] = [fit(backend, batch) for _ in range(STEPS)]
    backend.close()
    return result


@pytest.mark.parametrize(
    "layout",
    [ParallelLayout(tensor=2), ParallelLayout(tensor=2, sequence_parallel=True), ParallelLayout()],
    ids=["tp2", "tp2-sp", "dp2"],
)
def test_two_ranks_equal_one(critic: tuple[Path, Any], layout: ParallelLayout) -> None:
    alone = _train(0, 1, "", value_settings(critic[0]))
    rows = np.split(alone["values"], np.cumsum(RESPONSES)[:-1])
    for answer in run_world(_train, 2, value_settings(critic[0], layout)):
        rank, replicas = answer["rank"]
        np.testing.assert_allclose(answer["values"], np.concatenate(rows[rank::replicas]), atol=1e-4)
        for ours, theirs in zip(answer["metrics"], alone["metrics"], strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
        torch.testing.assert_close(answer["score"], alone["score"], rtol=0, atol=1e-5)


def test_a_checkpoint_of_two_ranks_continues_in_one(critic: tuple[Path, Any], tmp_path: Path) -> None:
    directory = str(tmp_path / "iter")
    saved = run_world(_train, 2, value_settings(critic[0], ParallelLayout(tensor=2)), directory)[0]
    backend = single(value_settings(critic[0], seed=7), load=False)
    backend.load(directory, optimizer=True)
    batch = make_batch(LENGTHS, RESPONSES)
    resumed = [fit(backend, batch) for _ in range(STEPS)]
    backend.save(tmp_path / "again", extra={})
    expected = [fit(backend, batch) for _ in range(STEPS)]
    backend.close()
    assert [m["loss"] for m in resumed] == pytest.approx([m["loss"] for m in saved["next"]], rel=1e-4)
    same = single(value_settings(critic[0], seed=8), load=False)
    same.load(tmp_path / "again", optimizer=True)
    assert [fit(same, batch) for _ in range(STEPS)] == expected
    same.close()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_language_model_gives_the_trunk_and_the_head_starts_at_zero(tied: bool, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "hf", tied=tied)
    imported = import_checkpoint(checkpoint, tmp_path / "dcp").path
    trunk = dict(hf_model("Qwen3", tied=tied).named_parameters())
    batch = make_batch(LENGTHS, RESPONSES)
    losses = []
    for source in (checkpoint, imported):
        backend = single(value_settings(checkpoint, seed=11), load=False)
        backend._model.chunks[-1].score.weight.data.fill_(1.0)  # whatever was there before does not stay
        if source is checkpoint:
            backend.load_hf(checkpoint)
        else:
            backend.load(imported, optimizer=False)
        loaded = dict(backend.named_hf_tensors())
        assert loaded.keys() == (trunk.keys() - {"lm_head.weight"}) | {"score.weight"}
        assert all(torch.equal(loaded[name], trunk[name]) for name in loaded if name != "score.weight")
        assert not backend.forward_values(batch, max_tokens=500).values.any()
        losses.append([fit(backend, batch)["loss"] for _ in range(4)])
        backend.close()
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_a_model_that_cannot_play_the_part_is_refused(critic: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="gives scores, not tokens"):
        single(make_settings(critic[0]))
    reward_model(tmp_path, labels=3)
    with pytest.raises(UnsupportedModelError, match="gives 3 scores, a value model gives one"):
        single(value_settings(tmp_path))


def test_each_head_names_the_forward_pass_it_has(critic: tuple[Path, Any], tmp_path: Path) -> None:
    backend = single(value_settings(critic[0]), trainable=False)
    with pytest.raises(RuntimeError, match="use forward_values"):
        backend.forward_log_probs(make_batch([3], [1]), temperature=1.0, max_tokens=9)
    backend.close()
    policy = single(make_settings(make_checkpoint(tmp_path)), trainable=False)
    with pytest.raises(RuntimeError, match="needs a backend with a value head"):
        policy.forward_values(make_batch([3], [1]), max_tokens=9)
    policy.close()

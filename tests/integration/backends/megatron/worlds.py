"""Tiny checkpoints, batches and worlds of rank processes, shared by the tests of this folder."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relax_engine.algorithms.objective import LossInputs
from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import BackendSettings, OptimizerSettings, ParallelLayout
from relax_engine.stream.columns import Column, ColumnBatch

VOCAB = 61  # not a multiple of 2: the embedding is padded under tensor parallelism
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "beta_fast": 4.0,
    "original_max_position_embeddings": 32,
}


def hf_model(family: str, *, tied: bool = False, seed: int = 0, **overrides: Any) -> Any:
    """A randomly initialised transformers model; norms and biases too, so that a swapped one shows."""
    import transformers

    sizes = SIZES | overrides | {"tie_word_embeddings": tied}
    if not family.startswith(("Qwen2", "Deepseek")):
        sizes["head_dim"] = 12  # not hidden_size / heads
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**sizes)).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.2 + (0.0 if "bias" in name else 1.0))
            else:
                parameter.mul_(4.0)  # default weights are so small that attention would hardly matter
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.copy_(torch.randn_like(bias) * 0.3)
    return model.eval()


def make_checkpoint(
    directory: Path, family: str = "Qwen3", *, dtype: torch.dtype = torch.float32, **options: Any
) -> Path:
    """Write `hf_model` as a Hugging Face directory."""
    hf_model(family, **options).to(dtype).save_pretrained(directory)
    return directory


def make_batch(lengths: Sequence[int], responses: Sequence[int], *, seed: int = 0) -> ColumnBatch:
    """Random tokens, with `loss_weights` of 1 / (number of response tokens) and random `advantages`."""
    rng = np.random.default_rng(seed)
    total = sum(responses)
    return ColumnBatch(
        {
            "tokens": Column.ragged([rng.integers(0, VOCAB, n) for n in lengths], np.int32),
            "response_lengths": Column.fixed(responses, np.int32),
            "loss_weights": Column.ragged([np.full(n, 1 / total) for n in responses], np.float32),
            "advantages": Column.ragged([rng.normal(size=n) for n in responses], np.float32),
        }
    )


class AdvantageLoss:
    """`-sum w (A * log p + 0.1 * H)`: depends on every token, and on the entropy."""

    columns = ("loss_weights", "advantages")
    needs_entropy = True

    def __call__(
        self, log_probs: torch.Tensor, entropy: torch.Tensor | None, inputs: LossInputs
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert entropy is not None
        per_token = -(inputs.columns["advantages"] * log_probs + 0.1 * entropy)
        loss = (inputs.columns["loss_weights"] * per_token).sum()
        return loss, {"tokens/sum": torch.tensor(float(len(log_probs))), "log_prob/max": log_probs.detach().max()}


def make_settings(checkpoint: Path, layout: ParallelLayout | None = None, **options: Any) -> BackendSettings:
    """Backend settings; `optimizer` options go to `OptimizerSettings`."""
    optimizer = OptimizerSettings(**{"lr": 1e-2, "weight_decay": 0.1, **options.pop("optimizer", {})})
    return BackendSettings(str(checkpoint), layout or ParallelLayout(), optimizer, **options)


def single(settings: BackendSettings, *, load: bool = True, **options: Any) -> MegatronBackend:
    """A backend in a world of one, with the checkpoint's weights."""
    backend = MegatronBackend(settings, rank=0, world_size=1, init_method="", **options)
    if load:
        backend.load_hf(settings.hf_checkpoint)
    return backend


def step(
    backend: MegatronBackend, batch: ColumnBatch, *, size: int = 2, max_tokens: int | None = None
) -> dict[str, float]:
    """One training step with `AdvantageLoss`."""
    return backend.train_step(batch, AdvantageLoss(), temperature=0.8, max_tokens=max_tokens, micro_batch_size=size)


def share(batch: ColumnBatch, backend: MegatronBackend) -> ColumnBatch:
    """The rows of the backend's data-parallel rank."""
    return batch.select(np.arange(backend.data_parallel_rank, batch.num_rows, backend.data_parallel_size))


def clone(tensors: Any) -> dict[str, torch.Tensor]:
    """Named tensors by value."""
    return {name: tensor.clone() for name, tensor in tensors}


def as_stored(name: str, gradient: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A parameter of transformers as checkpoints store it: experts one by one."""
    prefix, fused, kind = name.rpartition(".mlp.experts.")
    if not fused:
        yield name, gradient
        return
    for index, of_expert in enumerate(gradient):
        parts = of_expert.chunk(2) if kind == "gate_up_proj" else [of_expert]
        for part, of_part in zip(("gate_proj", "up_proj") if len(parts) == 2 else ("down_proj",), parts, strict=True):
            yield f"{prefix}.mlp.experts.{index}.{part}.weight", of_part


def _rank_main(connection: Any, rank: int, size: int, port: int, task: bytes) -> None:
    """Pickled bytes both ways: torch's own pickling shares memory, which a rank that ends takes with it."""
    torch.set_num_threads(1)
    good = False
    try:
        function, args = pickle.loads(task)
        answer = function(rank, size, f"tcp://127.0.0.1:{port}", *args)
        good = True
    except Exception:
        answer = traceback.format_exc()
        raise
    finally:
        connection.send_bytes(pickle.dumps((good, answer)))


def run_world(function: Callable[..., Any], size: int, *args: Any, deadline_s: float = 120.0) -> list[Any]:
    """Run `function(rank, size, init_method, *args)` in `size` processes; answers by rank.

    The processes must end by themselves with exit code 0.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["relax_engine.backends.megatron.backend"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    task = pickle.dumps((function, args))
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    ranks = [context.Process(target=_rank_main, args=(pipes[rank][1], rank, size, port, task)) for rank in range(size)]
    for process, (_, sender) in zip(ranks, pipes, strict=True):
        process.start()
        sender.close()
    try:
        answers = []
        for rank, (receiver, _) in enumerate(pipes):
            assert receiver.poll(deadline_s), f"rank {rank} gave no answer within {deadline_s} s"
            good, answer = pickle.loads(receiver.recv_bytes())
            assert good, f"rank {rank} failed:\n{answer}"
            answers.append(answer)
        for process in ranks:
            process.join(20)
        assert [process.exitcode for process in ranks] == [0] * size
        return answers
    finally:
        for process in ranks:
            process.kill()

"""The training backend: one model, its optimizer, and the operations the roles call.

What lives here: `MegatronBackend`, which wires the parts of this package together. What does not: the
algorithm (a loss function handed in), the stream, weight transport, checkpoint directories.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from relax_engine.algorithms.objective import LossFn, LossInputs
from relax_engine.backends.megatron import parallel
from relax_engine.backends.megatron.device import compute_device
from relax_engine.backends.megatron.metrics import reduce_metrics
from relax_engine.backends.megatron.model import ResponseTargets, build_model
from relax_engine.backends.megatron.optimizer import update
from relax_engine.backends.megatron.packing import pack, plan_micro_batches
from relax_engine.backends.megatron.rope import RotaryTable
from relax_engine.backends.megatron.rows import RowGather
from relax_engine.backends.megatron.settings import BackendSettings, ParallelLayout, read_settings
from relax_engine.backends.megatron.sharing import Compact, compact
from relax_engine.backends.megatron.snapshots import WeightSnapshots
from relax_engine.backends.megatron.spec import PackedSequences
from relax_engine.backends.megatron.training_state import Training, read_checkpoint, write_checkpoint
from relax_engine.backends.megatron.weights import load_tensors, named_hf_tensors
from relax_engine.checkpoint.dcp_reader import DcpReader
from relax_engine.checkpoint.families import classifier_spec, model_spec, policy_spec, value_spec
from relax_engine.checkpoint.hf_reader import HfReader, read_config
from relax_engine.checkpoint.mapping import SCORE, WeightMap
from relax_engine.stream.columns import Column, ColumnBatch

if TYPE_CHECKING:
    from relax_engine.config import RunConfig

HEADS = {"policy": policy_spec, "value": value_spec, "classifier": classifier_spec}
"""What makes of a checkpoint's architecture the one of a head."""
ROUND_TO = 64
"""Token counts of micro-batches are rounded to this: libraries prepare a matrix product once for each shape."""


class MegatronBackend:
    """One rank's share of a model, trained with Megatron-core.

    Every method is collective: all ranks of the world call the same methods in the same order, each with
    the rows of its data-parallel rank (tensor-parallel ranks of one replica with the same rows).
    """

    def __init__(
        self,
        config: RunConfig | BackendSettings,
        *,
        rank: int,
        world_size: int,
        init_method: str,
        trainable: bool = True,
        layout: ParallelLayout | None = None,
    ) -> None:
        """Join the world and build a randomly initialised model.

        Args:
            config: the run's configuration, or the settings read from it.
            init_method: `tcp://host:port` at which rank 0 listens; unused in a world of one.
            trainable: False builds no optimizer and no gradient buffers (reference, actor_fwd).
            layout: replaces the configured one.

        Raises:
            CheckpointNotFoundError: `hf_checkpoint` is not a model directory.
            UnknownArchitectureError: the checkpoint's architecture has no mapping.
            UnsupportedModelError: it has one, but not with this head.
            ValueError: the configuration asks for what the backend does not offer.
        """
        settings = config if isinstance(config, BackendSettings) else read_settings(config.flat, layout=layout)
        self.settings = settings
        spec = model_spec(read_config(Path(settings.hf_checkpoint)))
        self.spec = HEADS[settings.head](spec)
        self.weights = WeightMap(self.spec)
        parallel.join(rank, world_size, init_method, settings.layout, settings.seed)
        self.iteration = 0
        self._model = build_model(self.spec, settings.layout, dtype=settings.dtype, recompute=settings.recompute)
        self._device = compute_device()
        self._rotary = RotaryTable(self.spec.rope, self.spec.head_dim, settings.dtype, self._device)
        self._training = Training.of(self._model, settings.optimizer, settings.dtype) if trainable else None
        if not trainable:
            self._model.requires_grad_(False).eval()
        self._metrics: list[dict[str, Tensor]] | None = None  # of the micro-batches since the last update
        self.snapshots = WeightSnapshots(self._model)

    @property
    def data_parallel_rank(self) -> int:
        """Which share of the global batch this rank works on."""
        return parallel_state.get_data_parallel_rank()

    @property
    def data_parallel_size(self) -> int:
        """Number of shares of the global batch."""
        return parallel_state.get_data_parallel_world_size()

    @property
    def speaks_for_slice(self) -> bool:
        """Whether this rank reports the results of its data-parallel share; its model-parallel peers have the same."""
        return parallel_state.get_tensor_model_parallel_rank() == 0

    def forward_log_probs(self, batch: ColumnBatch, *, temperature: float, max_tokens: int) -> Column:
        """Log-probabilities of the response tokens under `softmax(logits / temperature)`.

        Args:
            batch: columns `tokens` and `response_lengths`, this data-parallel rank's rows.
            max_tokens: token budget of one forward pass.

        Returns:
            Ragged float32 column in the compact response layout, rows in the batch's order.
        """
        if self.settings.head == "value":
            raise RuntimeError("a backend with a value head has no log-probs; use forward_values")
        return self._forward_rows(batch, temperature=temperature, max_tokens=max_tokens)

    def forward_values(self, batch: ColumnBatch, *, max_tokens: int) -> Column:
        """Values of the states before each response token: entry t estimates the return from token t on.

        Args:
            batch: columns `tokens` and `response_lengths`, this data-parallel rank's rows.
            max_tokens: token budget of one forward pass.

        Returns:
            Ragged float32 column in the compact response layout, rows in the batch's order.
        """
        if self.settings.head != "value":
            raise RuntimeError("forward_values needs a backend with a value head")
        return self._forward_rows(batch, temperature=1.0, max_tokens=max_tokens)

    def forward_likeliest(
        self, batch: ColumnBatch, count: int, *, temperature: float, max_tokens: int
    ) -> dict[str, Column]:
        """Log-probabilities of the response tokens and, at each of them, of the `count` likeliest tokens.

        Returns:
            Ragged columns as of `forward_log_probs`: `log_probs` float32 `[R]`, `ids` int32 and `values` float32
            `[R, count]`, likeliest first.
        """
        rows = self._forward_rows(batch, temperature=temperature, max_tokens=max_tokens, likeliest=count)
        ids, values = (np.ascontiguousarray(part.T) for part in np.split(rows.values[1:], 2))
        return {
            "log_probs": Column(rows.values[0], rows.offsets),
            "ids": Column(ids.astype(np.int32), rows.offsets),
            "values": Column(values, rows.offsets),
        }

    def _forward_rows(self, batch: ColumnBatch, *, temperature: float, max_tokens: int, likeliest: int = 0) -> Column:
        """The model's output without gradient, `[R]`, or `[1 + 2 likeliest, R]`."""
        plan = plan_micro_batches(batch["tokens"].lengths, max_tokens=max_tokens, micro_batch_size=1)
        packings = [self._pack(batch.select(rows)) for rows in plan]
        with torch.no_grad():
            parts = [self._forward(each, temperature, entropy=False, likeliest=likeliest).cpu() for each in packings]
        offsets = np.concatenate([[0], np.cumsum(batch["response_lengths"].values, dtype=np.int64)])
        none = np.empty((1 + 2 * likeliest, 0) if likeliest else 0, np.float32)
        return Column(torch.cat(parts, dim=-1).numpy() if parts else none, offsets)

    def train_step(
        self,
        batch: ColumnBatch,
        loss_fn: LossFn,
        *,
        temperature: float,
        max_tokens: int | None,
        micro_batch_size: int,
    ) -> dict[str, float]:
        """One optimizer step on this data-parallel rank's rows: `accumulate`, then `finish_step`.

        The normalisation in `loss_weights` covers the global batch.
        """
        self.accumulate(
            batch, loss_fn, temperature=temperature, max_tokens=max_tokens, micro_batch_size=micro_batch_size
        )
        return self.finish_step()

    def accumulate(
        self,
        batch: ColumnBatch,
        loss_fn: LossFn,
        *,
        temperature: float,
        max_tokens: int | None,
        micro_batch_size: int,
    ) -> None:
        """Add the gradient of these rows to that of the step under way; nothing is reduced over ranks yet.

        A step of several parts has the gradient of the whole up to rounding, because the loss is a sum.

        Args:
            batch: a part of this data-parallel rank's rows: `tokens`, `response_lengths` and the columns
                the loss needs (`loss_fn.columns`; without that attribute, every column).
            loss_fn: a plain sum over tokens, of log-probs or (with a value head) of values; it asks for entropies
                with a true `needs_entropy` attribute.
            max_tokens: token budget of a micro-batch; None makes micro-batches of `micro_batch_size` rows.
        """
        training = self._require_training("accumulate")
        plan = plan_micro_batches(
            batch["tokens"].lengths,
            max_tokens=max_tokens,
            micro_batch_size=micro_batch_size,
            agree=self._largest_of_all_ranks,
        ) or [np.empty(0, np.int64)]
        if self._metrics is None:
            training.ddp.zero_grad_buffer()
            training.optimizer.zero_grad()  # `.grad` aliases the buffer since the last step, and would be added twice
        parts, self._metrics = self._metrics or [], None  # a failure below leaves no half of a step behind
        parts += get_forward_backward_func()(
            forward_step_func=partial(self._forward_step, loss_fn=loss_fn, temperature=temperature),
            data_iterator=iter([batch.select(rows) if len(rows) else None for rows in plan]),
            model=[training.ddp],
            num_microbatches=len(plan),
            seq_length=1,
            micro_batch_size=1,
            forward_only=False,
        )
        self._metrics = parts

    def finish_step(self, scale: float = 1.0) -> dict[str, float]:
        """One optimizer step on the gradient accumulated since the last one, over all ranks and times `scale`.

        Args:
            scale: what `loss_weights` leave out, the same on every rank: the size of a batch that was not
                known before its end.

        Returns:
            The loss function's metrics over all micro-batches and ranks, times `scale` where they are weighted
            sums, with `grad_norm` (before clipping) and `lr` (of this step).

        Raises:
            RuntimeError: nothing was accumulated.
            FloatingPointError: the gradient is not finite; the weights are unchanged.
        """
        training = self._require_training("finish_step")
        if self._metrics is None:
            raise RuntimeError("finish_step() without accumulate(): there is no gradient to step on")
        metrics, self._metrics = self._metrics, None
        # The token count that Megatron would divide by is left out: `loss_weights` and `scale` normalise.
        finalize_model_grads([training.ddp], None)
        if scale != 1.0:
            training.ddp.scale_gradients(scale)
        learning_rate = training.optimizer.param_groups[0]["lr"]
        grad_norm = update(training.optimizer, self.settings.optimizer.clip_grad)
        training.scheduler.step(1)
        self.iteration += 1
        reduced = reduce_metrics(metrics, parallel_state.get_data_parallel_group(), scale=scale)
        return reduced | {"grad_norm": grad_norm, "lr": float(learning_rate)}

    def _forward_step(
        self, data: Iterator[ColumnBatch | None], model: torch.nn.Module, *, loss_fn: LossFn, temperature: float
    ) -> tuple[Tensor, Any]:
        """Megatron's forward step: the output of one micro-batch, and the function that makes it a loss."""
        rows = next(data)
        packing = self._pack(rows)
        entropy = bool(getattr(loss_fn, "needs_entropy", False))
        column = getattr(loss_fn, "candidates", None)
        candidates = None if rows is None or column is None else rows[column].values
        output = self._forward(packing, temperature, entropy=entropy, candidates=candidates, model=model)
        return output, partial(self._loss, rows=rows, packing=packing, loss_fn=loss_fn, entropy=entropy)

    def _loss(
        self, output: Tensor, *, rows: ColumnBatch | None, packing: Compact, loss_fn: LossFn, entropy: bool
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Loss, number of tokens (unused by the plain sum) and metrics of one micro-batch."""
        tokens = torch.zeros((), dtype=torch.int, device=self._device)
        if rows is None or len(packing.targets) == 0:
            return output.sum(), tokens, {}
        names = getattr(loss_fn, "columns", None) or list(rows)
        scored = output if output.dim() == 2 else output[None]
        per_token, others = scored[0], scored[1 : len(scored) - entropy]
        inputs = LossInputs(
            columns={name: torch.tensor(rows[name].values).to(self._device) for name in names},
            offsets=self._to_device(packing.response_offsets),
            total_lengths=self._to_device(rows["tokens"].lengths),
            candidates=others.T if len(others) else None,
        )
        loss, metrics = loss_fn(per_token, scored[-1] if entropy else None, inputs)
        return loss, tokens, {"loss": loss.detach()} | metrics

    def _pack(self, rows: ColumnBatch | None) -> Compact:
        layout = self.settings.layout
        multiple_of = layout.tensor if layout.sequence_parallel else 1
        return compact(pack(rows, multiple_of=multiple_of), multiple_of=multiple_of, round_to=ROUND_TO)

    def _forward(
        self,
        packing: Compact,
        temperature: float,
        *,
        entropy: bool,
        candidates: np.ndarray | None = None,
        likeliest: int = 0,
        model: torch.nn.Module | None = None,
    ) -> Tensor:
        responses = len(packing.targets)
        padding = (0, -responses % ROUND_TO)
        predictors = RowGather(np.pad(packing.predictors, padding), len(packing.tokens), self._device)
        wanted = packing.targets
        if candidates is not None:
            wanted = np.concatenate([wanted[:, None], candidates.astype(np.int64)], axis=1)
        targets = self._to_device(np.pad(wanted, [padding, *[(0, 0)] * (wanted.ndim - 1)]))
        return (model or self._model)(
            input_ids=self._to_device(packing.tokens)[None],
            position_ids=None,
            attention_mask=None,
            labels=ResponseTargets(predictors, targets, responses, temperature, entropy, likeliest),
            packed_seq_params=PackedSequences.of(
                packing,
                self._rotary,
                self._device,
                heads=self.spec.num_attention_heads // self.settings.layout.tensor,
                groups=self.spec.num_query_groups // self.settings.layout.tensor,
            ),
        )

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _largest_of_all_ranks(self, count: int) -> int:
        if self.data_parallel_size == 1:
            return count
        tensor = torch.tensor([count], device=self._device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=parallel_state.get_data_parallel_group())
        return int(tensor.item())

    def load_hf(self, directory: str | Path) -> None:
        """Load a Hugging Face directory's safetensors, streamed tensor by tensor.

        A value head takes the trunk of a language model as it is, and starts at zero on it.

        Raises:
            CheckpointNotFoundError: not a model directory.
            DamagedCheckpointError: a file is damaged, or tensors are not those of the model; nothing was loaded.
        """
        reader = HfReader(directory)
        reader.check_against(self.weights)
        stored = ((name, reader.tensor(name)) for name in reader.names())
        new = ((name, torch.zeros(self.weights.owner[name].shape)) for name in reader.lacks(self.weights))
        self.load_hf_tensors(itertools.chain(stored, new))

    def load_hf_tensors(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load full Hugging Face tensors, in any order; each rank keeps its slices.

        Raises:
            WeightMappingError: a tensor is missing, unexpected or of the wrong shape.
        """
        load_tensors(self._model, self.weights, tensors)
        self._parameters_changed()

    def named_hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Full Hugging Face tensors one after another, the same on every rank.

        A tensor may share memory with the model: use it before the next `train_step`.
        """
        return named_hf_tensors(self._model, self.weights)

    def save(self, directory: str | Path, *, extra: dict[str, Any], optimizer: bool = True) -> None:
        """Write the whole training state into `directory` (created if absent).

        Args:
            extra: plain values and tensors, the same on every rank; `load` returns them.
            optimizer: False leaves out the optimizer and its schedule.

        Raises:
            TypeError: `extra` holds something that could not be read back safely.
        """
        training = self._training if optimizer else None
        write_checkpoint(Path(directory), self._model, training, iteration=self.iteration, extra=extra)

    def load(self, directory: str | Path, *, optimizer: bool) -> dict[str, Any]:
        """Read one checkpoint directory, written under any tensor- or data-parallel size.

        Args:
            optimizer: also restore optimizer, schedule, iteration and RNG, which continues the run exactly
                when the layout is the same. False takes the weights alone, and for a value head also those of a
                language model.

        Returns:
            The `extra` given to `save` ({} for an imported checkpoint).

        Raises:
            FileNotFoundError: not a complete checkpoint.
            ValueError: `optimizer` is asked for and the checkpoint has none.
        """
        training = self._require_training("load(optimizer=True)") if optimizer else None
        absent = {} if optimizer else self._new_head(Path(directory))
        loaded = read_checkpoint(Path(directory), self._model, training, absent=absent)
        if optimizer:
            self.iteration = loaded["iteration"]
        else:
            self._parameters_changed()
        return loaded.get("extra", {})

    def _new_head(self, directory: Path) -> dict[str, Tensor]:
        """The initial zeros of a value head, where a language model's checkpoint has none."""
        if self.settings.head != "value" or SCORE in DcpReader(directory):
            return {}
        return {SCORE: torch.zeros(self.weights.parameters[SCORE].shape)}

    def _parameters_changed(self) -> None:
        if self._training is not None:
            self._training.optimizer.reload_model_params()

    def _require_training(self, what: str) -> Training:
        if self._training is None:
            raise RuntimeError(f"{what} needs a backend built with trainable=True")
        return self._training

    def close(self) -> None:
        """Leave the world; the last model of the process destroys the process groups."""
        parallel.leave()

"""The training backend: one model, its optimizer, and the operations the roles call.

What lives here: `MegatronBackend`, which wires the parts of this package together. What does not: the
algorithm (a loss function handed in), the stream, weight transport, checkpoint directories.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from relax_engine.algorithms.objective import LossFn
from relax_engine.backends.megatron import parallel, schedule
from relax_engine.backends.megatron.adapters import attach, require_same, trained
from relax_engine.backends.megatron.deferred_writes import DeferredWrites
from relax_engine.backends.megatron.device import compute_device
from relax_engine.backends.megatron.media_model import freeze
from relax_engine.backends.megatron.metrics import reduce_metrics
from relax_engine.backends.megatron.micro_batch import MicroBatch, MicroBatches, Question, question_of
from relax_engine.backends.megatron.model import build_model
from relax_engine.backends.megatron.optimizer import update
from relax_engine.backends.megatron.packing import plan_micro_batches
from relax_engine.backends.megatron.replay import recorded_choices
from relax_engine.backends.megatron.settings import BackendSettings, read_settings
from relax_engine.backends.megatron.snapshots import WeightSnapshots
from relax_engine.backends.megatron.training_state import Content, Training, read_checkpoint, write_checkpoint
from relax_engine.backends.megatron.weights import hf_names_here, load_tensors, named_hf_tensors
from relax_engine.checkpoint.adapters import RECORD, AdapterRecord, read_record, with_adapters
from relax_engine.checkpoint.dcp_reader import DcpReader
from relax_engine.checkpoint.families import classifier_spec, model_spec, policy_spec, value_spec
from relax_engine.checkpoint.hf_reader import HfReader, read_config
from relax_engine.checkpoint.mapping import SCORE, WeightMap
from relax_engine.checkpoint.peft_directory import read_peft
from relax_engine.config.layout import ParallelLayout
from relax_engine.stream.columns import OWN_EXPERTS, Column, ColumnBatch

if TYPE_CHECKING:
    from relax_engine.config import RunConfig

logger = logging.getLogger(__name__)

HEADS = {"policy": policy_spec, "value": value_spec, "classifier": classifier_spec}
"""What makes of a checkpoint's architecture the one of a head."""


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
        self._micro_batches = MicroBatches(settings, self.spec)
        if trainable and settings.frozen:
            freeze(self._model.named_parameters(), settings.frozen)
        self._adapters = attach(self._model, self.weights, settings) if trainable else None
        self._base = settings.hf_checkpoint
        self._training = Training.of(self._model, settings.optimizer, settings.dtype) if trainable else None
        if not trainable:
            self._model.freeze()
        self._writes: DeferredWrites | None = None
        self._metrics: list[dict[str, Tensor]] | None = None  # of the micro-batches since the last update
        self.snapshots = WeightSnapshots(list(trained(self._model, self._adapters)))

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
        ranks = (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_context_parallel_rank())
        return ranks == (0, 0) and schedule.is_last_stage()

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
        return self._forward_rows(batch, self._plan_forward(batch, max_tokens), Question(temperature))

    def forward_routed(self, batch: ColumnBatch, *, temperature: float, max_tokens: int) -> dict[str, Column]:
        """Log-probabilities as of `forward_log_probs`, and the experts that tokens were sent to for them.

        Returns:
            `log_probs`, and `routed_experts`: ragged int16 `[tokens, layers * k]`, -1 in layers without experts and for
            each response's last token, which is not computed.
        """
        plan = self._plan_forward(batch, max_tokens)
        log_probs = self._forward_rows(batch, plan, Question(temperature, choices=True))
        experts = recorded_choices(plan, self.spec, self.settings.layout, compute_device())
        return {"log_probs": log_probs, OWN_EXPERTS: Column(experts, batch["tokens"].offsets)}

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
        return self._forward_rows(batch, self._plan_forward(batch, max_tokens), Question(1.0))

    def forward_likeliest(
        self, batch: ColumnBatch, count: int, *, temperature: float, max_tokens: int
    ) -> dict[str, Column]:
        """Log-probabilities of the response tokens and, at each of them, of the `count` likeliest tokens.

        Returns:
            Ragged columns as of `forward_log_probs`: `log_probs` float32 `[R]`, `ids` int32 and `values` float32
            `[R, count]`, likeliest first.
        """
        question = Question(temperature, likeliest=count)
        rows = self._forward_rows(batch, self._plan_forward(batch, max_tokens), question)
        ids, values = (np.ascontiguousarray(part.T) for part in np.split(rows.values[1:], 2))
        return {
            "log_probs": Column(rows.values[0], rows.offsets),
            "ids": Column(ids.astype(np.int32), rows.offsets),
            "values": Column(values, rows.offsets),
        }

    def _plan_forward(self, batch: ColumnBatch, max_tokens: int) -> list[MicroBatch]:
        return self._plan(batch, max_tokens, 1, together=self.settings.layout.expert > 1)

    def _forward_rows(self, batch: ColumnBatch, plan: list[MicroBatch], question: Question) -> Column:
        """The model's output without gradient, `[R]`, or `[1 + 2 likeliest, R]`."""
        with torch.no_grad(), contextlib.nullcontext() if self._adapters is None else self._adapters.evaluating():
            parts = schedule.run(partial(self._forward_step, question), self._model.chunks, plan, backward=False)
        offsets = np.concatenate([[0], np.cumsum(batch["response_lengths"].values, dtype=np.int64)])
        count = int(offsets[-1])
        shape = (1 + 2 * question.likeliest, count) if question.likeliest else (count,)
        empty = torch.empty(shape, device=compute_device())
        found = torch.cat([part.float() for part in parts], dim=-1).contiguous() if parts else empty
        return Column(schedule.tensor_of_last_stage(found).cpu().numpy(), offsets)

    def _plan(
        self, batch: ColumnBatch, max_tokens: int | None, micro_batch_size: int, *, together: bool
    ) -> list[MicroBatch]:
        """Packed micro-batches, as many as the schedule takes; `together`: as many as on all data-parallel ranks."""

        def agree(count: int) -> int:
            return schedule.whole_rounds(self._largest_of_all_ranks(count) if together else count)

        lengths = batch["tokens"].lengths
        plan = plan_micro_batches(lengths, max_tokens=max_tokens, micro_batch_size=micro_batch_size, agree=agree)
        return [self._micro_batches.pack(batch.select(rows) if len(rows) else None) for rows in plan]

    def _forward_step(
        self, question: Question, data: Iterator[MicroBatch], chunk: torch.nn.Module, loss_fn: LossFn | None = None
    ) -> tuple[Tensor, Any]:
        """Megatron's forward step: a chunk's output for one micro-batch, and what becomes of the last chunk's."""
        micro_batch = next(data)
        output = self._micro_batches.forward(chunk, micro_batch, question)
        if loss_fn is None:
            return output, lambda result: result
        return output, partial(self._micro_batches.loss, micro_batch=micro_batch, loss_fn=loss_fn, question=question)

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
        plan = self._plan(batch, max_tokens, micro_batch_size, together=True) or [self._micro_batches.pack(None)]
        if self._metrics is None:
            for chunk in training.ddp:
                chunk.zero_grad_buffer()
            training.optimizer.zero_grad()  # `.grad` aliases the buffer since the last step, and would be added twice
        parts, self._metrics = self._metrics or [], None  # a failure below leaves no half of a step behind
        step = partial(self._forward_step, question_of(loss_fn, temperature), loss_fn=loss_fn)
        parts += schedule.run(step, training.ddp, plan, backward=True)
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
        finalize_model_grads(training.ddp, None)
        if scale != 1.0:
            for chunk in training.ddp:
                chunk.scale_gradients(scale)
        learning_rate = training.optimizer.param_groups[0]["lr"]
        grad_norm = update(training.optimizer, self.settings.optimizer.clip_grad)
        training.scheduler.step(1)
        self.iteration += 1
        reduced = schedule.value_of_last_stage(
            reduce_metrics(metrics, parallel_state.get_data_parallel_group(), scale=scale)
        )
        if self.spec.experts is not None:
            reduced |= self._micro_batches.replays.take()
        return reduced | {"grad_norm": grad_norm, "lr": float(learning_rate)}

    def _largest_of_all_ranks(self, count: int) -> int:
        if self.data_parallel_size == 1:
            return count
        tensor = torch.tensor([count], device=compute_device())
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
        here = hf_names_here(self._model, self.weights)
        stored = ((name, reader.tensor(name)) for name in reader.names() if name in here)
        new = ((name, torch.zeros(self.weights.owner[name].shape)) for name in reader.lacks(self.weights))
        self.load_hf_tensors(itertools.chain(stored, new))
        self._base = str(directory)

    def load_adapters(self, directory: str | Path) -> None:
        """Start the adapters from a PEFT directory.

        Raises:
            CheckpointNotFoundError: it is none.
            DamagedCheckpointError: its adapters are of another shape, or for other layers.
            RuntimeError: this backend trains no adapters.
        """
        if self._adapters is None:
            raise RuntimeError("load_adapters() needs a backend with adapters (--lora-rank)")
        load_tensors(self._adapters, self._adapters.map, read_peft(directory, self._adapters.map).items())
        self._parameters_changed()

    def load_hf_tensors(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load full Hugging Face tensors, in any order; each rank keeps its slices.

        Raises:
            WeightMappingError: a tensor is missing, unexpected or of the wrong shape.
        """
        load_tensors(self._model, self.weights, tensors)
        self._parameters_changed()

    def named_hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Full Hugging Face tensors one after another, the same on every rank; adapters are merged into them.

        A tensor may share memory with the model: use it before the next `train_step`.
        """
        weights = named_hf_tensors(self._model, self.weights)
        if self._adapters is None:
            return weights
        adapters = {name: tensor.clone() for name, tensor in named_hf_tensors(self._adapters, self._adapters.map)}
        return with_adapters(weights, adapters, self._adapters.map.shape.scale)

    def save(
        self, directory: str | Path, *, extra: dict[str, Any], optimizer: bool = True, deferred: bool = False
    ) -> None:
        """Write the whole training state into `directory` (created if absent); of a model with adapters only these.

        Args:
            extra: plain values and tensors, the same on every rank; `load` returns them.
            optimizer: False leaves out the optimizer and its schedule.
            deferred: only copy the state; it is written while training goes on, until `finish_save`.

        Raises:
            TypeError: `extra` holds something that could not be read back safely.
        """
        training = self._training if optimizer else None
        writes = DeferredWrites() if deferred else None
        write_checkpoint(Path(directory), self._content, training, iteration=self.iteration, extra=extra, writes=writes)
        if self._adapters is not None and dist.get_rank() == 0:
            record = AdapterRecord.of(self._adapters.map.shape, self._base)
            Path(directory, RECORD).write_text(record.to_json(), encoding="utf-8")
        if writes is not None:
            writes.start()
        self._writes = writes

    @property
    def _content(self) -> Content:
        """What checkpoints hold of the model."""
        return self._model if self._adapters is None else self._adapters

    def finish_save(self, timeout: float) -> None:
        """Wait until what `save` deferred is on disk.

        Raises:
            TimeoutError: it is not after `timeout` seconds.
            OSError: a file could not be written.
        """
        if self._writes is not None:
            self._writes.finish(timeout)
            self._writes = None

    def load(self, directory: str | Path, *, optimizer: bool) -> dict[str, Any]:
        """Read one checkpoint directory, written under any tensor- or data-parallel size.

        One of adapters leaves the weights under them as they are: load these before.

        Args:
            optimizer: also restore optimizer, schedule, iteration and RNG, which continues the run exactly
                when the layout is the same. False takes the weights alone, and for a value head also those of a
                language model.

        Returns:
            The `extra` given to `save` ({} for an imported checkpoint).

        Raises:
            FileNotFoundError: not a complete checkpoint.
            ValueError: `optimizer` is asked for and the checkpoint has none, or not of what this backend trains.
        """
        training = self._require_training("load(optimizer=True)") if optimizer else None
        record = read_record(Path(directory))
        require_same(self._adapters, record, directory, whole_training=optimizer)
        if record is not None and record.base != self._base:
            logger.warning("%s was trained on %s; its adapters now change %s", directory, record.base, self._base)
        content: Content = self._model if record is None or self._adapters is None else self._adapters
        absent = {} if optimizer or record is not None else self._absent(Path(directory))
        loaded = read_checkpoint(Path(directory), content, training, absent=absent)
        if record is None:
            self._base = str(directory)
        if optimizer:
            self.iteration = loaded["iteration"]
        else:
            self._parameters_changed()
        return loaded.get("extra", {})

    def _absent(self, directory: Path) -> dict[str, Tensor]:
        """What a checkpoint of whole weights does not have, and its values: adapters, and the zeros of a new head."""
        if self._adapters is not None:
            return {name: parameter.detach() for name, parameter in self._adapters.named_parameters().items()}
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

"""One micro-batch: from rows of the stream to the model's input, and from its output to the loss.

What lives here: what every rank of a replica does with the same rows. What does not: which rows (`packing.py`), the
order of micro-batches (`schedule.py`), the algorithm (a loss function handed in).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from megatron.core import parallel_state
from torch import Tensor

from relax_engine.algorithms.objective import LossFn, LossInputs
from relax_engine.backends.megatron.context import Share, share
from relax_engine.backends.megatron.device import compute_device
from relax_engine.backends.megatron.experts import Routing
from relax_engine.backends.megatron.media_model import MediaInput
from relax_engine.backends.megatron.media_rows import with_media
from relax_engine.backends.megatron.model import ResponseTargets
from relax_engine.backends.megatron.mrope import MultimodalRotary
from relax_engine.backends.megatron.packing import Packing, pack
from relax_engine.backends.megatron.replay import ReplayCount, replayed_choices
from relax_engine.backends.megatron.rope import RotaryTable
from relax_engine.backends.megatron.rows import RowGather
from relax_engine.backends.megatron.settings import BackendSettings
from relax_engine.backends.megatron.sharing import compact
from relax_engine.backends.megatron.spec import PackedSequences
from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.multimodal.media import TRAIN_INPUTS
from relax_engine.stream.columns import ColumnBatch

ROUND_TO = 64
"""Token counts of micro-batches are rounded to this: libraries prepare a matrix product once for each shape."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about each response token: its log-probability (or value) at `temperature`, and more on demand."""

    temperature: float
    entropy: bool = False
    candidates: str | None = None
    """Column of further tokens to score in the place of each."""
    likeliest: int = 0
    choices: bool = False
    """Also ask the routers, whose answers are in the micro-batch."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows (None: the placeholder of a rank without any), this rank's share of their tokens, and all their media."""

    rows: ColumnBatch | None
    response_offsets: np.ndarray
    share: Share
    media: dict[str, Tensor] | None
    stand_ins: np.ndarray
    choices: dict[int, Tensor] = field(default_factory=dict)
    """The experts of this rank's tokens, `[tokens, k]` by layer, once the routers were asked."""

    @property
    def responses(self) -> int:
        """Response tokens of all ranks that share the micro-batch."""
        return int(self.response_offsets[-1])


class MicroBatches:
    """Makes the input of a model chunk of micro-batches, and calls it."""

    def __init__(self, settings: BackendSettings, spec: ModelSpec) -> None:
        self._layout, self._spec = settings.layout, spec
        self._aux_loss_coeff = settings.aux_loss_coeff
        self._device = compute_device()
        self._rotary = _rotary(spec, settings.dtype, self._device)
        self.replays = ReplayCount(self._device)

    def pack(self, rows: ColumnBatch | None) -> MicroBatch:
        """Pack rows (columns `tokens`, `response_lengths` and of media), each shared prompt once.

        Raises:
            MediaMismatchError: a row's media are not those of its placeholders.
        """
        layout = self._layout
        multiple_of = layout.tensor if layout.sequence_parallel else 1
        if layout.context == 1:
            packing, media = self._with_media(pack(rows, multiple_of=multiple_of), rows)
            packed = compact(packing, multiple_of=multiple_of, round_to=ROUND_TO)
            return MicroBatch(rows, packed.response_offsets, share(packed), media, packed.stand_ins)
        packing, media = self._with_media(pack(rows), rows)
        packed = compact(packing)
        rank = parallel_state.get_context_parallel_rank()
        own = share(packed, rank, layout.context, multiple_of=multiple_of)
        return MicroBatch(rows, packed.response_offsets, own, media, packed.stand_ins)

    def _with_media(self, packing: Packing, rows: ColumnBatch | None) -> tuple[Packing, dict[str, Tensor] | None]:
        return (packing, None) if self._spec.media is None else with_media(packing, rows, self._spec.media)

    def forward(self, chunk: torch.nn.Module, micro_batch: MicroBatch, question: Question) -> Tensor:
        """The chunk's output: hidden states, or from the last chunk what was asked."""
        own, rows, layout = micro_batch.share, micro_batch.rows, self._layout
        padding = (0, (own.width + -own.width % ROUND_TO) - len(own.targets))
        wanted = own.targets
        if rows is not None and question.candidates is not None:
            candidates = rows[question.candidates].values.astype(np.int64)[own.chosen]
            wanted = np.concatenate([wanted[:, None], candidates], axis=1)
        targets = ResponseTargets(
            predictors=RowGather(np.pad(own.predictors, padding), len(own.tokens), self._device),
            tokens=self._to_device(np.pad(wanted, [padding, *[(0, 0)] * (wanted.ndim - 1)])),
            count=micro_batch.responses,
            order=None if own.order is None else self._to_device(_padded_order(own)),
            temperature=question.temperature,
            entropy=question.entropy,
            likeliest=question.likeliest,
        )
        output: Tensor = chunk(
            input_ids=self._to_device(own.tokens)[None],
            position_ids=None,
            attention_mask=None,
            labels=targets,
            packed_seq_params=PackedSequences.of(
                own,
                self._rotary,
                self._device,
                heads=self._spec.num_attention_heads // layout.tensor,
                groups=max(1, self._spec.num_query_groups // layout.tensor),
                context=layout.context,
                routing=self._routing(micro_batch, question),
                media=_media_input(micro_batch),
            ),
        )
        return output

    def _routing(self, micro_batch: MicroBatch, question: Question) -> Routing | None:
        """Of the load-balancing loss a micro-batch has the part that it has of the step's loss weights."""
        if self._spec.experts is None:
            return None
        rows = micro_batch.rows
        weighed = self._aux_loss_coeff > 0 and rows is not None and "loss_weights" in rows
        weight = float(rows["loss_weights"].values.sum()) if weighed and rows is not None else 0.0
        replayed = replayed_choices(rows, micro_batch.share, self._spec)
        return Routing(
            micro_batch.share.real,
            self._aux_loss_coeff * weight,
            None if replayed is None else self._to_device(replayed),
            self.replays,
            micro_batch.choices if question.choices else None,
        )

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def loss(
        self, output: Tensor, *, micro_batch: MicroBatch, loss_fn: LossFn, question: Question
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Loss, number of tokens (unused by the plain sum) and metrics of the last chunk's output."""
        rows = micro_batch.rows
        tokens = torch.zeros((), dtype=torch.int, device=self._device)
        if rows is None or micro_batch.responses == 0:
            return output.sum(), tokens, {}
        names = getattr(loss_fn, "columns", None) or [name for name in rows if name != TRAIN_INPUTS]
        scored = output if output.dim() == 2 else output[None]
        per_token, others = scored[0], scored[1 : len(scored) - question.entropy]
        inputs = LossInputs(
            columns={name: torch.tensor(rows[name].values).to(self._device) for name in names},
            offsets=self._to_device(micro_batch.response_offsets),
            total_lengths=self._to_device(rows["tokens"].lengths),
            candidates=others.T if len(others) else None,
        )
        loss, metrics = loss_fn(per_token, scored[-1] if question.entropy else None, inputs)
        return loss, tokens, {"loss": loss.detach().clone()} | metrics


def _rotary(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> RotaryTable | MultimodalRotary:
    if spec.media is None:
        return RotaryTable(spec.rope, spec.rotary_head_dim, dtype, device)
    return MultimodalRotary(spec.rope, spec.head_dim, spec.media.axes(spec.head_dim // 2), dtype, device)


def _media_input(micro_batch: MicroBatch) -> MediaInput | None:
    if micro_batch.media is None or micro_batch.share.features is None:
        return None
    return MediaInput.of(micro_batch.media, micro_batch.share.features)


def question_of(loss_fn: LossFn, temperature: float) -> Question:
    """What a loss function needs to know of each response token."""
    return Question(
        temperature,
        entropy=bool(getattr(loss_fn, "needs_entropy", False)),
        candidates=getattr(loss_fn, "candidates", None),
    )


def _padded_order(own: Share) -> np.ndarray:
    """`order` where each rank's part is padded to a multiple of `ROUND_TO`."""
    assert own.order is not None
    padded = own.width + -own.width % ROUND_TO
    return own.order // max(own.width, 1) * padded + own.order % max(own.width, 1)

"""What supervised losses need beside tokens: the weight of each token, and of pairs their margins.

What lives here: columns of a part of a batch, as the trainer makes them before its gradient. What does not: the
producer of the rows (`sft`), and the losses (`relax_engine.algorithms`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from relax_engine.config import RunConfig
from relax_engine.stream.columns import Column, ColumnBatch

if TYPE_CHECKING:
    from relax_engine.algorithms.settings import Reduction


def supervised_columns(batch: ColumnBatch, config: RunConfig) -> dict[str, Column]:
    """The columns of the loss, without the division by the size of the batch.

    `sft`, `seq_cls`: `loss_weights`, 1 for every answer token. `dpo`: those of `preference_columns`, of `log_probs`
    and, with a reference, `ref_log_probs`; the rows must be whole pairs.
    """
    masks = batch["loss_masks"]
    if config.flat.loss_type != "dpo":
        return {"loss_weights": Column(masks.values.astype(np.float32), masks.offsets)}
    import torch

    from relax_engine.algorithms.preference import preference_columns

    def tensor(name: str) -> torch.Tensor:
        return torch.tensor(batch[name].values)

    columns = preference_columns(
        tensor("log_probs"),
        tensor("ref_log_probs") if "ref_log_probs" in batch else None,
        tensor("loss_masks") != 0,
        torch.tensor(masks.offsets),
        beta=config.flat.dpo_beta,
    )
    return {name: Column(values.numpy(), masks.offsets) for name, values in columns.items()}


def supervised_reduction(config: RunConfig) -> Reduction:
    """What the loss is a mean over: answer tokens (one for a class), or pairs."""
    return "sample_mean" if config.flat.loss_type == "dpo" else "token_mean"

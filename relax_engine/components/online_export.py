"""`--save-hf`: each checkpoint also as a Hugging Face directory, made beside the training.

What lives here: the queue of exports and the user's hook after each. What does not: the conversion
(`relax_engine.checkpoint.exporter`), which reads the checkpoint's files and needs neither the ranks nor a device.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from relax_engine.config import RunConfig
from relax_engine.utils.hooks import load_function

logger = logging.getLogger(__name__)


class OnlineExport:
    """Exports checkpoints one after another in a thread of its own. Life: `submit` ... -> `settled`.

    A checkpoint may be deleted once `settled` says that no export reads it. What an export or hook failed with is
    raised by the next call.
    """

    def __init__(self, config: RunConfig) -> None:
        self._args = config.flat
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save-hf")
        self._pending: list[Future[None]] = []
        path = self._args.save_hf_post_hook_path
        self._hook = load_function(path) if path else None

    def submit(self, checkpoint: Path, rollout_id: int) -> None:
        """Export a complete checkpoint to `--save-hf`, with `{rollout_id}` filled in.

        Raises:
            Exception: what an earlier export, or its hook, ended with.
        """
        self._raise_failures()
        target = self._args.save_hf.format(rollout_id=rollout_id)
        self._pending.append(self._thread.submit(self._export, checkpoint, target, rollout_id))

    def settled(self, timeout: float) -> None:
        """Wait until every submitted export is done.

        Raises:
            TimeoutError: one takes longer than `timeout` seconds.
            Exception: what an export, or its hook, ended with.
        """
        for future in self._pending:
            future.result(timeout)
        self._pending.clear()

    def _raise_failures(self) -> None:
        done = [future for future in self._pending if future.done()]
        self._pending = [future for future in self._pending if future not in done]
        for future in done:
            future.result()

    def _export(self, checkpoint: Path, target: str, rollout_id: int) -> None:
        from relax_engine.checkpoint.exporter import export_checkpoint
        from relax_engine.checkpoint.fp8 import Fp8

        args = self._args
        quantised = args.save_hf_dtype == "fp8"
        rows, columns = args.save_hf_fp8_block_size
        result = export_checkpoint(
            checkpoint,
            target,
            origin_hf_dir=args.hf_checkpoint,
            dtype="bfloat16",
            fp8=Fp8(args.save_hf_fp8_quant_mode, (rows, columns)) if quantised else None,
            force=True,
        )
        if self._hook is not None:
            lora = args.lora_rank > 0
            outcome: Any = self._hook(args, str(result.path), rollout_id, dtype=args.save_hf_dtype, is_lora=lora)
            if inspect.isawaitable(outcome):
                asyncio.run(_awaited(outcome))


async def _awaited(outcome: Any) -> None:
    await outcome

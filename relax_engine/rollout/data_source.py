"""The order in which prompts are seen: epochs, shuffling, tokenisation and an exact resume.

The order is a function of (file contents, seed, epoch) alone, so a group is made again from its number.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_engine.rollout.prompt_media import MediaSettings, PromptMedia, PromptMediaError
from relax_engine.rollout.prompt_rows import PromptRows
from relax_engine.rollout.prompts import PromptDataError, messages_of
from relax_engine.types import Sample, SampleGroup
from relax_engine.utils.hooks import load_function

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """How rows become prompts."""

    prompt_data: Sequence[str]
    input_key: str = "input"
    label_key: str | None = None
    metadata_key: str | None = None
    apply_chat_template: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    system_prompt: str | None = None
    shuffle: bool = False
    seed: int = 42
    max_prompt_tokens: int | None = None
    custom_prompt_path: str | None = None
    """Function `(prompt, row) -> prompt`; a row is the dictionary of its columns."""
    media: MediaSettings | None = None
    """How prompts' media become tokens; None where prompts are text."""

    @classmethod
    def from_config(cls, args: Any, *, prompt_data: Sequence[str] | None = None) -> DataSettings:
        """From the flat configuration; `prompt_data` replaces the training files (evaluation, in file order)."""
        return cls(
            prompt_data=args.prompt_data if prompt_data is None else prompt_data,
            input_key=args.input_key,
            label_key=args.label_key,
            metadata_key=args.metadata_key,
            apply_chat_template=args.apply_chat_template,
            chat_template_kwargs=args.apply_chat_template_kwargs,
            system_prompt=args.system_prompt,
            shuffle=args.rollout_shuffle and prompt_data is None,
            seed=args.rollout_seed,
            max_prompt_tokens=args.rollout_max_prompt_len,
            custom_prompt_path=args.custom_prompt_path,
            media=MediaSettings.from_config(args) if args.multimodal_keys else None,
        )


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Where the source stands: groups handed out, counted from the start of the run, except the `pending` ones."""

    epoch: int = 0
    offset: int = 0
    group_index: int = 0
    fingerprint: str = ""
    pending: Sequence[int] = ()

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)


class PromptDataSource:
    """Hands out prompt groups in a reproducible order.

    Group `g` of a data set with N rows is row `order(epoch)[offset]` with `epoch, offset = divmod(g, N)`.
    Example, N = 3: after four groups the position is `(epoch 1, offset 1, group_index 4)`.
    """

    def __init__(self, settings: DataSettings, tokenizer: PreTrainedTokenizerBase, samples_per_group: int) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.samples_per_group = samples_per_group
        wanted = [key for key in (settings.input_key, settings.label_key) if key]
        wanted += list(settings.media.keys.values()) if settings.media is not None else []
        self._rows = PromptRows(settings.prompt_data, wanted)
        decisive = json.dumps([wanted, settings.shuffle, settings.seed, self._rows.digest])
        self.fingerprint = hashlib.sha256(decisive.encode()).hexdigest()
        self._build = load_function(settings.custom_prompt_path) if settings.custom_prompt_path else None
        self._media = PromptMedia(settings.media, settings.prompt_data) if settings.media is not None else None
        self._next = 0
        self._orders: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def parallel(self) -> int:
        """Groups that are worth preparing at a time, in threads."""
        return 1 if self._media is None else self._media.parallel

    def close(self) -> None:
        """End processes that prepare media."""
        if self._media is not None:
            self._media.close()

    @property
    def position(self) -> DataPosition:
        """The position after everything handed out so far."""
        return self.position_at(self._next)

    def position_at(self, group_index: int, pending: Sequence[int] = ()) -> DataPosition:
        """The position that continues with the groups `pending` and then `group_index`, `group_index + 1`, ..."""
        epoch, offset = divmod(group_index, len(self))
        return DataPosition(epoch, offset, group_index, self.fingerprint, tuple(pending))

    def restore(self, position: dict[str, Any]) -> None:
        """Continue with the group after a saved position; whoever saved pending groups asks for them by number.

        Raises:
            PromptDataError: the data are not those of the saved run.
        """
        saved = DataPosition(**position)
        if saved.fingerprint != self.fingerprint:
            raise PromptDataError(
                f"--prompt-data {self.settings.prompt_data!r} changed since the checkpoint was written "
                f"(fingerprint {self.fingerprint[:12]}, saved {saved.fingerprint[:12]}): resume with the same rows, "
                "keys, seed and --rollout-shuffle, or start a new run with another --save"
            )
        self._next = saved.group_index

    def get_groups(self, count: int) -> list[SampleGroup]:
        """The next `count` prompt groups, each with `samples_per_group` pending samples."""
        first, self._next = self._next, self._next + count
        numbers = range(first, self._next)
        if self.parallel == 1:
            return [self.group(number) for number in numbers]
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="prompts") as threads:
            return list(threads.map(self.group, numbers))

    def restored(self, groups: dict[int, SampleGroup]) -> dict[int, SampleGroup]:
        """Groups of a checkpoint, with the tensors of their media made again."""
        for sample in (sample for group in groups.values() for sample in group):
            if self._media is not None and sample.multimodal_inputs:
                sample.multimodal_train_inputs = self._media.train_inputs(sample.multimodal_inputs)
        return groups

    def group(self, number: int) -> SampleGroup:
        """Prompt group `number` of the run, wherever the source stands.

        Where rows with unusable media are skipped, the next row of the epoch that is usable takes the place of one.

        Raises:
            PromptDataError: the row cannot be used, or none can; names it.
        """
        media = self.settings.media
        if media is None or not media.skip_invalid:
            return self.row_group(self._row(number), number)
        for step in range(len(self)):
            try:
                return self.row_group(self._row(number, step), number)
            except PromptMediaError as error:
                logger.warning("%s; the next row takes its place (--sft-invalid-multimodal-strategy skip)", error)
                last = error
        raise last

    def _row(self, group_index: int, step: int = 0) -> int:
        """The row of a group, or the one `step` places behind it in the epoch."""
        epoch, offset = divmod(group_index, len(self))
        offset = (offset + step) % len(self)
        if epoch not in self._orders:
            # Groups are asked for about in order: no more than the neighbouring epochs are needed again.
            near = {key: order for key, order in self._orders.items() if abs(key - epoch) == 1}
            self._orders = {**near, epoch: self._epoch_order(epoch)}
        return int(self._orders[epoch][offset])

    def row_group(self, row: int, group_index: int) -> SampleGroup:
        """Row `row` of the files as a prompt group.

        Raises:
            PromptDataError: it cannot be used; names it.
        """
        settings = self.settings
        where = f"row {row} of --prompt-data {list(settings.prompt_data)}"
        record = self._rows[row]
        prompt = record.get(settings.input_key)
        if self._build is not None:
            prompt = self._build(prompt, record)
        prompt = messages_of(prompt, where)
        media: dict[str, Any] | None = None
        inputs: dict[str, Any] | None = None
        if self._media is None:
            tokens = self._checked(self._ids(self._text(prompt, where)), where)
        else:
            found = self._media.read(prompt, record, where)
            encoded = self._media.encode(self._text(found.prompt, where), found, where)
            tokens = self._checked(encoded.tokens, where)
            if found.media:
                media, inputs = {str(kind): items for kind, items in found.media.items()}, encoded.train_inputs
        label = record.get(settings.label_key) if settings.label_key else None
        if label is not None and not isinstance(label, str):
            raise PromptDataError(
                f"{where}: label {label!r} is {type(label).__name__}, not a string; convert the column "
                f"{settings.label_key!r} first (`relax data convert`)"
            )
        metadata = _metadata(record.get(settings.metadata_key), where) if settings.metadata_key else {}
        first = group_index * self.samples_per_group
        return [
            Sample(
                group_index=group_index,
                index=first + member,
                prompt=prompt,
                tokens=list(tokens),
                multimodal_inputs=media,
                multimodal_train_inputs=inputs,
                label=label,
                metadata=dict(metadata),
            )
            for member in range(self.samples_per_group)
        ]

    def _text(self, prompt: str | list[dict[str, Any]], where: str) -> str:
        settings = self.settings
        if settings.apply_chat_template:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            if settings.system_prompt and messages[0]["role"] != "system":
                messages = [{"role": "system", "content": settings.system_prompt}, *messages]
            return str(
                self.tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **(settings.chat_template_kwargs or {})
                )
            )
        if isinstance(prompt, str):
            return prompt
        raise PromptDataError(f"{where}: the prompt is a list of messages; pass --apply-chat-template")

    def _ids(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return tokens

    def _checked(self, tokens: list[int], where: str) -> list[int]:
        limit = self.settings.max_prompt_tokens
        if limit is not None and len(tokens) > limit:
            raise PromptDataError(
                f"{where}: the prompt has {len(tokens)} tokens, the limit is {limit}; "
                "raise --rollout-max-prompt-len (within the model's context) or drop the row"
            )
        return tokens

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if not self.settings.shuffle:
            return np.arange(len(self))
        return np.random.default_rng([self.settings.seed, epoch]).permutation(len(self))


def _metadata(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(value)
    if isinstance(value, dict):
        return value
    raise PromptDataError(f"{where}: metadata must be a struct or a JSON object, got {value!r:.80}")

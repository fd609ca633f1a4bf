"""Which reward a sample gets.

What lives here: the order in which the custom function, the row, the flags, the look of the row and the fallback
decide. What does not: the names (`registry`).
"""

from __future__ import annotations

import logging
import re

from relax_engine.rewards.functions import is_async, takes_groups
from relax_engine.rewards.registry import BUILTIN, RewardEntry, reward_entry, reward_names
from relax_engine.rewards.settings import RewardSettings
from relax_engine.types import Sample
from relax_engine.utils.hooks import absolute_reference, load_function

ZERO = "zero"

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:/\d+)?")
_LETTER = re.compile(r"\s*<answer>\s*[A-Z]\s*</answer>\s*")

logger = logging.getLogger(__name__)


class RewardChoice:
    """Finds the reward of a sample.

    In this order: `--custom-rm-path`; `metadata["rm_type"]`; `--rm-type`; with `--rm-type-infer` the one reward that
    the row looks like; `--rm-type-fallback`. A name that nobody registered is an error, unless there is a fallback.
    """

    def __init__(self, settings: RewardSettings) -> None:
        """Load the custom function.

        Raises:
            ValueError: an unknown name, a bad path, or `group_rm` without a function for groups.
            ImportError: the custom function's module cannot be imported.
        """
        self._settings = settings
        self._warned: set[str] = set()
        self._custom = _custom_entry(settings)
        self.as_group = settings.group_rm or (
            self._custom is not None and not settings.terms and takes_groups(load_function(self._custom.reference))
        )
        """Whether the function gets all samples of a prompt group."""
        self._fallback = _fallback_entry(settings.rm_type_fallback)
        self.default = self._custom or (reward_entry(settings.rm_type) if settings.rm_type else None)
        """The reward of samples whose row says nothing; None if there is none."""

    def entry(self, sample: Sample, name: str | None = None) -> RewardEntry:
        """The reward called `name`, or else the sample's own.

        Raises:
            ValueError: unknown, or none is configured.
        """
        if name is not None:
            return reward_entry(name)
        if self._custom is not None:
            return self._custom
        wanted = sample.metadata.get("rm_type") or self._settings.rm_type
        if wanted is None and self._settings.rm_type_infer:
            wanted = infer(sample)
        if wanted is not None:
            try:
                return reward_entry(str(wanted).strip())
            except ValueError:
                if self._fallback is None:
                    raise
        if self._fallback is None:
            raise ValueError(
                f"sample {sample.index} of group {sample.group_index} has no reward: "
                "give --rm-type or --custom-rm-path, or set rm_type in its metadata"
            )
        self._warn(f"reward {wanted!r} is unknown" if wanted else "rows name no reward")
        return self._fallback

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s: --rm-type-fallback %s scores these samples", what, self._settings.rm_type_fallback)


def infer(sample: Sample) -> str | None:
    """The name of the one built-in reward whose rows look like this one; None for none and for several.

    A row with instructions is `ifbench`, with tests `code`, with choices and a right letter `gpqa`; a label that is a
    plain number or fraction is `math`, one that is a letter in `<answer>` tags `multiple_choice`.
    """
    metadata, label = sample.metadata, sample.label or ""
    looks = {
        "ifbench": bool(metadata.get("instruction_id_list")),
        "code": bool(metadata.get("tests")),
        "gpqa": bool(metadata.get("choices") and metadata.get("correct_letter")),
        "math": _NUMBER.fullmatch(label.strip()) is not None,
        "multiple_choice": _LETTER.fullmatch(label) is not None,
    }
    found = [name for name, like in looks.items() if like]
    return found[0] if len(found) == 1 else None


def _custom_entry(settings: RewardSettings) -> RewardEntry | None:
    path = settings.custom_rm_path
    if path is not None:
        return RewardEntry(absolute_reference(path), is_async(load_function(absolute_reference(path))))
    if settings.group_rm and (settings.rm_type is None or settings.rm_type in BUILTIN):
        raise ValueError(
            f"--group-rm needs a reward for groups, and --rm-type {settings.rm_type} scores single samples: "
            "give --custom-rm-path"
        )
    return None


def _fallback_entry(name: str | None) -> RewardEntry | None:
    if name is None:
        return None
    return reward_entry("dummy" if name == ZERO and ZERO not in reward_names() else name)


def default_module(entry: RewardEntry | None) -> tuple[str, ...]:
    """The modules that workers should have imported before the first call: that of a built-in reward."""
    known = {built_in.reference for built_in in BUILTIN.values() if not built_in.run_async}
    return (entry.reference.partition(":")[0],) if entry is not None and entry.reference in known else ()

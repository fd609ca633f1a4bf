"""Labels of sequence classification: from the text of a data column to a target per class.

What lives here: reading label names from a model's configuration, and targets of one row. What does not: the loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from relax_engine.rollout.prompts import PromptDataError


def class_names(hf_config: Mapping[str, Any]) -> list[str]:
    """The labels of a `...ForSequenceClassification` configuration in the order of the head's rows."""
    names = hf_config.get("id2label") or {index: f"LABEL_{index}" for index in range(hf_config.get("num_labels", 2))}
    return [str(names[key]) for key in sorted(names, key=int)]


def class_targets(label: str, names: Sequence[str], *, multi_label: bool, where: str) -> list[float]:
    """0 or 1 for each class.

    Args:
        label: The name of a class, or its number; for several labels a JSON list of these, which may be empty.
        names: All classes.
        multi_label: Whether a row has any number of labels, or exactly one.
        where: The row, for messages.

    Raises:
        PromptDataError: no such class, or no JSON list.
    """
    chosen: Any = [label]
    if multi_label:
        try:
            chosen = json.loads(label)
        except json.JSONDecodeError:
            chosen = None
        if not isinstance(chosen, list):
            raise PromptDataError(f'{where}: {label!r} is no JSON list of labels, such as ["a", "b"]')
    targets = [0.0] * len(names)
    for item in map(str, chosen):
        if item not in names and not (item.isdecimal() and int(item) < len(names)):
            raise PromptDataError(f"{where}: {item!r} is none of the model's labels {list(names)[:20]}")
        targets[names.index(item) if item in names else int(item)] = 1.0
    return targets

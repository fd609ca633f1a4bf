"""Class labels in words, numbers and lists."""

from __future__ import annotations

import pytest

from relax_engine.rollout.class_labels import class_names, class_targets
from relax_engine.rollout.prompts import PromptDataError

NAMES = ["no", "yes", "maybe"]


def test_names_are_in_the_order_of_the_head() -> None:
    assert class_names({"id2label": {"10": "k", "2": "c", "0": "a"}}) == ["a", "c", "k"]
    assert class_names({"num_labels": 3}) == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize(
    ("label", "multi_label", "targets"),
    [
        ("yes", False, [0, 1, 0]),
        ("2", False, [0, 0, 1]),
        ('["maybe", 0]', True, [1, 0, 1]),
        ("[]", True, [0, 0, 0]),
    ],
)
def test_targets(label: str, multi_label: bool, targets: list[float]) -> None:
    assert class_targets(label, NAMES, multi_label=multi_label, where="row 1") == targets


@pytest.mark.parametrize(
    ("label", "multi_label", "message"),
    [
        ("perhaps", False, r"row 1: 'perhaps' is none of the model's labels \['no', 'yes', 'maybe'\]"),
        ("3", False, "row 1: '3' is none"),
        ("", False, "row 1: '' is none"),
        ("yes", True, "row 1: 'yes' is no JSON list"),
        ("[-1]", True, "row 1: '-1' is none"),
    ],
)
def test_bad_labels(label: str, multi_label: bool, message: str) -> None:
    with pytest.raises(PromptDataError, match=message):
        class_targets(label, NAMES, multi_label=multi_label, where="row 1")

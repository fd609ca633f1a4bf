"""The reasons for which a prompt or a label is refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from data_prep.errors import DataValidationError, Finding
from data_prep.schema import label_defect, prompt_defect


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("a question", None),
        ("  ", "the prompt is empty"),
        ([{"role": "system", "content": ""}, {"role": "user", "content": "q"}], None),
        ([{"role": "user", "content": "q"}, {"role": "tool", "content": "r"}], None),
        ([], "no messages"),
        (None, "NoneType"),
        (["q"], "message 0 is str"),
        ([{"role": "human", "content": "q"}], "role 'human'"),
        ([{"role": "user", "content": None}], "content of type NoneType"),
        ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "from 'assistant'"),
        ([{"role": "user", "content": " \n"}], "last message is empty"),
    ],
)
def test_prompts(prompt: Any, reason: str | None) -> None:
    defect = prompt_defect(prompt)
    assert (defect is None) == (reason is None)
    assert reason is None or reason in str(defect)


@pytest.mark.parametrize(("label", "fine"), [("0", True), ("", False), (" ", False), (0, False), (None, False)])
def test_labels(label: Any, fine: bool) -> None:
    assert (label_defect(label) is None) == fine


def test_the_error_survives_a_process_boundary() -> None:
    error = DataValidationError("d.parquet", [Finding("label", "expected text", 2, ((4, "7"), (9, "8")))])
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.findings == error.findings
    assert "row 4: 7; row 9: 8" in str(copy)

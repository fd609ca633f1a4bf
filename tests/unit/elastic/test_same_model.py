"""What an external engine must have in common with those of the run."""

from typing import Any

import pytest

from relax_engine.elastic.external import require_same
from relax_engine.elastic.failures import EngineJoinError, bounded

OWN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "dtype": "float32",
    "tp_size": 1,
    "context_length": 4096,
}


def test_the_same_and_what_a_server_does_not_tell() -> None:
    require_same("http://a", {**OWN, "context_length": 8192, "dp_size": 2}, OWN)
    require_same("http://a", {"architectures": OWN["architectures"], "dtype": None}, OWN)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"vocab_size": 129}, "vocab_size is 129 instead of 128"),
        ({"dtype": "bfloat16"}, "dtype is 'bfloat16' instead of 'float32'"),
        ({"tp_size": 2}, "tp_size is 2 instead of 1"),
        ({"architectures": ["LlamaForCausalLM"]}, r"architectures is \['LlamaForCausalLM'\]"),
        ({"context_length": 100}, "context_length is 100, less than 4096"),
        ({"is_generation": False}, "it generates nothing"),
        ({"architectures": None}, "it does not say which model it serves"),
        ({"vocab_size": 1, "hidden_size": 2}, "vocab_size is 1 instead of 128; hidden_size is 2 instead of 64"),
    ],
)
def test_differences_are_named(facts: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineJoinError, match=words) as refused:
        require_same("http://a", {**OWN, **facts}, OWN)
    assert refused.value.category == "TRANSPORT_MISMATCH"


def test_messages_are_short_and_hold_no_credentials() -> None:
    text = bounded("GET http://user:hunter2@host/path failed\nfor " + "x" * 2000)
    assert "hunter2" not in text
    assert len(text) == 500
    assert "\n" not in text

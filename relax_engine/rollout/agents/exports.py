"""What an agent hands in at its end, and the samples that come of its session.

An agent writes nothing, one JSON object `{metadata, reward}`, or lines of explicit exports
`{name, messages, tools?, chat_template_kwargs?, metadata?, reward?}`. Without explicit exports the session must be one
linear context. What lives here: reading and matching. What does not: rewards of samples that bring none, and credit
among the contexts of a group (`credit`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relax_engine.errors import RelaxError
from relax_engine.rollout.agents import chat
from relax_engine.rollout.agents.forest import Node, SessionForest
from relax_engine.rollout.agents.messages import RequestError, history_keys, text_of
from relax_engine.types import Sample, SampleStatus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXPORT = "export"
"""Key of a sample's metadata that names the context it is."""


class ExportError(RelaxError):
    """What an agent handed in does not fit its session."""


@dataclass(frozen=True, slots=True)
class Export:
    """One context to train on."""

    name: str
    node: Node
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reward: Any = None


def read_exports(output: str, forest: SessionForest) -> list[Export]:
    """The contexts that an agent's output asks for.

    Raises:
        ExportError: it is not well-formed, names a history that was not committed, or leaves open which is meant.
    """
    rows = _rows(output)
    if not any("messages" in row for row in rows):
        if len(rows) > 1:
            raise ExportError(f"the output has {len(rows)} lines without messages; write one object, or exports")
        row = rows[0] if rows else {}
        return [Export("main", _only(forest), row.get("metadata") or {}, row.get("reward"))]
    exports: list[Export] = []
    for number, row in enumerate(rows):
        name = row.get("name")
        if not isinstance(name, str) or not name or any(name == other.name for other in exports):
            raise ExportError(f"export {number}: name {name!r} must be text that no other export has")
        exports.append(Export(name, _match(row, name, forest), row.get("metadata") or {}, row.get("reward")))
    return exports


def _rows(output: str) -> list[dict[str, Any]]:
    text = output.strip()
    if not text:
        return []
    try:
        rows = [json.loads(text)]
    except ValueError:
        try:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise ExportError(f"the output is neither a JSON object nor lines of them: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ExportError("the output must be JSON objects")
    return rows


def _only(forest: SessionForest) -> Node:
    leaves = forest.leaves()
    if not leaves:
        raise ExportError("the agent ended without an answer of the policy")
    if len(leaves) > 1:
        raise ExportError(
            f"the session has {len(leaves)} contexts ({len(forest.nodes)} answers), and the output does not say which "
            "to train: write one line {name, messages} for each to RELAX_OUTPUT_JSON"
        )
    return leaves[0]


def _match(row: Mapping[str, Any], name: str, forest: SessionForest) -> Node:
    try:
        request = chat.read_request({**row, "n": 1})
    except (RequestError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"export {name!r}: {error}") from error
    found = forest.match(history_keys(request.messages), request.context_key())
    if not found:
        raise ExportError(
            f"export {name!r} ({len(request.messages)} messages) is no history that ends with an answer of the policy; "
            "hand in the messages as they were sent, the last answer behind them, with the same tools"
        )
    return found[-1]


def to_samples(exports: list[Export], sample: Sample, tokenizer: PreTrainedTokenizerBase) -> list[Sample]:
    """One sample for each export: all have the identity of `sample`, the session's logical one.

    `response` is the text of everything behind the first prompt, and `metadata["answer"]` that of the last answer.
    """
    return [_to_sample(export, copy.copy(sample), tokenizer) for export in exports]


def _to_sample(export: Export, sample: Sample, tokenizer: PreTrainedTokenizerBase) -> Sample:
    node = export.node
    response = node.tokens[node.prompt_length :]
    sample.tokens, sample.rollout_tokens = list(node.tokens), list(response)
    sample.response_length = len(response)
    sample.loss_mask, sample.rollout_log_probs = list(node.loss_mask), list(node.log_probs)
    sample.weight_versions = copy.deepcopy(node.versions)
    node.media.give(sample)
    sample.response = str(tokenizer.decode(response, skip_special_tokens=True))
    sample.status = SampleStatus.TRUNCATED if node.finish == "length" else SampleStatus.COMPLETED
    answer = text_of(node.messages[-1].get("content") or "")
    sample.metadata = {**sample.metadata, "answer": answer, **export.metadata, EXPORT: export.name}
    if export.reward is not None:
        sample.reward = export.reward
    return sample

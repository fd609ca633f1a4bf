"""Tokens of conversations: what the model sampled stays as it was, and what stands between is the template's."""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import Any

import pytest
from chat_families import FAMILIES, Family, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.rollout.agents.exports import read_exports, to_samples
from relax_engine.rollout.agents.messages import TurnRequest
from relax_engine.rollout.agents.session import Gate, Session, SessionSettings
from relax_engine.rollout.frames import encode_frame, frame_text
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample

tokenizer_for = functools.cache(tokenizer_of)
TOOLS = ({"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}},)
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]}
TEXT = st.text("abthe 12é\n漢", min_size=1, max_size=12).filter(str.strip)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_frames_are_those_of_the_family(family: Family) -> None:
    tokenizer = tokenizer_for(family)
    assert frame_text(tokenizer, [{"role": "user", "content": "more"}], tools=TOOLS) == family.between
    assert frame_text(tokenizer, [{"role": "tool", "content": "5"}], tools=TOOLS) == family.result
    end = tokenizer.convert_tokens_to_ids(family.end)
    # An answer that ended with its end token has it once, one that was cut off gets it.
    whole = tokenizer.encode(family.between, add_special_tokens=False)
    assert encode_frame(tokenizer, family.between, end) == whole[1:]
    assert encode_frame(tokenizer, family.between, 5) == whole


def test_results_stand_behind_answers_where_a_template_shows_no_calls() -> None:
    from examples.tiny_math.make_model import build_tokenizer

    text = frame_text(build_tokenizer(), [{"role": "tool", "content": "5"}])
    assert text == "<|im_end|>\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_results_of_several_calls_stand_behind_one_answer(family: Family) -> None:
    results = [{"role": "tool", "content": "5"}, {"role": "tool", "content": "6"}]
    text = frame_text(tokenizer_for(family), results, tools=TOOLS)
    assert text.startswith(family.end)
    assert text.index("5") < text.index("6")


class Model:
    """Samples the given answers in a spelling of its own: one token per byte, whatever the merges."""

    def __init__(self, tokenizer: Any, answers: list[tuple[str, bool]]) -> None:
        self.tokenizer, self.answers = tokenizer, answers
        self.prompts: list[list[int]] = []
        self.said: list[list[int]] = []

    def spell(self, text: str) -> list[int]:
        ids = []
        for token in self.tokenizer.encode(text, add_special_tokens=False):
            name = self.tokenizer.convert_ids_to_tokens(token)
            special = token in self.tokenizer.added_tokens_decoder
            ids += [token] if special else self.tokenizer.convert_tokens_to_ids(list(name))
        return ids

    async def __call__(self, prompt: list[int], params: dict[str, Any], media: Any) -> GenerateOutput:
        text, ends = self.answers[len(self.said)]
        ids = [*self.spell(text), *([self.tokenizer.eos_token_id] if ends else [])]
        self.prompts.append(prompt)
        self.said.append(ids)
        return GenerateOutput.from_json(
            {
                "output_ids": ids,
                "meta_info": {
                    "id": "r",
                    "finish_reason": {"type": "stop", "matched": ids[-1]} if ends else {"type": "length"},
                    "output_token_logprobs": [[-float(i + 1), token, None] for i, token in enumerate(ids)],
                    "weight_version": "1",
                    "weight_versions": [{"version": "1", "start": 0, "end": len(ids)}],
                    "prompt_tokens": len(prompt),
                },
            }
        )


@st.composite
def conversations(draw: Any) -> tuple[Family, bool, list[tuple[str, bool]], list[str]]:
    """A family, whether there is a system message, answers (text, whether they end), and what users say between."""
    family = draw(st.sampled_from(FAMILIES))
    answers = []
    for _ in range(draw(st.integers(1, 4))):
        text = draw(TEXT)
        if draw(st.booleans()):
            text = f"<think>{draw(TEXT)}</think>{text}"
        kind = draw(st.sampled_from(["text", "text", "call", "cut"]))
        if kind == "call":
            text = family.call if family.name == "llama3" else text + family.call
        answers.append((text, kind != "cut"))
    return family, draw(st.booleans()), answers, [draw(TEXT) for _ in answers]


@settings(max_examples=150, deadline=None)
@given(conversations())
def test_masked_spans_are_what_the_model_said(conversation: Any) -> None:
    """As agents do: every answer goes back as a message, calls get results, and all of it is one context."""
    family, with_system, answers, says = conversation
    tokenizer = tokenizer_for(family)
    shared = SessionSettings(tokenizer, SamplingSettings(max_new_tokens=500), {}, family.parser, "think")
    model = Model(tokenizer, answers)
    session = Session(Sample(index=1), shared, Gate(is_open=True), model)
    history: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}] if with_system else []
    history.append({"role": "user", "content": "begin"})

    async def talk() -> None:
        for number, say in enumerate(says):
            answer = await session.answer(TurnRequest(tuple(history), TOOLS))
            history.append(answer.message())
            if number + 1 == len(says):
                return
            if answer.tool_calls:
                history.append({"role": "tool", "content": say, "tool_call_id": answer.tool_calls[0].id})
            else:
                history.append({"role": "user", "content": say})

    asyncio.run(talk())
    (sample,) = to_samples(read_exports("", session.forest), session.sample, tokenizer)
    assert sample.tokens[: sample.prompt_length] == model.prompts[0]
    spans = masked_spans(sample)
    assert [sample.tokens[a:b] for a, b in spans] == model.said
    texts = [text + (family.end if ends else "") for text, ends in answers]
    assert [tokenizer.decode(sample.tokens[a:b]) for a, b in spans] == texts
    # Everything else is what the template shows between the answers.
    gaps = [(b, c) for (_, b), (c, _) in itertools.pairwise(spans)]
    for number, (a, b) in enumerate(gaps):
        text = tokenizer.decode(sample.tokens[a:b])
        is_result = history_role(history, number) == "tool"
        before, after = family.result.rsplit("5", 1) if is_result else family.between.rsplit("more", 1)
        stripped = family.name == "gemma" or (family.name == "llama3" and not is_result)
        whole = before + (says[number].strip() if stripped else says[number]) + after
        assert text == (whole.removeprefix(family.end) if answers[number][1] else whole)


def masked_spans(sample: Sample) -> list[tuple[int, int]]:
    """Where the sampled stretches are: the weight versions name each of them."""
    covered = [i for span in sample.weight_versions for i in range(span.start, span.end)]
    assert covered == [i for i, mask in enumerate(sample.loss_mask or []) if mask]
    return [(sample.prompt_length + span.start, sample.prompt_length + span.end) for span in sample.weight_versions]


def history_role(history: list[dict[str, Any]], number: int) -> str:
    """The role of what stands behind answer `number`."""
    behind = [i + 1 for i, message in enumerate(history) if message["role"] == "assistant"]
    return str(history[behind[number]]["role"])

"""Conversations with images: whichever protocol brings them, tokens, masks and media stay in step."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.media import MediaReader
from examples.tiny_media import make_model
from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.multimodal.content import read_medium
from relax_engine.multimodal.media import blocks_of
from relax_engine.multimodal.processor import MediaBudget, MediaProcessor
from relax_engine.rollout.agents import anthropic, chat, responses
from relax_engine.rollout.agents.exports import read_exports, to_samples
from relax_engine.rollout.agents.messages import RequestError, TurnRequest
from relax_engine.rollout.agents.session import Gate, Session, SessionSettings
from relax_engine.rollout.conversation_media import chat_messages
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample


@functools.cache
def picture(height: int, width: int) -> str:
    pixels = np.random.default_rng(height * width).integers(0, 255, (16 * height, 16 * width, 3), dtype=np.uint8)
    return read_medium("image", pixels, MediaReader(None))


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def processor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MediaProcessor:
    directory: Path = make_model(tmp_path_factory.mktemp("media") / "m", request.param)
    return MediaProcessor(directory, MediaBudget(image_tokens=(1, 64)))


def test_protocols_bring_the_same_messages() -> None:
    uri = picture(1, 2)
    expected = [{"type": "text", "text": "see"}, {"type": "image", "image": uri}]
    bodies: list[tuple[Any, dict[str, Any]]] = [
        (chat, {"type": "image_url", "image_url": {"url": uri}}),
        (responses, {"type": "input_image", "image_url": uri}),
        (anthropic, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": uri[22:]}}),
    ]
    requests = []
    for protocol, part in bodies:
        text = {"type": "input_text" if protocol is responses else "text", "text": "see"}
        messages = [{"type": "message", "role": "user", "content": [text, part]}]
        given = {"input": messages} if protocol is responses else {"messages": messages}
        requests.append(protocol.read_request({**given, "max_tokens": 5, "model": "m"}))
    assert [request.messages[0]["content"] for request in requests] == [expected] * 3
    url = {"type": "image_url", "image_url": {"url": "https://host/a.png"}}
    for part, told in ((url, "nothing is fetched or opened"), ({"type": "video"}, "a part of type 'video'")):
        with pytest.raises(RequestError, match=told):
            chat.read_request({"messages": [{"role": "user", "content": [part]}]})


def test_agents_get_the_prompts_media() -> None:
    sample = Sample(multimodal_inputs={"image": [picture(1, 2), picture(2, 1)]})
    (message,) = chat_messages("a <image> b <image>", sample)
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "text", "image_url"]
    assert message["content"][3]["image_url"]["url"] == picture(2, 1)


class Model:
    """Says the given token ids, in order, and checks that media and placeholders of each prompt match."""

    def __init__(self, processor: MediaProcessor, answers: list[list[int]]) -> None:
        self.processor, self.answers = processor, answers
        self.prompts: list[list[int]] = []

    async def __call__(self, prompt: list[int], params: dict[str, Any], media: Any) -> GenerateOutput:
        features = self.processor.features(media)
        assert self.processor.fit(prompt, features) == prompt
        ids = [*self.answers[len(self.prompts)], self.processor.tokenizer.eos_token_id]
        self.prompts.append(prompt)
        return GenerateOutput.from_json(
            {
                "output_ids": ids,
                "meta_info": {
                    "id": "r",
                    "finish_reason": {"type": "stop", "matched": ids[-1]},
                    "output_token_logprobs": [[-1.0, token, None] for token in ids],
                    "weight_version": "1",
                    "weight_versions": [{"version": "1", "start": 0, "end": len(ids)}],
                    "prompt_tokens": len(prompt),
                },
            }
        )


SIZES = st.tuples(st.integers(1, 3), st.integers(2, 4))
PARTS = st.lists(st.one_of(st.text("ab 漢", min_size=1, max_size=6), SIZES), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(PARTS, min_size=1, max_size=4), sampled=st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_masks_and_media_stay_in_step(processor: MediaProcessor, turns: list[list[Any]], sampled: list[int]) -> None:
    """Placeholders that stand for media are in no mask, and those that the model sampled are text."""
    pad = processor.family.placeholders["image"]
    answers = [[65, *[pad] * extra, 66 + number] for number, extra in enumerate(sampled)]
    model = Model(processor, answers)
    shared = SessionSettings(processor.tokenizer, SamplingSettings(max_new_tokens=50), {}, "hermes", "none", processor)
    session = Session(Sample(index=1), shared, Gate(is_open=True), model)
    history: list[dict[str, Any]] = []
    images = []

    async def talk() -> None:
        for parts in turns:
            content = []
            for part in parts:
                if isinstance(part, str):
                    content.append({"type": "text", "text": part})
                else:
                    images.append(picture(*part))
                    content.append({"type": "image_url", "image_url": {"url": images[-1]}})
            history.append({"role": "user", "content": [*content, {"type": "text", "text": "?"}]})
            request: TurnRequest = chat.read_request({"messages": history})
            history.append((await session.answer(request)).message())

    asyncio.run(talk())
    (sample,) = to_samples(read_exports("", session.forest), session.sample, processor.tokenizer)
    assert (sample.multimodal_inputs or {}).get("image", []) == images
    assert sample.loss_mask is not None
    for before, prompt, answer in zip(model.prompts, model.prompts[1:], answers, strict=False):
        said = [*before, *answer, processor.tokenizer.eos_token_id]
        assert prompt[: len(said)] == said
    trained = [t for t, mask in zip(sample.rollout_tokens, sample.loss_mask, strict=True) if mask]
    assert trained == [t for answer in answers[: len(turns)] for t in (*answer, processor.tokenizer.eos_token_id)]
    blocks = blocks_of(processor.family, sample.tokens, sample.multimodal_train_inputs or {})
    places = [int(token) for block in blocks for run in block for token in run.tokens]
    sizes = [run.medium.grid[1:] for block in blocks for run in block]
    assert sizes == [part for parts in turns for part in parts if not isinstance(part, str)]
    assert all(sample.tokens[place] == pad for place in places)
    start = sample.prompt_length
    assert not any(sample.loss_mask[place - start] for place in places if place >= start)
    grids = (sample.multimodal_train_inputs or {}).get("image_grid_thw", np.zeros((0, 3)))
    assert len(grids) == len(images)

"""The embedded engine on prompts with images, videos and audio, beside transformers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from data_prep.media import MediaReader
from examples.tiny_media import AUDIO_TOKENS, VISION_TOKENS, Family, make_model
from relax_engine.backends.engines.local.engine import EngineOptions, LocalEngine, PauseMode
from relax_engine.backends.engines.local.errors import BadRequestError
from relax_engine.backends.engines.local.generate_api import GenerateParser
from relax_engine.backends.engines.local.media import MediaRequests
from relax_engine.backends.engines.local.request import Batch, Request
from relax_engine.multimodal.content import read_medium
from relax_engine.multimodal.processor import MediaBudget

READER = MediaReader(None)
FIELDS = {"image": "image_data", "video": "video_data", "audio": "audio_data"}
RANDOM = np.random.default_rng(0)


def picture(height: int, width: int) -> str:
    return read_medium("image", RANDOM.integers(0, 255, (height, width, 3), dtype=np.uint8), READER)


def tone(samples: int) -> str:
    return read_medium("audio", (np.sin(np.arange(samples) / 20).astype(np.float32), 16000), READER)


class Served:
    """A tiny model in an engine, and in transformers."""

    def __init__(self, directory: Path, family: Family) -> None:
        import transformers

        make_model(directory, family)
        budget = MediaBudget(image_tokens=(1, 64), video_tokens=(1, 16))
        self.engine = LocalEngine(EngineOptions(model_path=directory, max_total_tokens=4096, media_budget=budget))
        self.engine.start()
        assert self.engine.media is not None
        self.parser, self.processor, self.family = GenerateParser(self.engine), self.engine.media.processor, family
        kind = (
            "Qwen3OmniMoeThinkerForConditionalGeneration" if family == "qwen3_omni" else "AutoModelForImageTextToText"
        )
        self.model = getattr(transformers, kind).from_pretrained(directory, dtype=torch.float32).eval()

    def ids(self, text: str) -> list[int]:
        """Tokens of a prompt in which `{image}` and so on stand for media."""
        marked = text.format(**{kind: self.processor.marker(kind) for kind in self.processor.kinds})
        return self.processor.tokenizer.encode(marked, add_special_tokens=False)

    def generate(self, prompts: Sequence[tuple[list[int], Mapping[str, Any]]], **params: Any) -> list[Request]:
        """All prompts in one batch, with the log-probs of prompts and outputs."""
        sampling = {"max_new_tokens": 10, "temperature": 0.7, "ignore_eos": True, "sampling_seed": 5} | params
        body: dict[str, Any] = {
            "input_ids": [ids for ids, _ in prompts], "sampling_params": sampling, "return_logprob": True,
            "logprob_start_len": 0,
        }  # fmt: skip
        for kind, field in FIELDS.items():
            if any(media.get(kind) for _, media in prompts):
                body[field] = [media.get(kind) for _, media in prompts]
        call, done = self.parser.parse(body), threading.Event()
        self.engine.call(lambda: self.engine.submit(Batch(call.requests, done.set))).result(60)
        assert done.wait(60), self.engine.failure
        return call.requests

    def log_probs(self, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        """What transformers gives the prompt (temperature 1) and the output (0.7)."""
        ids = torch.tensor([[*request.prompt, *request.output_ids]])
        inputs = {} if request.media is None else {k: torch.from_numpy(v) for k, v in request.media.inputs.items()}
        if self.family == "qwen3_omni":
            if "second_per_grid_ts" in inputs:
                inputs["video_second_per_grid"] = inputs.pop("second_per_grid_ts")
        else:
            pads = self.processor.family.placeholders
            inputs["mm_token_type_ids"] = (ids == pads["image"]).int() + 2 * (ids == pads["video"]).int()
            if self.family.startswith("qwen3_vl"):
                inputs.pop("second_per_grid_ts", None)
        with torch.no_grad():
            logits = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0].float()
        first = len(request.prompt)
        plain = torch.log_softmax(logits, -1)[: first - 1].gather(1, ids[0, 1:first, None])
        sampled = torch.log_softmax(logits / 0.7, -1)[first - 1 : -1].gather(1, ids[0, first:, None])
        return plain[:, 0], sampled[:, 0]


@pytest.fixture(scope="module", params=get_args(Family))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Served(tmp_path_factory.mktemp("media") / "model", request.param)
    yield made
    made.engine.close()


def media_of(served: Served) -> list[tuple[str, dict[str, Any]]]:
    prompts: list[tuple[str, dict[str, Any]]] = [
        ("what is {image}?", {"image": [picture(40, 50)]}),
        ("plain text", {}),
        ("{image} and {image}, then?", {"image": [picture(90, 33), picture(64, 64)]}),
        ("see {video}.", {"video": [{"frames": [picture(32, 48) for _ in range(5)], "fps": 2.0}]}),
    ]
    if "audio" in served.processor.kinds:
        prompts += [
            ("hear {audio}{image}", {"audio": [tone(12000)], "image": [picture(48, 20)]}),
            ("{audio}!", {"audio": [tone(42000)]}),
        ]
    return prompts


def without_pads(served: Served, request: Request) -> bool:
    """Whether the model sampled nothing that transformers would take for media."""
    of_media = served.processor.tokenizer.convert_tokens_to_ids([*VISION_TOKENS, *AUDIO_TOKENS])
    return not set(request.output_ids) & set(of_media)


def test_log_probs_are_those_of_transformers(served: Served) -> None:
    """Media of unequal sizes in one batch, sampled by decoding, and prompts scored in the prefill."""
    requests = served.generate([(served.ids(text), media) for text, media in media_of(served)])
    compared = 0
    for request in requests:
        if without_pads(served, request):
            prompt, output = served.log_probs(request)
            assert np.abs(prompt.numpy() - np.array(request.input_log_probs)).max() < 1e-5
            assert np.abs(output.numpy() - np.array(request.log_probs)).max() < 1e-5
            compared += 1
    assert compared >= len(requests) - 2


def test_what_was_sampled_is_scored_alike(served: Served) -> None:
    """Tokens behind a prompt have in a prefill the log-probs that they were sampled with, and a placeholder among them
    is text."""
    pad = served.processor.family.placeholders["image"]
    sent = media_of(served)
    begun = served.generate([(served.ids(text), media) for text, media in sent], temperature=1.0)
    longer = [([*r.prompt, *r.output_ids, 5, pad, pad, 6], media) for r, (_, media) in zip(begun, sent, strict=True)]
    decoded = served.generate(longer, max_new_tokens=4, temperature=1.0)
    whole = [([*r.prompt, *r.output_ids], media) for r, (_, media) in zip(decoded, sent, strict=True)]
    for sampled, scored in zip(decoded, served.generate(whole, max_new_tokens=0), strict=True):
        np.testing.assert_allclose(sampled.log_probs, scored.input_log_probs[-4:], atol=1e-5)


def test_equal_tokens_with_other_pixels_share_nothing(served: Served) -> None:
    ids = served.ids("{image}?")
    one, other = {"image": [picture(32, 32)]}, {"image": [picture(32, 32)]}
    requests = served.generate([(ids, one), (ids, other), (ids, one)], temperature=1.0)
    assert requests[0].prompt == requests[1].prompt
    assert [request.cached_tokens > 0 for request in requests] == [False, False, True]
    assert requests[0].log_probs == requests[2].log_probs
    assert requests[0].input_log_probs[-1] != requests[1].input_log_probs[-1]
    alone = served.generate([(ids, other)], temperature=1.0)[0]
    assert alone.output_ids == requests[1].output_ids
    np.testing.assert_allclose(alone.log_probs, requests[1].log_probs, atol=1e-5)


def test_retracted_requests_go_on_as_they_would_have(served: Served) -> None:
    prompts = [(served.ids(text), media) for text, media in media_of(served)[:3]]
    expected = served.generate(prompts, max_new_tokens=40)

    engine = served.engine
    engine.call(lambda: engine.pause(PauseMode.RETRACT)).result(60)
    threading.Timer(0.2, lambda: engine.call(engine.resume)).start()
    found = served.generate(prompts, max_new_tokens=40)
    for before, after in zip(expected, found, strict=True):
        assert before.output_ids == after.output_ids


def test_weight_updates_reach_the_encoders(served: Served) -> None:
    engine, prompt = served.engine, [(served.ids("{image}?"), {"image": [picture(32, 64)]})]
    before = served.generate(prompt)[0]
    names = [name for name in engine.raw if ".merger." in name and name.endswith("weight")]
    assert names
    old = {name: engine.raw[name].clone() for name in names}
    engine.call(lambda: engine.adopt_weights({n: 1.5 * t for n, t in old.items()}, "7", flush=True)).result(60)
    with torch.no_grad():
        for name, parameter in served.model.named_parameters():
            if ".merger." in name and name.endswith("weight"):
                parameter.mul_(1.5)
    after = served.generate(prompt)[0]
    assert after.spans[0].version == "7"
    assert before.input_log_probs != after.input_log_probs
    np.testing.assert_allclose(after.input_log_probs, served.log_probs(after)[0].numpy(), atol=1e-5)
    engine.call(lambda: engine.adopt_weights(old, "8", flush=True)).result(60)
    assert served.generate(prompt)[0].input_log_probs == before.input_log_probs


def test_bodies_that_do_not_fit_are_refused(served: Served) -> None:
    ids, image = served.ids("{image}?"), picture(32, 32)
    parse = served.parser.parse
    for body, told in (
        ({"input_ids": ids, "image_data": "folder/a.png"}, "opens no files and no URLs"),
        ({"input_ids": ids, "image_data": "data:image/png;base64,bm8="}, "does not decode as an image"),
        ({"input_ids": ids, "image_data": [image, image]}, "1 of image for 2"),
        ({"input_ids": [ids, ids], "image_data": [image]}, "an entry per prompt, 2"),
        ({"input_ids": ids[-1:], "image_data": image}, "0 of image for 1"),
    ):
        with pytest.raises(BadRequestError, match=told):
            parse(body)
    whole = parse({"input_ids": ids, "image_data": image}).requests[0]
    assert parse({"input_ids": list(whole.prompt), "image_data": [image]}).requests[0].prompt == whole.prompt


def test_prepared_media_are_kept_within_bounds(served: Served) -> None:
    """Each picture is new; whatever their number, what is kept of them stays below the bound."""
    kept = MediaRequests(served.processor, cache_bytes=100_000)
    ids, sizes = served.ids("{image}?"), []
    for _ in range(40):
        kept.place(ids, {"image": [picture(32, 32)]}, "prompt")
        sizes.append(kept.cached_bytes)
    assert max(sizes) <= 100_000
    assert sizes[-1] == sizes[-10] > 50_000

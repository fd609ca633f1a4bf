"""Turns of a real engine with pictures: those of the prompt, and those that an environment shows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_continued import SAMPLING, flat

from examples.tiny_media import make_model
from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.config import RunConfig
from relax_engine.config.flat import FlatView
from relax_engine.multimodal.content import open_image
from relax_engine.multimodal.processor import MediaBudget
from relax_engine.rollout.custom_generate import CustomGenerate
from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.pool import EnginePool
from relax_engine.rollout.prompt_media import MediaSettings
from relax_engine.rollout.tokenizer import load_tokenizer
from relax_engine.types import SampleGroup, SampleStatus

BUDGET = MediaBudget(image_tokens=(1, 64))
ENVIRONMENT = """
from PIL import Image
from relax_engine.multimodal.content import open_image
from relax_engine.rollout.environment import BaseInteractionEnv

class Cropping(BaseInteractionEnv):
    def reset(self):
        self.image = open_image(self.sample.multimodal_inputs["image"][0])
        return {"obs_str": ""}, {}

    def step(self, response_text):
        width, height = self.image.size
        self.image = self.image.crop((0, 0, max(16, width // 2), height))
        return {"obs_str": "closer", "multi_modal_data": {"image": [self.image]}}, False, {}
"""


@pytest.fixture(scope="module")
def media_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("media") / "model", "qwen3_vl")


@pytest.fixture(scope="module")
def media_engine(media_model: Path) -> Any:
    with launch_engine(media_model, max_total_tokens=8192, extra_args={"media_budget": BUDGET.to_json()}) as engine:
        yield engine


def make_groups(model: Path, folder: Path) -> list[SampleGroup]:
    """Two groups, each about two pictures of sizes of its own."""
    from PIL import Image

    rows = []
    for row in range(2):
        names = [f"{row}{n}.png" for n in range(2)]
        for n, name in enumerate(names):
            pixels = np.random.default_rng(2 * row + n).integers(0, 255, (32, 64 + 16 * row, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name)
        rows.append(json.dumps({"prompt": "look <image> and <image>", "images": names}))
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(rows) + "\n")
    media = MediaSettings(keys={"image": "images"}, model=str(model), budget=BUDGET)
    settings = DataSettings([str(path)], input_key="prompt", apply_chat_template=True, media=media)
    return PromptDataSource(settings, load_tokenizer(str(model)), 2).get_groups(2)


async def test_observed_pictures_join_those_of_the_prompt(
    media_engine: EngineProcess, media_model: Path, tmp_path: Path
) -> None:
    import transformers

    (tmp_path / "cropping.py").write_text(ENVIRONMENT)
    values = {
        **vars(RunConfig.from_flat(hf_checkpoint=str(media_model), image_min_token_num=1, image_max_token_num=64).flat),
        "rollout_interaction_env_path": str(tmp_path / "cropping.py"),
        "max_turns": 3,
        "apply_chat_template": True,
    }
    custom = CustomGenerate(
        "relax_engine.rollout.multi_turn:generate", FlatView(values), version=lambda: 0, evaluation=False
    )
    groups = make_groups(media_model, tmp_path)
    stop = tuple(range(3, 131))  # about every second token ends a turn
    sampling = type(SAMPLING)(**asdict(SAMPLING) | {"temperature": 1.0, "stop_token_ids": stop, "max_new_tokens": 400})
    async with EnginePool([media_engine.url], timeout_s=120.0) as pool:
        await Generator(pool, sampling, custom=custom).generate(groups)
    model = transformers.AutoModelForImageTextToText.from_pretrained(media_model, dtype=torch.float32).eval()
    pad = load_tokenizer(str(media_model)).convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>"])
    compared = 0
    for sample in flat(groups):
        assert sample.status is SampleStatus.COMPLETED
        assert sample.metadata["environment"]["turns"] == 3
        sizes = [open_image(image).size for image in sample.multimodal_inputs["image"]]
        width = sizes[0][0]
        assert sizes == [(width, 32), (width, 32), (width // 2, 32), (width // 4, 32)]
        grids = sample.multimodal_train_inputs["image_grid_thw"]
        assert len(grids) == 4
        assert len(sample.multimodal_train_inputs["pixel_values"]) == grids.prod(axis=1).sum()
        trained = [t for t, mask in zip(sample.rollout_tokens, sample.loss_mask, strict=True) if mask]
        if set(trained) & set(pad):
            continue  # transformers would take what the model sampled for pictures
        ids = torch.tensor([sample.tokens])
        inputs = {name: torch.from_numpy(array) for name, array in sample.multimodal_train_inputs.items()}
        with torch.no_grad():
            logits = model(input_ids=ids, mm_token_type_ids=(ids == pad[0]).int(), **inputs).logits[0]
        expected = torch.log_softmax(logits.float(), -1)[sample.prompt_length - 1 : -1]
        expected = expected.gather(1, ids[0, sample.prompt_length :, None])[:, 0].numpy()
        mask = np.array(sample.loss_mask, bool)
        np.testing.assert_allclose(expected[mask], np.array(sample.rollout_log_probs)[mask], atol=1e-4)
        compared += 1
    assert compared >= 2


async def test_what_engines_say_of_media(media_engine: EngineProcess, engines: list[EngineProcess]) -> None:
    from relax_engine.backends.engines.types import EngineRefusedError

    async with EngineClient(media_engine.url) as client:
        info = await client.model_info()
        assert (info["modalities"], info["has_image_understanding"]) == (["text", "image", "video"], True)
    async with EngineClient(engines[0].url) as client:
        assert (await client.model_info())["modalities"] == ["text"]
        with pytest.raises(EngineRefusedError, match="Qwen3ForCausalLM reads text alone"):
            await client.generate([5], {"max_new_tokens": 1}, media={"image": ["data:image/png;base64,AA"]})

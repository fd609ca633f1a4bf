"""Names in checkpoints of the parts of models that see and hear."""

from __future__ import annotations

from tiny_media import qwen3_omni

from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.mapping import WeightMap, carries


def test_a_thinker_alone_and_in_the_whole_model() -> None:
    thinker = qwen3_omni().to_dict()
    alone = model_spec(thinker | {"architectures": ["Qwen3OmniMoeThinkerForConditionalGeneration"]})
    whole = model_spec(
        {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
            "model_type": "qwen3_omni_moe",
            "thinker_config": thinker,
        }
    )
    names = WeightMap(alone).hf_names()
    assert {name.split(".")[0] for name in names} == {"model", "lm_head", "visual", "audio_tower"}
    assert "model.layers.1.mlp.experts.3.down_proj.weight" in names
    assert WeightMap(whole).hf_names() == [f"thinker.{name}" for name in names]
    said = ("talker.model.norm.weight", "code2wav.decoder.0.conv.weight")
    assert all(carries(whole, name) and not carries(alone, name) for name in said), (
        "exports take them from the original"
    )

"""Small Hugging Face model directories with random weights, written without transformers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.mapping import WeightMap

TOKENIZER_FILES = {"tokenizer.json": "{}", "tokenizer_config.json": '{"a": 1}', "chat_template.jinja": "{{ messages }}"}


LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
"""What a DeepSeek configuration has beside `config`."""


def config(architecture: str = "Qwen3ForCausalLM", *, tied: bool = True, dtype: torch.dtype = torch.float32) -> dict:
    latent = LATENT if architecture.startswith("Deepseek") else {}
    return {
        "architectures": [architecture],
        "model_type": architecture.partition("For")[0].lower(),
        "num_hidden_layers": 3,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 53,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": 0,
        "eos_token_id": 1,
        **latent,
    }


def make_model(folder: Path, hf_config: dict, *, dtype: torch.dtype = torch.float32, shards: int = 1) -> Path:
    """Write config, tokenizer files and weights, the weights in ``shards`` files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(hf_config))
    for name, text in TOKENIZER_FILES.items():
        (folder / name).write_text(text)
    generator = torch.Generator().manual_seed(0)
    weights = WeightMap(model_spec(hf_config))
    tensors: dict[str, Tensor] = {}
    for mapping in weights.parameters.values():
        full = torch.randn(mapping.shape, generator=generator).to(torch.float32 if mapping.wide else dtype)
        tensors |= {name: part.contiguous() for name, part in weights.split(mapping.name, full)}
    for index in range(weights.spec.num_layers, weights.spec.num_layers + weights.spec.mtp_layers):
        for name, shape in (("enorm", (24,)), ("eh_proj", (24, 48)), ("shared_head.head", (53, 24))):
            tensors[f"model.layers.{index}.{name}.weight"] = torch.randn(shape, generator=generator).to(dtype)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    weight_map = {name: names[i % shards] for i, name in enumerate(sorted(tensors))}
    for name in names:
        save_file({k: v for k, v in tensors.items() if weight_map[k] == name}, folder / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a directory."""
    return {k: v for path in sorted(folder.glob("*.safetensors")) for k, v in load_file(path).items()}


def assert_same_weights(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    """Same names, types and bits."""
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.dtype == two[name].dtype, name
        assert torch.equal(tensor.view(torch.uint8), two[name].view(torch.uint8)), name

"""Tiny random models of each supported architecture, and what Hugging Face computes for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

VOCAB = 120
CONTEXT = 512
EOS = 2


def make_model(directory: Path, kind: str, *, tied: bool, seed: int = 0) -> Path:
    """Write a random model; norms and biases are random too, so that each of them matters."""
    import transformers as hf

    torch.manual_seed(seed)
    common = dict(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, max_position_embeddings=CONTEXT, tie_word_embeddings=tied, eos_token_id=EOS,
        initializer_range=0.15,
    )  # fmt: skip
    if kind == "qwen3":
        model = hf.Qwen3ForCausalLM(hf.Qwen3Config(head_dim=24, **common))
    elif kind == "qwen2":
        model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**common))
    elif kind == "mistral":
        model = hf.MistralForCausalLM(hf.MistralConfig(head_dim=24, sliding_window=None, **common))
    elif kind == "qwen3moe":
        sizes = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, mlp_only_layers=[1])
        model = hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(head_dim=24, norm_topk_prob=tied, **sizes, **common))
    elif kind == "qwen2moe":
        sizes = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=40)
        model = hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**sizes, **common))
    elif kind == "glm4":
        model = hf.Glm4ForCausalLM(hf.Glm4Config(head_dim=24, pad_token_id=0, **common))
    elif kind == "deepseekv3":
        yarn = {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64,
            "mscale": 0.7, "mscale_all_dim": 1.0,
        }  # fmt: skip
        sizes = common | dict(
            num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=28, qk_nope_head_dim=12, qk_rope_head_dim=8,
            v_head_dim=20, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_group=4, topk_group=2,
            first_k_dense_replace=1, n_shared_experts=2, routed_scaling_factor=1.5, rope_parameters=yarn,
        )  # fmt: skip
        model = hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**sizes))
    else:
        rope = {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        }  # fmt: skip
        model = hf.LlamaForCausalLM(hf.LlamaConfig(rope_parameters=rope, attention_bias=not tied, **common))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
        elif name.endswith("bias"):
            parameter.data.normal_(0.0, 0.3)
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias.normal_(0.0, 0.3)
    model.save_pretrained(directory, max_shard_size="100KB" if kind == "qwen2" else "1GB")
    write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> None:
    """A word-level tokenizer: token i is the word `wi`; 2 is `<eos>`, special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {f"w{index}" if index != EOS else "<eos>": index for index in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(directory / "tokenizer.json"))


class Reference:
    """The Hugging Face model of a directory, float32."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Float32 `[length, vocab]`."""
        return self.model(torch.tensor([list(ids)])).logits[0]

    def log_probs(self, prompt: Sequence[int], output: Sequence[int], temperature: float) -> NDArray[np.float32]:
        """Log-probs of `output` after `prompt`, at `temperature`."""
        ids = [*prompt, *output]
        scores = torch.log_softmax(self.logits(ids)[len(prompt) - 1 : -1] / temperature, -1)
        return scores.gather(1, torch.tensor(ids[len(prompt) :])[:, None])[:, 0].numpy()

    @torch.no_grad()
    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The most likely continuation, end-of-sequence ignored."""
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(prompt) :]


def prompts(count: int, *, seed: int, low: int = 3, high: int = 40) -> list[list[int]]:
    """Random prompts of random lengths in `[low, high]`, without the end-of-sequence token."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, size=int(rng.integers(low, high + 1))).tolist() for _ in range(count)]

"""Write the demo's model: a Qwen3 of about a million parameters, or one with experts, with a byte-level tokenizer.

The directory is an ordinary Hugging Face one (`AutoTokenizer` and `AutoModelForCausalLM` load it) with seeded random
weights; nothing is downloaded. Training it is someone else's work: the warm start is the engine's `--loss-type sft`.

The tokenizer is byte-level BPE without merges, so any text round-trips. ChatML's role lines are single tokens
(`user` + newline, ...), which keeps a demo prompt at about a dozen tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 128, 4, 4, 2, 32, 384
CONTEXT = 256

BOS_OF_TURN, END_OF_TURN, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ROLE_LINES = ("system\n", "user\n", "assistant\n", "tool\n")
SPECIAL_TOKENS = (PAD, BOS_OF_TURN, END_OF_TURN, *ROLE_LINES)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def build_tokenizer(pieces: Sequence[str] = (), context: int = CONTEXT) -> Any:
    """The byte-level tokenizer (256 bytes and `SPECIAL_TOKENS`) with ChatML's template.

    Args:
        pieces: Texts that are one token each, beside the bytes.
        context: Longest sequence, in tokens.

    Returns:
        A `transformers.PreTrainedTokenizerFast`.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in pieces])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        additional_special_tokens=[BOS_OF_TURN, *ROLE_LINES],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def model_config(tokenizer: Any, context: int = CONTEXT, experts: int = 0) -> Any:
    """The architecture with tied embeddings: a `transformers.Qwen3Config`, or a `Qwen3MoeConfig` with `experts`, two of
    which, of half the width, serve a token."""
    from transformers import Qwen3Config, Qwen3MoeConfig

    mixture: dict[str, Any] = {"num_experts": experts, "num_experts_per_tok": 2, "norm_topk_prob": True}
    family: Any = Qwen3MoeConfig if experts else Qwen3Config
    return family(
        **mixture | {"moe_intermediate_size": MLP // 2} if experts else {},
        architectures=["Qwen3MoeForCausalLM" if experts else "Qwen3ForCausalLM"],
        vocab_size=len(tokenizer) + (-len(tokenizer) % 8),
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=MLP,
        max_position_embeddings=context,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def make_model(
    directory: str | Path, *, seed: int = 0, pieces: Sequence[str] = (), context: int = CONTEXT, experts: int = 0
) -> Path:
    """Write the model directory, replacing one that is there; the same seed gives the same bytes.

    Args:
        directory: where `config.json`, `model.safetensors`, the tokenizer and `generation_config.json` go.
        seed: of the random initialisation.
        pieces: Texts that are one token each.
        context: Longest sequence, in tokens.
        experts: of each layer, in the place of its MLP; 0 for none.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    directory = Path(directory)
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    tokenizer = build_tokenizer(pieces, context)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(model_config(tokenizer, context, experts))
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        max_new_tokens=32,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    disable_progress_bar()  # of one small file
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: `python -m examples.tiny_math.make_model DIR [--seed N] [--experts N]`."""
    parser = argparse.ArgumentParser(description="Write the demo's tiny Qwen3 with random weights.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="seed of the initialisation (default 0)")
    parser.add_argument("--experts", type=int, default=0, help="a mixture of that many experts in every layer")
    options = parser.parse_args(argv)
    path = make_model(options.directory, seed=options.seed, experts=options.experts)
    config = json.loads((path / "config.json").read_text())
    print(f"{path}: {config['architectures'][0]}, vocabulary {config['vocab_size']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

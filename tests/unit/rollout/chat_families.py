"""Chat templates of five model families as test data, in words of their own, and tokenizers with their special tokens.

Each does what the family's published template does with messages, tools, calls, results and thoughts; what of that is
awkward for a conversation that goes on token by token is said beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_MERGES = [("a", "b"), ("t", "h"), ("th", "e"), ("1", "2"), ("Ġ", "t")]
"""So that a text has more than one spelling in tokens, and a model may sample any of them."""


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and how its models call tools."""

    name: str
    template: str
    special: tuple[str, ...]
    end: str
    parser: str
    call: str
    """What a model writes to call `add`."""
    between: str
    """What stands between an answer without its end and the next one, if the user says `more`."""
    result: str
    """The same for a tool's result `5`."""
    keeps_history: bool = True
    """Whether earlier answers are shown as they were."""


# Consecutive results share one user turn, and thoughts are shown behind the last question alone.
QWEN3 = Family(
    "qwen3",
    "{%- if tools %}<|im_start|>system\n# Tools\n{{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- set ns = namespace(last=-1) -%}"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
    "{%- set said = m.content -%}{%- if '</think>' in said and loop.index0 < ns.last -%}"
    "{%- set said = said.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}"
    "{{- '<|im_start|>assistant\n' -}}"
    "{%- if loop.last and '</think>' not in said -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}{{- said -}}"
    "{%- for call in m.tool_calls or [] -%}{{- '\n<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' -}}"
    "{%- endfor -%}{{- '<|im_end|>\n' -}}"
    "{%- elif m.role == 'tool' -%}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}"
    "{%- else -%}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}",
    ("<|im_start|>", "<|im_end|>"),
    "<|im_end|>",
    "hermes",
    '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>',
    "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n",
    "<|im_end|>\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    keeps_history=False,
)

# A document begins with a token of its own; an answer is a call or text, never both, and one call at a time.
LLAMA3 = Family(
    "llama3",
    "{{- '<|begin_of_text|>' -}}"
    "{%- if tools -%}{{- '<|start_header_id|>system<|end_header_id|>\n\n' + (tools | tojson) + '<|eot_id|>' -}}"
    "{%- endif -%}{%- for m in messages -%}{%- if m.tool_calls -%}"
    "{%- if m.tool_calls | length != 1 -%}{{- raise_exception('one call at a time') -}}{%- endif -%}"
    "{%- set f = m.tool_calls[0].function -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}"
    "{{- '{\"name\": \"' + f.name + '\", \"parameters\": ' + (f.arguments | tojson) + '}<|eot_id|>' -}}"
    "{%- elif m.role == 'tool' -%}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content + '<|eot_id|>' -}}"
    "{%- else -%}"
    "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}",
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "<|eot_id|>",
    "llama3",
    '{"name": "add", "parameters": {"a": 2}}',
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nmore<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n5<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
)

# No head of an answer; questions and answers alternate, and results must stand behind calls.
MISTRAL = Family(
    "mistral",
    "{{- '<s>' -}}{%- set ns = namespace(before='assistant') -%}"
    "{%- if tools -%}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'user' -%}"
    "{%- if ns.before in ('user', 'calls') -%}{{- raise_exception('turns must alternate') -}}{%- endif -%}"
    "{{- '[INST]' + m.content + '[/INST]' -}}{%- set ns.before = 'user' -%}"
    "{%- elif m.role == 'tool' -%}"
    "{%- if ns.before not in ('calls', 'results') -%}{{- raise_exception('a result without a call') -}}{%- endif -%}"
    "{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' -}}{%- set ns.before = 'results' -%}"
    "{%- elif m.tool_calls -%}{{- m.content + '[TOOL_CALLS][' -}}"
    "{%- for c in m.tool_calls -%}{{- c.function | tojson + (', ' if not loop.last else '') -}}{%- endfor -%}"
    "{{- ']</s>' -}}{%- set ns.before = 'calls' -%}"
    "{%- elif m.role == 'assistant' -%}{{- m.content + '</s>' -}}{%- set ns.before = 'assistant' -%}"
    "{%- else -%}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' -}}{%- endif -%}{%- endfor -%}",
    (
        *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    ),
    "</s>",
    "mistral",
    '[TOOL_CALLS][{"name": "add", "arguments": {"a": 2}}]',
    "</s>[INST]more[/INST]",
    "</s>[TOOL_RESULTS]5[/TOOL_RESULTS]",
)

# Thoughts of all earlier answers are left out, a new answer begins within its thoughts, and after a result none begins.
DEEPSEEK = Family(
    "deepseek",
    "{{- '<BOS>' -}}{%- if tools -%}{{- tools | tojson -}}{%- endif -%}{%- set ns = namespace(results=false) -%}"
    "{%- for m in messages -%}"
    "{%- if m.role != 'tool' and ns.results -%}{{- '<OUTPUTS-END>' -}}{%- set ns.results = false -%}{%- endif -%}"
    "{%- if m.role == 'system' -%}{{- m.content -}}{%- elif m.role == 'user' -%}{{- '<USER>' + m.content -}}"
    "{%- elif m.role == 'tool' -%}"
    "{%- if not ns.results -%}{{- '<OUTPUTS>' -}}{%- set ns.results = true -%}{%- endif -%}"
    "{{- '<OUTPUT>' + m.content + '<OUTPUT-END>' -}}"
    "{%- else -%}{{- '<ASSISTANT>' + m.content.split('</think>')[-1] -}}"
    "{%- for c in m.tool_calls or [] -%}{{- '<tool_call>' + (c.function | tojson) + '</tool_call>' -}}{%- endfor -%}"
    "{{- '<EOS>' -}}{%- endif -%}{%- endfor -%}"
    "{%- if ns.results -%}{{- '<OUTPUTS-END>' -}}"
    "{%- elif add_generation_prompt -%}{{- '<ASSISTANT><think>\n' -}}{%- endif -%}",
    ("<BOS>", "<EOS>", "<USER>", "<ASSISTANT>", "<OUTPUTS>", "<OUTPUTS-END>", "<OUTPUT>", "<OUTPUT-END>"),
    "<EOS>",
    "hermes",
    '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>',
    "<EOS><USER>more<ASSISTANT><think>\n",
    "<EOS><OUTPUTS><OUTPUT>5<OUTPUT-END><OUTPUTS-END>",
    keeps_history=False,
)

# The model's role has another name, texts are stripped, and a result is a user's turn.
GEMMA = Family(
    "gemma",
    "{{- '<bos>' -}}{%- if tools -%}{{- '<start_of_turn>user\n' + (tools | tojson) + '<end_of_turn>\n' -}}{%- endif -%}"
    "{%- for m in messages -%}{%- if m.role == 'assistant' -%}{%- set role = 'model' -%}"
    "{%- else -%}{%- set role = 'user' -%}{%- endif -%}{{- '<start_of_turn>' + role + '\n' + m.content | trim -}}"
    "{%- for c in m.tool_calls or [] -%}{{- '<tool_call>' + (c.function | tojson) + '</tool_call>' -}}{%- endfor -%}"
    "{{- '<end_of_turn>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}",
    ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "<end_of_turn>",
    "hermes",
    '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>',
    "<end_of_turn>\n<start_of_turn>user\nmore<end_of_turn>\n<start_of_turn>model\n",
    "<end_of_turn>\n<start_of_turn>user\n5<end_of_turn>\n<start_of_turn>model\n",
)

FAMILIES = (QWEN3, LLAMA3, MISTRAL, DEEPSEEK, GEMMA)


def tokenizer_of(family: Family) -> Any:
    """A byte-level tokenizer with some merges and the family's special tokens and template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [a + b for a, b in _MERGES]
    vocabulary = {text: index for index, text in enumerate([*alphabet, *merged])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=family.end, clean_up_tokenization_spaces=False)
    fast.chat_template = family.template
    return fast

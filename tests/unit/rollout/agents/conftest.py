"""A gateway in this process, over a policy whose answers are known: it says the texts that it is given, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.rollout.agents.gateway import Gateway
from relax_engine.rollout.agents.session import Gate, Session, SessionSettings
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample


def output(ids: list[int], prompt: list[int], finish: dict[str, Any]) -> GenerateOutput:
    """What an engine would answer: log-probs -0.5, -1.0, ..., from weights of version 7."""
    return GenerateOutput.from_json(
        {
            "text": "",
            "output_ids": ids,
            "meta_info": {
                "id": "r",
                "finish_reason": finish,
                "output_token_logprobs": [[-0.5 * (i + 1), token, None] for i, token in enumerate(ids)],
                "weight_version": "7",
                "weight_versions": [{"version": "7", "start": 0, "end": len(ids)}],
                "prompt_tokens": len(prompt),
            },
        }
    )


@dataclass
class Policy:
    """Says `texts` in order, each with the end token; remembers prompts and parameters."""

    tokenizer: Any
    texts: list[str] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    params: list[dict[str, Any]] = field(default_factory=list)
    said: list[list[int]] = field(default_factory=list)
    media: list[Mapping[str, Any]] = field(default_factory=list)

    async def __call__(self, prompt: list[int], params: dict[str, Any], media: Mapping[str, Any]) -> GenerateOutput:
        text = self.texts[len(self.prompts)]
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        cut = ids[: params["max_new_tokens"]]
        finish = {"type": "stop", "matched": ids[-1]} if len(cut) == len(ids) else {"type": "length"}
        self.prompts.append(prompt)
        self.params.append(params)
        self.media.append(media)
        self.said.append(cut)
        return output(cut, prompt, finish)


@dataclass
class Served:
    """A session that is served: where, and by which key."""

    gateway: Gateway
    session: Session
    policy: Policy
    key: str
    clients: list[Any] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"{self.gateway.url}/v1"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from examples.tiny_math.make_model import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{%- if tools -%}{{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' -}}{%- endif -%}"
        "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content -}}"
        "{%- for call in message.tool_calls or [] -%}"
        "{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' -}}{%- endfor -%}"
        "{{- '<|im_end|>\\n' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    )
    return tokenizer


@pytest.fixture
async def served(tokenizer: Any) -> AsyncIterator[Served]:
    gateway = Gateway()
    await gateway.start()
    sampling = SamplingSettings(max_new_tokens=200, max_context_tokens=4000, temperature=0.7)
    settings = SessionSettings(tokenizer, sampling, {}, "hermes", "think")
    policy = Policy(tokenizer)
    session = Session(Sample(index=3), settings, Gate(is_open=True), policy)
    served = Served(gateway, session, policy, gateway.open(session))
    yield served
    for client in served.clients:
        await client.close()
    await gateway.close()

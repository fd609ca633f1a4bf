"""The judge of `--rm-type genrm` as a role of the run: `POST /genrm/generate`, and scaling as at `/rollout`.

What lives here: a chat in, a text out. What does not: what is asked and what the answer means (`relax_engine.rewards`),
and engines (`judge_engines.py`).
"""

import asyncio
from typing import Any, ClassVar

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from relax_engine.backends.engines.types import EngineCallError, EngineRefusedError
from relax_engine.components.judge_engines import JudgeEngines
from relax_engine.components.role import Role, RoleContext, ingress
from relax_engine.elastic.api import Elasticity, add_scaling
from relax_engine.elastic.failures import StartingError
from relax_engine.rewards.genrm import SAMPLING
from relax_engine.rollout.pool import EnginesLostError
from relax_engine.rollout.routing import Affinity
from relax_engine.rollout.tokenizer import load_tokenizer


class Question(BaseModel):
    """What the judge is asked. `route_key` keeps requests of the same key together where the routing policy does."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, Any]] = Field(min_length=1)
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    route_key: str | None = None


class Judgement(BaseModel):
    """The judge's text."""

    response: str


class Genrm(Role):
    """Serves the judging model while partitions are made and trained."""

    role: ClassVar[str] = "genrm"

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        sampling = dict(self.config.reward.genrm_sampling_config)
        self._template: dict[str, Any] = sampling.pop("chat_template_kwargs", {})
        if "max_response_len" in sampling:
            sampling["max_new_tokens"] = sampling.pop("max_response_len")
        self._sampling = {**SAMPLING, **sampling}

    async def setup(self) -> None:
        """Start the engines."""
        self.tokenizer = await asyncio.to_thread(load_tokenizer, self.args.genrm_model_path)
        self.engines = JudgeEngines(self.config, self.context.slots, self.emit)
        await self.engines.start_all()

    async def run(self) -> dict[str, Any]:
        """Return when the last partition has been trained; the engines answer until `close`."""
        for step in range(self.context.start_step, self.context.num_steps):
            if self.stopping or self.args.debug_rollout_only:
                break
            self.step = step
            partition = f"train_{step}"
            await asyncio.to_thread(self.stream.wait_partition, partition, "dropped", deadline_s=self.args.wait_timeout)
        return self.outcome()

    async def close(self) -> None:
        """End the engines."""
        if hasattr(self, "engines"):
            await self.engines.close()

    def processes(self) -> dict[str, int]:
        """Process ids of the engines."""
        return self.engines.processes() if hasattr(self, "engines") else {}

    @property
    def elasticity(self) -> Elasticity:
        """For the scaling API.

        Raises:
            StartingError: the engines are not there yet.
        """
        if not hasattr(self, "engines") or not hasattr(self.engines, "scaler"):
            raise StartingError("the judge's engines are being started; try again")
        return self.engines.elasticity

    async def generate(self, question: Question) -> Judgement:
        """The judge's answer to the messages.

        Raises:
            HTTPException: 400 the engine refuses the request (too long, say), 503 no engine answers.
        """
        prompt = await asyncio.to_thread(self._prompt, question.messages)
        sampling = {**self._sampling, **question.sampling_params}
        try:
            (output,) = await self.engines.pool.run(
                lambda client: client.generate_batch([prompt], sampling),
                samples=1,
                what="a judgement",
                affinity=Affinity(question.route_key, prompt),
            )
        except EngineRefusedError as error:
            raise HTTPException(400, str(error)) from error
        except (EngineCallError, EnginesLostError) as error:
            raise HTTPException(503, str(error)) from error
        return Judgement(response=output.text)

    def _prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._template
        )
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens


def _elasticity() -> Elasticity:
    """Of the replica that answers."""
    judge: Any = serve.get_replica_context().servable_object
    elasticity: Elasticity = judge.elasticity
    return elasticity


def _app() -> FastAPI:
    app = ingress(Genrm)
    app.post("/generate", response_model=Judgement)(Genrm.generate)
    add_scaling(app, _elasticity)
    return app


GenrmDeployment = serve.deployment(serve.ingress(_app())(Genrm))

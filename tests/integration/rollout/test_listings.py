"""The project's three introductory listings, as they are printed: an environment, a generation function, a reward.

What stands above each is the import of their names, and for the environment a tool to call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from test_continued import SAMPLING, make_groups

from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.config.flat import FlatView
from relax_engine.rewards.executor import RewardExecutor
from relax_engine.rewards.settings import RewardSettings
from relax_engine.rollout.custom_generate import CustomGenerate
from relax_engine.rollout.environment import call, load_build_env, step_result
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.pool import EnginePool
from relax_engine.types import Sample, SampleStatus

NAMES = "from relax_engine.rollout.toolbox import *\n\n"
TOOL = '''@tool
async def add(a, b):
    """Add two numbers."""
    return a + b


'''
ENVIRONMENT = """\
class CustomAgentEnv(BaseInteractionEnv):
    def reset(self):
        self.turn, self.memory, self.trajectory = 0, [], []

    def step(self, response):
        if has_answer(response):
            return obs("done"), 0.0, True, False, {"answer": extract(response)}

        tool_call = parse(response)
        if tool_call is None:
            return obs("invalid"), -0.1, True, False, {"error": True}

        result = await tools[tool_call.name].execute(tool_call.args)
        self.memory.append({"action": tool_call, "obs": result})
        self.trajectory.append({tool_call, result, self.turn})
        if should_stop(self.memory):
            return obs(result), 0.0, True, False, {"stop": True}

        self.turn += 1
        truncated = (self.turn >= self.max_turns)
        return obs(result), 0.0, False, truncated, {"turn": self.turn}
"""
GENERATE = """\
# --custom-generate-function-path your_module.generate
async def generate(args, sample: Sample, sampling_params) -> Sample:
    env = build_env(sample, args); env.reset()
    tokens = sample.tokens
    loss_mask, log_probs, rewards = [], [], []

    for turn in range(max_turns):
        out = await engine.generate(tokens)
        tokens += out.ids; loss_mask += [1] * len(out.ids)
        log_probs += out.log_probs

        obs, reward, terminated, truncated, info = env.step(out.text)
        rewards.append(reward)
        if terminated or truncated: break

        obs_ids = tokenize(env.format_observation(obs))
        tokens += obs_ids; loss_mask += [0] * len(obs_ids)
        log_probs += [0.0] * len(obs_ids)

    return finalize(sample, tokens, loss_mask, log_probs, rewards)
"""
REWARD = """\
# --custom-rm-path your_module.reward
async def reward(sample: Sample) -> dict:
    answer = extract_answer(sample.response)
    acc = 1.0 if is_exact_match(answer, sample.label) else 0.0

    judge_response = await judge_model.generate(
        prompt=sample.prompt,
        answer=answer,
        label=sample.label,
        multimodal_inputs=sample.multimodal_inputs,
    )
    judge_score = parse_verdict(judge_response)
    fmt = 1.0 if is_well_formatted(sample.response) else 0.0

    score = 0.5 * acc + 0.3 * judge_score + 0.2 * fmt
    return {"score": score, "acc": acc, "format": fmt,
            "judge_response": judge_response}
"""


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(NAMES + text, encoding="utf-8")
    return path


async def test_the_environment(tmp_path: Path) -> None:
    path = written(tmp_path, "custom_env.py", TOOL + ENVIRONMENT)
    env = load_build_env(str(path))(sample=Sample(), args=FlatView({"max_turns": 3}))
    env.reset()

    async def step(response: str) -> Any:
        return step_result(await call(env.step, response, timeout_s=10.0))

    def asking(a: int, b: int, name: str = "add") -> str:
        return f'<tool_call>{{"name": "{name}", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'

    first = await step(asking(2, 3))
    assert (first.observation["obs_str"], first.done, first.reward, first.info) == ("5", False, 0.0, {"turn": 1})
    unknown = await step(asking(2, 3, "multiply"))
    assert unknown.observation["obs_str"] == "Error: there is no tool 'multiply'; there are: add"
    third = await step(asking(4, 4))
    assert (third.observation["obs_str"], third.done, third.info) == ("8", True, {"turn": 3})
    again = await step(asking(4, 4))
    assert (again.done, again.info) == (True, {"stop": True})
    answer = await step("<answer>5</answer>")
    assert (answer.done, answer.reward, answer.info) == (True, 0.0, {"answer": "5"})
    nothing = await step("hm")
    assert (nothing.done, nothing.reward, nothing.info) == (True, -0.1, {"error": True})


@pytest.mark.parametrize("own", [True, False], ids=["the listed environment", "one of several turns"])
async def test_the_generation_function(
    own: bool, tmp_path: Path, engines: list[EngineProcess], model: Path, tokenizer: Any
) -> None:
    environment = written(tmp_path, "custom_env.py", TOOL + ENVIRONMENT)
    args = FlatView(
        {
            "rollout_interaction_env_path": str(
                environment if own else Path(__file__).with_name("user_environment.py")
            ),
            "max_turns": 3,
            "done_after": 9,
            "careless": False,
            "closed": [],
            "hf_checkpoint": str(model),
            "apply_chat_template_kwargs": {},
            "rollout_max_context_len": 200,
            "wait_timeout": 30.0,
        }
    )
    path = written(tmp_path, "your_module.py", GENERATE)
    custom = CustomGenerate(f"{path}:generate", args, version=lambda: 0, evaluation=False)
    groups = make_groups(tokenizer, 2)
    prompt = list(groups[0][0].tokens)
    sampling = replace(SAMPLING, temperature=1.0, stop_token_ids=tuple(range(3, 131)))
    async with EnginePool([engine.url for engine in engines], timeout_s=60.0) as pool:
        await Generator(pool, sampling, custom=custom).generate(groups)
    for sample in (sample for group in groups for sample in group):
        turns = sample.metadata["environment"]["turns"]
        assert sample.metadata["environment"]["rewards"] == ([-0.1] if own else [0.5] * 3)
        assert sample.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED)
        assert turns == (1 if own else 3)
        covered = [i for span in sample.weight_versions for i in range(span.start, span.end)]
        assert covered == [i for i, mask in enumerate(sample.loss_mask or []) if mask]
        assert (0 in (sample.loss_mask or [])) is not own
    assert groups[0][0].tokens[: len(prompt)] == prompt


@pytest.fixture
async def judge_url() -> AsyncIterator[str]:
    """A judge that says yes where label and answer are one."""

    async def complete(request: web.Request) -> web.Response:
        question = (await request.json())["messages"][0]["content"]
        verdict = "Yes" if "Answer to grade:\n7\n" in question and "Reference answer:\n7\n" in question else "No"
        return web.json_response({"choices": [{"message": {"content": f"Judgement: {verdict}"}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


async def test_the_reward(tmp_path: Path, judge_url: str) -> None:
    path = written(tmp_path, "your_reward.py", REWARD)
    samples = [
        Sample(index=0, prompt="3 + 4?", response="<think>seven</think><answer>7</answer>", label="7"),
        Sample(index=1, prompt="3 + 4?", response="<answer>8</answer>", label="7"),
    ]
    settings = RewardSettings(custom_rm_path=f"{path}:reward", reward_key="score")
    with RewardExecutor(settings, FlatView({"genrm_url": judge_url, "genrm_model_path": None})) as executor:
        await executor.score(samples)
    yes = {"score": 1.0, "acc": 1.0, "format": 1.0, "judge_response": "Judgement: Yes"}
    assert samples[0].reward == pytest.approx(yes)
    assert samples[1].reward == {"score": 0.0, "acc": 0.0, "format": 0.0, "judge_response": "Judgement: No"}

"""Rewards keep their scores, comments and imports when they are rewritten."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import random
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from relax_engine.migrate.check import compare
from relax_engine.migrate.code.collect import Collection
from relax_engine.migrate.code.reward import RewardCode, migrate_reward
from relax_engine.migrate.errors import MigrationError
from relax_engine.types import Sample

SCORERS = Path(__file__).parent / "sources" / "scorers"
STYLES = {
    "school/gsm8k": ["#### {}", "The total is\n#### {}", "{}", "#### {} apples, or\n#### {}"],
    "school/MATH": ["So $\\boxed{{{}}}$.", "\\boxed{{1}} then \\boxed{{{}}}", "\\boxed{{{}", "{}"],
    "dapo": ["Thus.\nAnswer: {}", "answer: ${}$", "Answer: 1\nAnswer: {}.", "{}"],
    "school/geometry": ["<think>a</think> \\boxed{{{}}}", "\\boxed{{{}}}", "<think>b</think> {}", "{}"],
    "olympiads": ["\\boxed{{{}}}", "it is {}", "\\boxed{{ {} }}.", ""],
}


@pytest.fixture
def import_root(tmp_path: Path) -> Iterator[Path]:
    sys.path.insert(0, str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in set(sys.modules) - known:
        del sys.modules[name]


def load(root: Path, algo: str, code: RewardCode) -> Callable[..., Any]:
    folder = root / algo
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name, text in code.files.items():
        (folder / name).write_text(text)
    function: Callable[..., Any] = importlib.import_module(f"{algo}.reward_{algo}").reward_func
    assert inspect.iscoroutinefunction(function)
    return function


def rows(data_source: str, count: int = 200) -> list[tuple[str, str]]:
    """Pairs of response and ground truth: right and wrong answers in several forms."""
    generator = random.Random(data_source)
    truths = ["72", "-3", "1,200", "0.5", "\\frac{1}{2}", "\\frac12", "1/2", "x+1"]
    pairs = []
    for _ in range(count):
        truth = generator.choice(truths)
        answer = truth if generator.random() < 0.6 else generator.choice(truths)
        form = generator.choice(STYLES[data_source])
        pairs.append((form.format(*[answer] * form.count("{}")), truth))
    return pairs


@pytest.mark.parametrize("one_branch", [True, False])
@pytest.mark.parametrize("data_source", list(STYLES))
def test_scores_are_those_of_the_source(import_root: Path, data_source: str, one_branch: bool) -> None:
    algo = f"r_{list(STYLES).index(data_source)}_{one_branch}"
    chosen = data_source if one_branch else None
    code = migrate_reward(SCORERS / "__init__.py", "compute", Collection(algo, SCORERS.parent, chosen))
    reward = load(import_root, algo, code)
    sys.path.insert(0, str(SCORERS.parent))
    source = importlib.import_module("scorers").compute
    scores = set()
    for response, truth in rows(data_source):
        sample = Sample(response=response, label=truth, metadata={"data_source": data_source})
        wanted = source(data_source, response, truth)
        found = asyncio.run(reward(None, sample))
        assert found == (wanted if isinstance(wanted, dict) else {"score": wanted}), response
        scores.add(found["score"])
    sys.path.remove(str(SCORERS.parent))
    assert len(scores) > 1, "the rows do not tell right from wrong"


def test_one_branch_takes_only_its_modules_along() -> None:
    code = migrate_reward(SCORERS / "__init__.py", "compute", Collection("m", SCORERS.parent, "school/MATH-500"))
    assert sorted(code.files) == ["math_style.py", "normalise.py", "reward_m.py"]
    reward = code.files["reward_m.py"]
    assert "# boxed answers, compared as normalised text" in reward
    assert "gsm8k" not in reward
    assert "NotImplementedError" not in reward
    assert "from .normalise import normalise" in code.files["math_style.py"]


def test_a_prefix_and_alternatives_are_understood() -> None:
    code = migrate_reward(SCORERS / "__init__.py", "compute", Collection("d", SCORERS.parent, "aime_2024"))
    assert sorted(code.files) == ["dapo_style.py", "reward_d.py"]


def test_arguments_of_the_manager_come_from_args(import_root: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "# mine\nfrom verl.utils.reward_score import gsm8k\n\n"
        "def score(solution_str, ground_truth, extra_info=None, bonus=0.0):\n"
        "    # half a point\n    return 0.5 + bonus + len(extra_info['tag'])\n"
    )
    code = migrate_reward(source, "score", Collection("mine_", tmp_path), settings=["bonus"])
    assert code.unresolved == ["verl.utils.reward_score.gsm8k (in mine.py)"]
    text = code.files["reward_mine_.py"]
    assert text.startswith("# mine\n")
    assert "# half a point" in text
    assert "verl" not in text
    reward = load(import_root, "mine_", code)
    sample = Sample(response="r", label="l", metadata={"extra_info": {"tag": "abc"}})
    assert asyncio.run(reward(SimpleNamespace(bonus=0.25), sample)) == {"score": 3.75}


def test_a_batch_function_scores_groups(import_root: Path, tmp_path: Path) -> None:
    source = tmp_path / "batch.py"
    source.write_text(
        "def compute_score(data_sources, solution_strs, ground_truths, extra_infos, scale=1):\n"
        "    best = max(len(text) for text in solution_strs)\n"
        "    return [scale * (len(text) == best) for text in solution_strs]\n"
    )
    code = migrate_reward(source, "compute_score", Collection("batched", tmp_path), settings=["scale"])
    assert code.group
    reward = load(import_root, "batched", code)
    group = [Sample(response="a"), Sample(response="abc")]
    assert asyncio.run(reward(SimpleNamespace(scale=2), group)) == [{"score": 0.0}, {"score": 2.0}]


REDACCEL = '''"""Rewards of an application."""

from redaccel.verl.rewards.{module} import {base}, {registry}


# counts the words
@{registry}.register()
class WordReward({base}):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.local_step = 0

    def __call__(self, prompts, completions, solutions, **kwargs):
        found = []
        for text, solution, info in zip(completions, solutions, kwargs["extra_info"]):
            # one point for the solution
            score = float(solution in text) + info.get("bonus", 0) + len(completions)
            found.append((score, {{"words": len(text.split())}}))
        return found
'''


@pytest.mark.parametrize(
    ("base", "module", "registry", "group"),
    [
        ("GRPORewards", "std.base", "rewards_registry", False),
        ("GroupRewards", "group.base", "group_rewards_registry", True),
    ],
)
def test_a_reward_class_loses_its_base(
    import_root: Path, tmp_path: Path, base: str, module: str, registry: str, group: bool
) -> None:
    source = tmp_path / "words.py"
    source.write_text(REDACCEL.format(base=base, module=module, registry=registry))
    code = migrate_reward(source, "WordReward", Collection(f"words_{group}", tmp_path))
    text = code.files[f"reward_words_{group}.py"]
    assert code.group == group
    assert code.unresolved == []
    assert "redaccel" not in text
    assert "register" not in text
    assert "# one point for the solution" in text
    reward = load(import_root, f"words_{group}", code)
    samples = [
        Sample(response="it is 4", label="4", metadata={"extra_info": {"bonus": 0.5}}),
        Sample(response="no", label="4"),
    ]
    if group:
        expected = [{"words": 3, "score": 3.5}, {"words": 1, "score": 2.0}]
        assert asyncio.run(reward(None, samples)) == expected
    else:
        assert [asyncio.run(reward(None, sample)) for sample in samples] == [
            {"words": 3, "score": 2.5},
            {"words": 1, "score": 1.0},
        ]


JUDGED = '''"""Judged."""
from redaccel.verl.rewards.group.base import GroupRewards, group_rewards_registry
from redaccel.verl.rewards.utils import call_gemini_flash


def verdict(text):
    return "yes" in call_gemini_flash(f"Is it right? {text}", timeout=5)


@group_rewards_registry.register()
class Judged(GroupRewards):
    def grade(self, text):
        return 1.0 if verdict(text) else 0.0

    def __call__(self, prompts, completions, solutions, **kwargs):
        return [(self.grade(text), {}) for text in completions]
'''


class _Judge(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        verdict = "yes" if "four" in asked["messages"][-1]["content"] else "no"
        body = json.dumps({"choices": [{"message": {"content": verdict}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_a_judge_is_asked_without_waiting_for_it(import_root: Path, tmp_path: Path) -> None:
    """Whoever calls the helper becomes a coroutine, up to the entry point; the judge is the one that `args` name."""
    source = tmp_path / "judged_source.py"
    source.write_text(JUDGED)
    code = migrate_reward(source, "Judged", Collection("judged", tmp_path))
    assert (code.judge, code.group, code.unresolved, code.notes) == (True, True, [], [])
    text = code.files["reward_judged.py"]
    for line in ("async def verdict(text):", "    async def grade(self, text):", "(await self.grade(text))"):
        assert line in text
    reward = load(import_root, "judged", code)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Judge)
    Thread(target=server.serve_forever, daemon=True).start()
    args = SimpleNamespace(genrm_url=f"http://127.0.0.1:{server.server_address[1]}/v1", genrm_model_path=None)
    samples = [Sample(response="four", label="4"), Sample(response="five", label="4")]
    assert asyncio.run(reward(args, samples)) == [{"score": 1.0}, {"score": 0.0}]
    server.shutdown()
    server.server_close()


def test_a_client_of_openai_becomes_asynchronous(tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text(
        "from openai import OpenAI\n\nclient = OpenAI()\n\n\ndef ask(text):\n"
        "    return client.chat.completions.create(model='m', messages=[]).choices[0].message.content + text\n"
    )
    source = tmp_path / "own.py"
    source.write_text(
        "from asking import ask\n\n\ndef score(solution_str, ground_truth):\n"
        "    marks = [float(ask(solution_str)) for _ in range(3)]\n    return sum(marks) / 3\n"
    )
    code = migrate_reward(source, "score", Collection("asked", tmp_path))
    asking, own = code.files["asking.py"], code.files["reward_asked.py"]
    assert "from openai import AsyncOpenAI as OpenAI\n" in asking
    assert "async def ask(text):\n    return (await client.chat.completions.create(" in asking
    assert "async def score(" in own
    assert "[float((await ask(solution_str))) for _ in range(3)]" in own
    assert "_as_reward((await compute_score(" in own
    source.write_text("from asking import ask\n\n\ndef score(a, b):\n    return max(map(ask, [a]))\n")
    code = migrate_reward(source, "score", Collection("handed", tmp_path))
    assert code.notes == ["reward_handed.py: ask is a coroutine now, and is handed on to be called"]


def test_a_function_of_the_engines_form_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "own.py"
    source.write_text("async def judge(args, sample, **kwargs):\n    return 1.0\n")
    text = migrate_reward(source, "judge", Collection("own", tmp_path)).files["reward_own.py"]
    assert text == "async def judge(args, sample, **kwargs):\n    return 1.0\n\n\nreward_func = judge\n"


def test_the_standard_library_is_not_taken_for_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "math.py").write_text("raise RuntimeError\n")
    (tmp_path / "helper.py").write_text("ONE = 1\n")
    source = tmp_path / "own.py"
    source.write_text(
        "import math\nimport helper as h\n\ndef compute_score(solution_str, ground_truth):\n    return h.ONE\n"
    )
    files = migrate_reward(source, "compute_score", Collection("own", tmp_path)).files
    assert sorted(files) == ["helper.py", "reward_own.py"]
    assert files["reward_own.py"].startswith("import math\nfrom . import helper as h\n")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [("def f(:", "f", "Syntax Error|parser error|incomplete"), ("x = 1\n", "f", "no function or class 'f'")],
)
def test_what_cannot_be_rewritten(tmp_path: Path, text: str, name: str, message: str) -> None:
    source = tmp_path / "bad.py"
    source.write_text(text)
    with pytest.raises(MigrationError, match=f"bad.py.*({message})"):
        migrate_reward(source, name, Collection("bad", tmp_path))


def test_comparison_runs_both_and_names_what_differs(tmp_path: Path) -> None:
    source = tmp_path / "old.py"
    source.write_text("def compute_score(solution_str, ground_truth):\n    return float('####' in solution_str)\n")
    folder = tmp_path / "fresh"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    code = migrate_reward(source, "compute_score", Collection("fresh", tmp_path))
    (folder / "reward_fresh.py").write_text(code.files["reward_fresh.py"])
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"reward_model": {"ground_truth": str(n)}}) + "\n" for n in range(3)))
    same = compare(tmp_path, "fresh.reward_fresh", f"{source}:compute_score", data)
    assert (same.compared, same.differing) == (48, 0)
    (folder / "reward_fresh.py").write_text(code.files["reward_fresh.py"].replace("'####'", "'###'") + "#")
    source.write_text("def compute_score(solution_str, ground_truth):\n    return 0.0\n")
    other = compare(tmp_path, "fresh.reward_fresh", f"{source}:compute_score", data)
    assert other.differing == 9
    assert "1.0 instead of 0.0" in other.examples[0]

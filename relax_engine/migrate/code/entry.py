"""`reward_func`: how the engine calls a reward of another framework.

What lives here: matching parameters by name, and the text of the entry point. What does not: the reward itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

_SINGLE = {
    "data_source": 'sample.metadata.get("data_source")',
    "solution_str": "sample.response",
    "predict_str": "sample.response",
    "model_output": "sample.response",
    "completion": "sample.response",
    "response": "sample.response",
    "solution": "sample.response",
    "ground_truth": "sample.label",
    "gt": "sample.label",
    "label": "sample.label",
    "answer": "sample.label",
    "extra_info": 'sample.metadata.get("extra_info", sample.metadata)',
    "prompt": "sample.prompt",
    "prompt_str": "sample.prompt",
}
_BATCH = {
    "data_sources": "data_source",
    "solution_strs": "solution_str",
    "ground_truths": "ground_truth",
    "extra_infos": "extra_info",
}
_VALUE = '''

def _as_reward(result):
    """The score under `score`, with whatever the function says besides."""
    if isinstance(result, dict):
        return result
    return {"score": float(result[0] if isinstance(result, (tuple, list)) else result)}
'''


@dataclass(frozen=True, slots=True)
class Function:
    """A reward function: its parameters in order, those with a default, and what kind it is."""

    name: str
    parameters: tuple[str, ...]
    optional: frozenset[str]
    is_async: bool = False
    keywords: bool = False

    @property
    def is_batch(self) -> bool:
        """Whether it takes lists, one entry for each sample."""
        return "solution_strs" in self.parameters

    @property
    def takes_samples(self) -> bool:
        """Whether it already has the engine's form: `(args, sample)` or `(args, samples)`."""
        return self.parameters[:1] == ("args",) and self.parameters[1:2] in (("sample",), ("samples",))


@dataclass(frozen=True, slots=True)
class RewardClass:
    """A reward class of RedAccel; `group` classes see a whole prompt group."""

    name: str
    group: bool


def find(tree: cst.Module, name: str) -> Function | RewardClass | None:
    """The function or reward class called `name` at the top of a module."""
    for node in tree.body:
        if isinstance(node, cst.FunctionDef) and node.name.value == name:
            return _function(node)
        if isinstance(node, cst.ClassDef) and node.name.value == name:
            bases = {cst.Module([]).code_for_node(base.value).rpartition(".")[2] for base in node.bases}
            return RewardClass(name, "GroupRewards" in bases)
    return None


def _function(node: cst.FunctionDef) -> Function:
    declared = [*node.params.posonly_params, *node.params.params, *node.params.kwonly_params]
    names = tuple(parameter.name.value for parameter in declared)
    optional = frozenset(parameter.name.value for parameter in declared if parameter.default is not None)
    return Function(node.name.value, names, optional, node.asynchronous is not None, node.params.star_kwarg is not None)


def unmatched(function: Function, settings: list[str]) -> list[str]:
    """Parameters without default that nothing here can fill."""
    known = {*_SINGLE, *_BATCH, *settings}
    return [name for name in function.parameters[2:] if name not in known and name not in function.optional]


def for_function(function: Function, settings: list[str]) -> str:
    """The entry point of a function, for one sample or, for a batch function, for a group."""
    alias = "" if function.name == "compute_score" else f"\n\ncompute_score = {function.name}\n"
    wait = "await " if function.is_async else ""
    extra = [name for name in settings if name in function.parameters or function.keywords]
    given = [f"{name}=args.{name}" for name in extra]
    if function.is_batch:
        lists = [
            f"{name}=[{_SINGLE[_BATCH[name]]} for sample in samples]" for name in function.parameters if name in _BATCH
        ]
        call = _call(lists + given)
        body = f"    results = {wait}compute_score({call})\n    return [_as_reward(result) for result in results]\n"
        return f"{alias}{_VALUE}{_head('samples', 'Score a prompt group')}{body}"
    pairs = [(name, _SINGLE[name]) for name in function.parameters if name in _SINGLE]
    taken = {name for name, _ in pairs}
    first = [name for name in function.parameters[:2] if name not in taken and name not in extra]
    pairs += list(zip(first, ("sample.response", "sample.label"), strict=False))
    call = _call([f"{name}={value}" for name, value in pairs] + given)
    return f"{alias}{_VALUE}{_head('sample', 'Score one response')}    return _as_reward({wait}compute_score({call}))\n"


def for_class(reward: RewardClass) -> str:
    """The entry point of a reward class, made once; `compute_score` scores one response."""
    make = f"""

_reward = {reward.name}()


def compute_score(predict_str, ground_truth, extra_info=None):
    \"\"\"Score one response, as a group of its own.\"\"\"
    return _as_reward(_reward([None], [predict_str], [ground_truth], extra_info=[extra_info or {{}}])[0])
"""
    if not reward.group:
        call = f"compute_score(sample.response, sample.label, {_SINGLE['extra_info']})"
        return f"{make}{_CLASS_VALUE}{_head('sample', 'Score one response')}    return {call}\n"
    lists = _call(
        [
            "[sample.prompt for sample in samples]",
            "[sample.response for sample in samples]",
            "[sample.label for sample in samples]",
            f"extra_info=[{_SINGLE['extra_info']} for sample in samples]",
        ]
    )
    body = f"    return [_as_reward(result) for result in _reward({lists})]\n"
    return f"{make}{_CLASS_VALUE}{_head('samples', 'Score a prompt group')}{body}"


_CLASS_VALUE = '''

def _as_reward(result):
    """The score under `score`, with the details that the class gives besides."""
    score, details = result if isinstance(result, (tuple, list)) else (result, {})
    return score if isinstance(score, dict) else {**details, "score": float(score)}
'''


MARK = '; the entry point of --custom-rm-path."""\n'
"""The end of the entry point's docstring."""


def _head(argument: str, text: str) -> str:
    return f'\n\nasync def reward_func(args, {argument}, **kwargs):\n    """{text}{MARK}'


def _call(arguments: list[str]) -> str:
    inner = "".join(f"        {argument},\n" for argument in arguments)
    return f"\n{inner}    "

"""Algorithms by name.

What lives here: the list of built-in names, registration and lookup. What does not: mathematics.
An algorithm is one module of this package with a module-level `SPEC`; the module's name is the
algorithm's. Adding one is adding the file and its name to `BUILTIN`.
"""

from __future__ import annotations

import difflib
import importlib

from relax_engine.algorithms.spec import AlgorithmSpec

BUILTIN: tuple[str, ...] = (
    "cispo",
    "grpo",
    "gspo",
    "m2po",
    "ppo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "sapo",
)

_registered: dict[str, AlgorithmSpec] = {}


def names() -> list[str]:
    """Every known name, sorted; imports neither torch nor the algorithms."""
    return sorted({*BUILTIN, *_registered})


def register(spec: AlgorithmSpec) -> AlgorithmSpec:
    """Make an algorithm of your own known under `spec.name`.

    Raises:
        ValueError: the name belongs to another algorithm.
    """
    if spec.name in BUILTIN or _registered.get(spec.name, spec) is not spec:
        raise ValueError(f"algorithm {spec.name!r} is already registered; choose another name")
    _registered[spec.name] = spec
    return spec


def get(name: str) -> AlgorithmSpec:
    """The algorithm of that name.

    Raises:
        KeyError: no such algorithm; the message has the nearest name and all names.
    """
    if name in _registered:
        return _registered[name]
    if name in BUILTIN:
        spec: AlgorithmSpec = importlib.import_module(f"{__package__}.{name}").SPEC
        return spec
    nearest = difflib.get_close_matches(name, names(), n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise KeyError(f"unknown algorithm {name!r}{hint} (known: {', '.join(names())})")

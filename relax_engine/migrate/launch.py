"""The training command of a script.

What lives here: which of a script's commands starts training, and its settings as words. What does not: their meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from relax_engine.migrate.shell.trace import Invocation, Trace

Framework = Literal["verl", "redaccel", "slime", "relax"]

_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=", re.DOTALL)
_HYDRA = re.compile(r"[+~]{0,2}(data|actor_rollout_ref|trainer|algorithm|critic|reward_model|optim|model)\.[\w.]+=")
_SCRIPTS = ("train.py", "train_async.py")


@dataclass(slots=True)
class Launch:
    """A training command: the module or script it starts, the words behind it, and where it stands."""

    module: str
    words: list[str]
    line: int = 0
    options: dict[str, str] = field(default_factory=dict)

    def overrides(self) -> dict[str, str]:
        """Hydra's `key=value` words; of a key that is given twice, the last."""
        found: dict[str, str] = {}
        for word in self.words:
            if _OVERRIDE.match(word):
                key, _, value = word.partition("=")
                found[key] = value
        return found


def find_launches(trace: Trace, framework: Framework) -> list[Launch]:
    """The training commands of a script, in order."""
    read = _hydra_launch if framework in ("verl", "redaccel") else _flag_launch
    return [launch for launch in map(read, trace.invocations) if launch is not None]


def _hydra_launch(invocation: Invocation) -> Launch | None:
    argv = list(invocation.argv)
    settings = sum(bool(_HYDRA.match(word)) for word in argv)
    modules = [index for index, word in enumerate(argv[1:], 1) if argv[index - 1] == "-m" and word.startswith("verl")]
    if not modules and not (argv[:2] == ["redaccel-cli", "train"] or settings >= 3):
        return None
    start = modules[0] if modules else 1 if argv[0] == "redaccel-cli" else _first_setting(argv) - 1
    launch = Launch(argv[start], argv[start + 1 :], invocation.line)
    for index, word in enumerate(launch.words):
        if word.startswith("--config-"):
            name, equals, value = word[2:].partition("=")
            launch.options[name] = value if equals else "".join(launch.words[index + 1 : index + 2])
    return launch if settings else None


def _first_setting(argv: list[str]) -> int:
    return next(index for index, word in enumerate(argv) if _OVERRIDE.match(word) and index)


def _flag_launch(invocation: Invocation) -> Launch | None:
    argv = list(invocation.argv)
    for index, word in enumerate(argv):
        if Path(word).name in _SCRIPTS or (word.endswith("entrypoints.train") and argv[index - 1] == "-m"):
            words = argv[index + 1 :]
            return Launch(word, words, invocation.line) if any(item.startswith("--") for item in words) else None
    return None

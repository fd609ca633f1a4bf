"""User functions that take part in the loss, loaded once.

What lives here: which hooks the loss has, and the flags that name them. What does not: how each is called
(`corrections.custom`, `objective`), and loading by path (`relax_engine.utils.hooks`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.utils.hooks import load_function

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LossHooks:
    """Functions of the user, or None. `args` is what they get first: every flag as an attribute.

    Attributes:
        tis: See `corrections.custom.custom_correction`.
        reducer: `(total_lengths, response_lengths, masks, calculate_per_token_loss)` -> a function from the policy
            loss `[R]` to a 0-d sum: over samples of their means, or over tokens. The engine divides it by the number
            of samples (tokens) of the global batch.
    """

    args: Any = None
    tis: Function | None = None
    reducer: Function | None = None

    @classmethod
    def load(cls, settings: AlgorithmSettings, args: Any) -> LossHooks:
        """The hooks that the flags name.

        Raises:
            ValueError, ImportError: a path names no function.
        """
        tis, reducer = settings.custom_tis_function_path, settings.custom_pg_loss_reducer_function_path
        return cls(args, load_function(tis) if tis else None, load_function(reducer) if reducer else None)

"""The flat view of a configuration, handed to user hooks as `args`.

What lives here: read-only attribute access by flag name. What does not: values of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class FlatView:
    """Every field of every section as an attribute, plus the keys of `--custom-config-path`.

    `args.rollout_batch_size`, `args.max_turns`, `getattr(args, "judge_url", default)` and `vars(args)` work;
    setting an attribute does not. It pickles, so reward workers can have it.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take `values` as they are; later changes of the mapping are not seen."""
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        """Called for missing attributes only."""
        raise AttributeError(f"args has no {name!r}: it is neither a flag nor a key of --custom-config-path")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        """Refuse: the configuration of a run does not change."""
        raise AttributeError(f"args.{name} cannot be set: args is read-only; use --custom-config-path for own settings")

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse: the configuration of a run does not change."""
        raise AttributeError(f"args.{name} cannot be deleted: args is read-only")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled view."""
        self.__dict__.update(state)

    def __repr__(self) -> str:
        """All values, as a constructor call would show them."""
        return "FlatView(" + ", ".join(f"{name}={value!r}" for name, value in sorted(self.__dict__.items())) + ")"

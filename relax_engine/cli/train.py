"""`relax train`: check the configuration, train, print the result.

What lives here: the order of these three. What does not: each of them.
"""

from __future__ import annotations

from relax_engine.config import parse_args
from relax_engine.config.doctor import require_valid
from relax_engine.utils.logging import configure_logging


def main(argv: list[str]) -> int:
    """Train with the flags in `argv`; returns 0.

    Raises:
        ConfigError: flags that cannot run.
        RelaxError: training failed.
    """
    config = parse_args(argv, prog="relax train")
    configure_logging()
    require_valid(config)
    from relax_engine.core.train import train

    print(train(config))
    return 0

"""Typed configuration: sections, the flag parser, and the rules between fields.

`RunConfig` is built by `parse_args` (command line), `RunConfig.from_yaml`, `RunConfig.from_flat` (Python, Flyte
inputs); all four give the same object. Imports neither torch nor Ray.
"""

from relax_engine.config.flat import FlatView
from relax_engine.config.parse import parse_args
from relax_engine.config.run_config import RunConfig
from relax_engine.errors import ConfigError

__all__ = ["ConfigError", "FlatView", "RunConfig", "parse_args"]

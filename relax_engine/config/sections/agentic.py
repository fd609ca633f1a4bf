"""Custom generation: multi-turn environments and agents."""

from __future__ import annotations

from relax_engine.config.sections.base import Section


class Agentic(Section):
    """Hooks that replace the single-turn sampling of one response."""

    custom_generate_function_path: str | None = None
    """Your generation, `package.module.function`: `async generate(args, sample, sampling_params) -> Sample`."""

    custom_config_path: str | None = None
    """YAML file of settings for your hooks; its keys become attributes of `args`. A key that is also a flag's
    name sets that flag and wins over the command line."""

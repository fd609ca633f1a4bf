"""Rules about engines that come and go."""

from __future__ import annotations

from relax_engine.config.fields import all_fields
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


def _given(config: RunConfig) -> list[str]:
    """The flags of scaling that were given."""
    return [name for name in config.changed() if all_fields()[name].section == "elastic"]


@rule
def scaling_needs_engines_of_their_own(config: RunConfig, report: Reporter) -> Findings:
    """Flags of scaling in a mode whose engines share the actor's devices."""
    given = _given(config)
    if given and config.mode == "colocate":
        yield report.warning(
            " ".join(given),
            "in colocate mode engines share the actor's devices, and scale requests are refused",
            "--fully-async or --hybrid",
        )


@rule
def joining_is_free_with_a_store(config: RunConfig, report: Reporter) -> Findings:
    """Flags of scaling with a transport that sends a newcomer its weights from the trainer."""
    given = _given(config)
    if given and config.mode != "colocate" and config.weight_sync.weight_sync_transport != "object_store":
        yield report.note(
            f"{' '.join(given)} weight_sync_transport",
            "the trainer sends an engine that joins its weights between two of its calls, and a broadcast goes to all "
            "engines; files are read without either",
            "--weight-sync-transport object_store --weight-sync-url URL",
        )

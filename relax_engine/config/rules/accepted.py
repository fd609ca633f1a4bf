"""Flags of existing scripts that this engine takes without acting on them, so that nothing is ignored in silence.

What lives here: the list, and what is said about each. A test holds that every other field is read somewhere.
"""

from __future__ import annotations

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig

HARMLESS: dict[str, str] = {
    "megatron_to_hf_mode": "weights are always converted by the built-in mapping",
    "attention_backend": "the backend chooses the attention kernel",
    "attention_softmax_in_fp32": "attention kernels accumulate the softmax in float32 anyway",
    "accumulate_allreduce_grads_in_fp32": "gradients are accumulated in float32 anyway",
    "optimizer_cpu_offload": "optimizer state stays with the parameters",
    "overlap_cpu_optimizer_d2h_h2d": "there is no offloaded optimizer",
    "use_precision_aware_optimizer": "optimizer state is float32",
    "lora_merge_mode": "adapters are always merged into what engines receive",
    "router_args": "rollouts address each engine directly",
    "use_streaming_dataset": "rows are always read as they are needed",
}
"""Flags whose result is the same without them: one note."""

REFUSED: dict[str, str] = {
    "lora_adapter_mode": "engines receive merged weights; leave it out, --weight-sync-mode delta sends what changed",
    "rollout_num_gpus_per_engine": "an engine runs on one device; use 1",
}
"""Flags without which the run would be another one: an error each."""


@rule
def accepted_without_effect(config: RunConfig, report: Reporter) -> Findings:
    """Name the harmless flags in one note."""
    given = _changed(config, HARMLESS)
    if given:
        reasons = "; ".join(dict.fromkeys(HARMLESS[name] for name in given))
        yield report.note(" ".join(given), f"accepted, and without effect here: {reasons}")


@rule
def would_change_the_run(config: RunConfig, report: Reporter) -> Findings:
    """Refuse flags whose absence changes what is trained."""
    for name in _changed(config, REFUSED):
        message, _, fix = REFUSED[name].partition("; ")
        yield report.error(name, message, fix)


def _changed(config: RunConfig, names: dict[str, str]) -> list[str]:
    """The fields among `names` that were given a value other than the default."""
    return [name for name in names if name in config.changed()]

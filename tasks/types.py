"""What the tasks hand to one another: references and settings, small and typed.

Kept in a module of its own, imported before any workflow: flytekit deadlocks when a launch plan is made in the module
that defines the dataclass of one of its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ArtifactRef:
    """A published artifact, by a reference that never changes its meaning.

    `ref` is `name@vN`, `digest` the SHA-256 of its content. `store` is the id of the artifact store, so that a cached
    result is not taken from a store that no longer exists.
    """

    kind: str
    ref: str
    digest: str
    store: str


@dataclass
class SupervisedOptions:
    """The supervised warm start: AdamW at a constant rate after a linear warm-up, otherwise as the run's config."""

    steps: int = 60
    batch_size: int = 128
    lr: float = 1e-5
    warmup_steps: int = 0


@dataclass
class TrainingOverrides:
    """Settings that replace those of the configuration file; None (or empty) keeps the file's.

    `resource` is `--resource`: role -> [1, devices]. `settings` has any others, field name -> value as YAML.
    """

    num_rollout: int | None = None
    lr_warmup_iters: int | None = None
    fully_async: bool | None = None
    hybrid: bool | None = None
    max_staleness: int | None = None
    resource: dict[str, list[int]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What is different, in a line."""
        values = {key: value for key, value in vars(self).items() if value not in (None, {}) and key != "settings"}
        flags = [f"{key}={value}" for key, value in (values | self.settings).items() if key != "resource"]
        return ", ".join(flags) or "as configured"


@dataclass
class Evaluation:
    """Accuracy of one model on one dataset; `sampled` at the configured temperature, `greedy` at 0."""

    artifact: ArtifactRef
    model: ArtifactRef
    dataset: ArtifactRef
    sampled: float
    greedy: float


@dataclass
class TrainingOutcome:
    """The record of a run (metrics, configuration, report) and its last checkpoint."""

    run: ArtifactRef
    checkpoint: ArtifactRef


@dataclass
class Publication:
    """The published model and the pipeline's report; `reason` says why it was or was not promoted."""

    model: ArtifactRef
    report: ArtifactRef
    promoted: bool
    reason: str


@dataclass
class Tick:
    """What a scheduled retraining found: its inputs, whether they are new, and the model that it would start from.

    `inputs` is what decides, name -> digest; `config` is the text of the configuration file.
    """

    changed: bool
    reason: str
    inputs: dict[str, str]
    start: ArtifactRef
    train: ArtifactRef
    heldout: ArtifactRef
    config: str


@dataclass
class Retraining:
    """How a tick ended: `action` is `skipped`, `promoted`, or `kept` for the model that was in production."""

    action: str
    reason: str
    record: ArtifactRef

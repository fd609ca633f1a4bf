"""`reproduce`: run a recorded run again from its configuration, and compare the two step by step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_engine.config import RunConfig
from relax_engine.core.environment import NAME, differences
from relax_engine.core.train import train
from relax_engine.errors import RelaxError
from relax_engine.observe.metrics import read_metrics

QUANTITIES = ("train/loss", "train/grad_norm", "rollout/raw_reward")


class ReproduceError(RelaxError):
    """There is no run to reproduce, or what it was trained from is gone."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """One quantity over the steps that both runs have; `first` is the first step at which they differ."""

    quantity: str
    steps: int
    largest: float
    first: int | None


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The new run's directory, how it agrees with the recorded one, and what differs in what they were made with."""

    run_dir: str
    deterministic: bool
    agreements: list[Agreement]
    environment: list[str]

    @property
    def identical(self) -> bool:
        """Whether both took the same steps to the same numbers, bit by bit."""
        return all(agreement.first is None for agreement in self.agreements)


def reproduce(run: str | Path, run_dir: str | Path, *, store_url: str | None = None) -> Reproduction:
    """Train again as `run` did, from the beginning, in `run_dir`, and compare losses, gradient norms and rewards.

    `run` is a run's directory, or the reference of a run in the artifact store (`my-model-run@v3`), whose data and
    starting weights are then fetched from there.

    Raises:
        ReproduceError: there is no such run, or files that it was made from are gone.
        RelaxError: training failed.
    """
    source = Path(run) if Path(run).is_dir() else _from_store(str(run), store_url)
    if not (source / "config.yaml").is_file() or not (source / "metrics.jsonl").is_file():
        raise ReproduceError(f"{source} is no run: it has no config.yaml and metrics.jsonl")
    into = Path(run_dir)
    if into.exists() and any(into.iterdir()):
        raise ReproduceError(f"{into} is not empty: name a new directory")
    recorded = RunConfig.from_yaml(str(source / "config.yaml"))
    flat = recorded.flat
    origins = dict.fromkeys(path for path in (flat.hf_checkpoint, flat.ref_load) if path)
    missing = [path for path in origins if not Path(path).exists()]
    if missing:
        raise ReproduceError(f"the run in {source} began from {', '.join(missing)}, which is not there any more")
    changes: dict[str, Any] = {"run_dir": str(into), "load": None}
    if flat.save is not None:
        changes["save"] = str(into / "checkpoints")
    config = recorded.replace(**changes)
    train(config)
    then, now = ({r["step"]: r for r in read_metrics(path / "metrics.jsonl")} for path in (source, into))
    records = [json.loads((path / NAME).read_text()) if (path / NAME).is_file() else {} for path in (source, into)]
    agreements = [agree(quantity, then, now) for quantity in QUANTITIES]
    return Reproduction(str(into), flat.deterministic, agreements, differences(*records))


def agree(quantity: str, then: dict[int, dict[str, float]], now: dict[int, dict[str, float]]) -> Agreement:
    """Compare one quantity; a step that only one run has, or that only one has it in, differs."""
    largest, first, both = 0.0, None, 0
    for step in sorted(then.keys() | now.keys()):
        old, new = then.get(step, {}).get(quantity), now.get(step, {}).get(quantity)
        if old is not None and new is not None:
            both += 1
            largest = max(largest, abs(new - old))
        if old != new and first is None:
            first = step
    return Agreement(quantity, both, largest, first)


def _from_store(reference: str, url: str | None) -> Path:
    """The run's record, with everything that it was made from fetched to where its configuration names it."""
    from relax_engine.lineage import ArtifactStore
    from relax_engine.lineage.errors import LineageError

    try:
        store = ArtifactStore.open(url, create=False)
        record = store.resolve(reference)
        if record.kind != "run":
            raise ReproduceError(f"{record.ref} is a {record.kind}, no run")
        for ancestor in store.ancestors(record):
            store.fetch(ancestor)
        return store.fetch(record)
    except (LineageError, FileNotFoundError) as error:
        raise ReproduceError(f"{reference} is neither the directory of a run nor one in the store: {error}") from error

"""The engine that a configuration asks for, started: the one place that knows which kinds there are."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import SecretStr

from relax_engine.access.policy import engine_key
from relax_engine.backends.engines.launch import launch_engine
from relax_engine.backends.engines.process import EngineProcess
from relax_engine.backends.engines.sglang_launch import launch_sglang
from relax_engine.config.flat import FlatView
from relax_engine.multimodal.model import family_of
from relax_engine.multimodal.processor import MediaBudget


@dataclass(frozen=True, slots=True)
class EngineStart:
    """How engines of a run are started; it travels to the machines where they are."""

    kind: Literal["local", "sglang"]
    model_path: str
    timeout_s: float
    max_running_requests: int | None = None
    context_length: int | None = None
    random_seed: int = 0
    weight_store: str | None = None
    """URL of a weight store; its newest version, if it has one, is served instead of the model's own weights."""
    gives_memory_back: bool = False
    sglang_python: str | None = None
    extra_args: Mapping[str, Any] = field(default_factory=dict)
    api_key: SecretStr | None = None
    media_budget: MediaBudget = field(default_factory=MediaBudget)

    @classmethod
    def from_config(
        cls,
        flat: FlatView,
        model_path: str | None = None,
        *,
        context_length: int | None = None,
        extra_args: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        """From the flags of a run, with this process's key.

        Args:
            flat: The run's configuration.
            model_path: The model; default the one that is trained, whose newest published weights are then served.
            context_length: Longest prompt and response together; default the rollout's.
            extra_args: Further server arguments, over those of `--sglang-NAME`.
        """
        if model_path is None and flat.use_rollout_routing_replay:
            extra_args = {"enable_return_routed_experts": True, **extra_args}
        published = model_path is None and flat.weight_sync_transport == "object_store"
        return cls(
            kind=flat.rollout_engine,
            model_path=model_path or flat.hf_checkpoint,
            timeout_s=flat.rollout_engine_init_timeout,
            max_running_requests=flat.sglang_server_concurrency,
            context_length=context_length or flat.rollout_max_context_len,
            random_seed=flat.rollout_seed,
            weight_store=flat.weight_sync_url if published else None,
            gives_memory_back=bool(flat.offload_rollout),
            sglang_python=flat.sglang_python,
            extra_args={**flat.sglang_args, **extra_args},
            api_key=engine_key(),
            media_budget=MediaBudget.from_config(flat),
        )

    def launch(self, host: str) -> EngineProcess:
        """Start one on this machine, listening at `host`; returns when it answers.

        Raises:
            EngineLaunchError: it does not, in time.
            WeightStoreError: the weights that it should serve cannot be read.
        """
        common: dict[str, Any] = {
            "host": host,
            "max_running_requests": self.max_running_requests,
            "context_length": self.context_length,
            "random_seed": self.random_seed,
            "timeout_s": self.timeout_s,
            "api_key": self.api_key,
            "extra_args": self.extra_args,
        }
        if self.kind == "local":
            found = Path(self.model_path, "config.json").is_file()  # without one, the engine says what is wrong
            if found and family_of(self.model_path) is not None:
                common["extra_args"] = {"media_budget": self.media_budget.to_json(), **self.extra_args}
            return launch_engine(self.model_path, weight_store=self.weight_store, **common)
        common |= {"python": self.sglang_python, "gives_memory_back": self.gives_memory_back}
        if self.weight_store is None:
            return launch_sglang(self.model_path, **common)
        from relax_engine.backends.engines.stored_model import download_newest

        scratch = Path(tempfile.mkdtemp(prefix="relax-engine-weights-"))
        try:
            version = download_newest(self.weight_store, self.model_path, scratch)
            if version is None:
                return launch_sglang(self.model_path, scratch=scratch, **common)
            return launch_sglang(scratch, weight_version=version, scratch=scratch, **common)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

"""What a Flyte cluster gives to the tasks, read from the YAML file that `$RELAX_CLUSTER` names when they are packaged.

Without the file: CPU workers, no secrets. A local run ignores all of it.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import yaml
from flytekit import ImageSpec, Resources, Secret
from flytekit.extras.accelerators import GPUAccelerator
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from relax_engine.errors import ConfigError

VARIABLE = "RELAX_CLUSTER"
_LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"


class Part(BaseModel):
    """A part of the file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Workers(Part):
    """The worker group of a training task's Ray cluster: one pod's resources, and between how many pods Ray chooses."""

    cpu: str = "4"
    memory: str = "16Gi"
    gpus: int = Field(default=0, ge=0)
    accelerator: str | None = None
    """The device's name on the cluster, such as `nvidia-h100`."""
    minimum: int = Field(default=1, ge=0)
    maximum: int = Field(default=4, ge=1)

    def resources(self) -> Resources:
        """Of one pod."""
        return Resources(cpu=self.cpu, mem=self.memory, gpu=str(self.gpus) if self.gpus else None)


class SecretKey(Part):
    """One secret of Flyte's and the environment variable that holds it while a task runs."""

    group: str
    key: str
    variable: str


class Image(Part):
    """An image that Flyte builds: `base` by digest (`python:3.11-slim@sha256:...`, or one with CUDA), then the lock."""

    registry: str
    base: str = Field(pattern=r"@sha256:[0-9a-f]{64}$")
    name: str = "relax"


class Cluster(Part):
    """The whole file. `environment` is set in every pod; the artifact store's URL belongs there."""

    workers: Workers = Workers()
    environment: dict[str, str] = Field(default_factory=dict)
    secrets: list[SecretKey] = Field(default_factory=list)
    image: Image | None = None

    def options(self) -> dict[str, Any]:
        """What every task's decorator gets."""
        named: dict[str, Any] = {"environment": self.environment}
        if self.secrets:
            in_environment = Secret.MountType.ENV_VAR
            named["secret_requests"] = [
                Secret(each.group, each.key, env_var=each.variable, mount_requirement=in_environment)
                for each in self.secrets
            ]
        if self.image is not None:
            named["container_image"] = self.image_spec()
        return named

    def accelerated(self) -> dict[str, Any]:
        """What a training task's decorator gets besides."""
        name = self.workers.accelerator
        return {"accelerator": GPUAccelerator(name)} if name is not None else {}

    def image_spec(self) -> ImageSpec:
        """Everything at the versions and hashes of requirements.lock."""
        assert self.image is not None
        return ImageSpec(
            name=self.image.name, registry=self.image.registry, base_image=self.image.base, requirements=str(_LOCK)
        )


@functools.cache
def read_cluster() -> Cluster:
    """The cluster that `$RELAX_CLUSTER` describes.

    Raises:
        ConfigError: the file cannot be used.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return Cluster()
    try:
        return Cluster.model_validate(yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {})
    except (OSError, ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"the cluster in {path}, which ${VARIABLE} names: {error}") from None
